#!/bin/sh
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Prints the Python interpreters that really run and can make a virtual environment, one a version, newest first:
#     3.13 /usr/bin/python3.13
# A version manager's shim may exist and not run; Debian's python3 may lack ensurepip: neither is printed.
# Looked at: python3.13, 3.12 and 3.11 and python3 on PATH, then the interpreters below $PYENV_ROOT/versions.

set -u
probe='import sys, venv, ensurepip, ssl
if (3, 11) <= sys.version_info[:2] <= (3, 13):
    print("%d.%d" % sys.version_info[:2], sys.executable)'

candidates() {
    for name in python3.13 python3.12 python3.11 python3; do
        command -v "$name"
    done
    # A shim hides the system's own interpreter of the same name.
    for version in 3.13 3.12 3.11; do
        printf '%s\n' "/usr/local/bin/python$version" "/usr/bin/python$version"
    done
    printf '%s\n' "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/*/bin/python3
}

candidates | while IFS= read -r python; do
    if [ -x "$python" ]; then "$python" -c "$probe" 2>/dev/null </dev/null; fi
done | sort -t . -k 2,2nr -s | awk '!seen[$1]++'
