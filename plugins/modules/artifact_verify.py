#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: artifact_verify
short_description: Load files that came from a box and say whether they are whole
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Reads a file, or every file below a folder, on the controller, and says of each whether it is a whole result.
  - With O(manifest), every file named there is also compared with the SHA-256 taken on the box, in the same read.
  - Nothing is unpickled and nothing of a file is run. Files are opened in processes without network, environment or
    the right to write, with limits on memory and time, so that a hostile file does no harm.
  - No library is needed. Parquet is read by pyarrow where that is installed; elsewhere its verdict is
    V(structural_only).
options:
  path:
    description: A file or folder on the controller. With O(manifest), the folder that its paths are relative to.
    type: path
    required: true
  manifest:
    description: The C(MANIFEST.json) of a run.
    type: path
  artifacts:
    description:
      - With O(manifest), the job's artifacts, each C({path, format, keys, finite, cell}) as in the job file.
      - A file of the manifest whose artifact is none of them is loaded by the format that its content shows.
    type: list
    elements: dict
    default: []
  format:
    description: The format, where content and suffix should not decide.
    type: str
    choices:
      [bz2, dcp, distcp, gz, hdf5, image, json, jsonl, npy, npz, onnx, parquet, pickle, safetensors, tar, text,
      tfevents, torch, unknown, xz, zip, zst]
  keys:
    description: Keys, tensors, arrays or columns that must be there. A path with dots reaches into nested ones.
    type: list
    elements: str
    default: []
  finite:
    description:
      - Keys that must be there and hold finite numbers.
      - Tensors and arrays are always scanned for NaN and infinity.
    type: list
    elements: str
    default: []
  fail_on:
    description:
      - V(suspect) fails the task for V(suspect), V(corrupt) and V(truncated) files, mismatches and missing files.
      - V(structural_only) also fails it for files that no loader could vouch for whole.
      - V(never) only reports.
    type: str
    choices: [suspect, structural_only, never]
    default: suspect
  jobs:
    description: How many files are read at once. The default is one a core.
    type: int
extends_documentation_fragment:
  - tenant.gpu.attributes
seealso:
  - module: tenant.gpu.pull
"""

EXAMPLES = r"""
- name: Load a checkpoint
  tenant.gpu.artifact_verify:
    path: results/digits-1201-160203-9f3a/cells/main/out/best.pt
    keys: [model]

- name: Load a run again, against the manifest made on the box
  tenant.gpu.artifact_verify:
    path: results/digits-1201-160203-9f3a
    manifest: results/digits-1201-160203-9f3a/MANIFEST.json
    artifacts:
      - {path: best.pt, format: torch, keys: [model]}
      - {path: metrics.json, format: json, finite: [loss]}

- name: Look at a folder of downloads without failing
  tenant.gpu.artifact_verify:
    path: downloads
    fail_on: never
  register: downloads
"""

RETURN = r"""
path:
  description: What was verified.
  returned: always
  type: str
  sample: /srv/results/digits-1201-160203-9f3a
artifacts:
  description: One entry a file, as the receipt has them.
  returned: always
  type: list
  elements: dict
  contains:
    path:
      description: Relative to O(path) where that is a folder. Bytes that are no UTF-8 are escaped as U+EF80 to U+EFFF.
      type: str
    format:
      description: The format it was read as.
      type: str
    verdict:
      description:
        - V(loaded) was read whole, and its checksums, shapes and numbers hold.
        - V(readable) has no content that a loader could check; only its hash vouches for it.
        - V(structural_only) has the right structure, but something in it could not be looked at.
        - V(suspect) is no result although it may load (NaN weights, a web page, a git-LFS pointer, zeros).
        - V(corrupt) and V(truncated) are damaged.
      type: str
    detail:
      description: The fact that decided it.
      type: str
    facts:
      description: Counts and headline values that were read from the file.
      type: dict
    size:
      description: Bytes.
      type: int
    sha256:
      description: Of the bytes that were loaded.
      type: str
  sample:
    - path: cells/main/out/best.pt
      format: torch
      verdict: loaded
      detail: 24 tensors, 1191946 elements, all finite; torch zip, 24 storages; CRCs checked
      facts: {tensors: 24, elements: 1191946}
      size: 4771112
      sha256: 70442d482176b3c2f74668eee30714001d33731ce7ecf67dd9f98694f760f8c8
worst:
  description: The worst verdict of all.
  returned: always
  type: str
  sample: loaded
failed_count:
  description: Artifacts that are suspect or worse, mismatches and missing files.
  returned: always
  type: int
  sample: 0
mismatched:
  description: Files whose bytes are not those of the manifest.
  returned: always
  type: list
  elements: str
  sample: []
differences:
  description: Of each such file the C(path), and the C(size) and C(sha256) that were C(wanted) and C(found).
  returned: always
  type: list
  elements: dict
  sample: []
missing:
  description: Files of the manifest that are not here.
  returned: always
  type: list
  elements: str
  sample: []
strangers:
  description: Files here that the manifest does not name.
  returned: always
  type: list
  elements: str
  sample: []
files:
  description: How many files were read.
  returned: always
  type: int
  sample: 31
bytes:
  description: How many bytes they have.
  returned: always
  type: int
  sample: 4871112
"""
