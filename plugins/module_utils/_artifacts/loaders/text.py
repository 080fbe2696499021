# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Text: nothing to load; the hash vouches for it."""

from __future__ import annotations

from . import base
from .base import Finish, Job


def plan(job: Job) -> Finish:
    return lambda: base.as_it_is(job.layout)
