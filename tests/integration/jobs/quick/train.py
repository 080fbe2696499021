# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that counts: QUICK_STEPS steps of QUICK_PAUSE seconds, a checkpoint every five, resumed where it ended."""

from __future__ import annotations

import json
import os
import time

out, kept = os.environ["TENANT_OUTPUT_DIR"], os.environ["TENANT_CHECKPOINT_DIR"]
total, pause = int(os.environ.get("QUICK_STEPS", "10")), float(os.environ.get("QUICK_PAUSE", "0.05"))
resume = os.environ["TENANT_RESUME_FROM"]
step = 0
if resume:
    with open(resume) as stream:
        step = json.load(stream)["step"]
print("start at", step, flush=True)
while step < total:
    time.sleep(pause)
    step += 1
    print(f"step {step}/{total}", flush=True)
    with open(os.path.join(out, "metrics.jsonl"), "a") as stream:
        stream.write(json.dumps({"step": step, "total": total, "loss": 1 / step}) + "\n")
    if step % 5 == 0:
        path = os.path.join(kept, f"step-{step:06d}.json")
        with open(path + ".tmp", "w") as stream:
            json.dump({"step": step}, stream)
        os.rename(path + ".tmp", path)
if os.environ.get("QUICK_FORGET") != "metrics":
    with open(os.path.join(out, "metrics.json"), "w") as stream:
        stream.write(os.environ.get("QUICK_METRICS") or json.dumps({"loss": 1 / total, "steps": total}))
