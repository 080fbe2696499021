# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A seccomp filter that lets the box's root give files away, as a real root can.

A user namespace made without privilege knows one user, so `chown` to any other fails there with EINVAL, and with it
`rsync -a`, `tar -x` and `cp -a` of somebody else's files. The filter lets these calls succeed without doing anything:
the files stay root's.
"""

from __future__ import annotations

import platform
import struct

_LD_W_ABS, _JEQ_K, _RET_K = 0x20, 0x15, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO_0 = 0x7FFF0000, 0x00050000  # linux/seccomp.h: SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with errno 0
_OFFSET_CALL, _OFFSET_ARCH = 0, 4  # struct seccomp_data

_CALLS = {  # machine → (AUDIT_ARCH of linux/audit.h, numbers of chown, fchown, lchown, fchownat)
    "x86_64": (0xC000003E, (92, 93, 94, 260)),
    "aarch64": (0xC00000B7, (55, 54)),
}


def ownership_filter() -> bytes | None:
    """The BPF program for this machine, as `bwrap --seccomp` reads it; None on a machine whose calls are not known."""
    known = _CALLS.get(platform.machine())
    if known is None:
        return None
    arch, calls = known
    to_allow = len(calls) + 1  # from the check of the architecture, over the load and the comparisons
    program = [
        (_LD_W_ABS, 0, 0, _OFFSET_ARCH),
        (_JEQ_K, 0, to_allow, arch),
        (_LD_W_ABS, 0, 0, _OFFSET_CALL),
        *((_JEQ_K, len(calls) - index, 0, call) for index, call in enumerate(calls)),
        (_RET_K, 0, 0, _ALLOW),
        (_RET_K, 0, 0, _ERRNO_0),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
