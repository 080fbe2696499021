#!/bin/bash
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Makes everything ready for `make demo` (argument: demo) or `make test` (argument: test): the system's tools, then a
# virtual environment in the clone with the pinned packages. A call that finds all of it in place takes milliseconds.

set -euo pipefail
cd "$(dirname "$0")/.."

set_name=${1:?demo or test}
venv=.venv
# Which sets of packages are installed whole, and where. An environment without it is not whole and is made anew.
stamp=$venv/.bootstrapped
requirements=(requirements.txt requirements-lab.txt)
if [ "$set_name" = test ]; then requirements+=(requirements-test.txt); fi

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Installs Debian packages where that is possible, and says what to type where it is not.
need_packages() {
    local why=$1
    shift
    command -v apt-get >/dev/null || die "$why. Install what these Debian packages hold: $*"
    [ "$(id -u)" = 0 ] || die "$why. Type: sudo apt-get install $*"
    say "$why; installing with apt: $*"
    apt-get -qq update </dev/null || say "apt-get update failed; going on with the lists that are here"
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null </dev/null \
        || die "apt could not install them. Type: apt-get install $*"
}

system_tools() {
    local pair missing=() pairs=(ssh:openssh-client rsync:rsync tmux:tmux bwrap:bubblewrap unshare:util-linux)
    if [ "$set_name" = test ]; then pairs+=(rclone:rclone); fi
    for pair in "${pairs[@]}"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    if [ ${#missing[@]} -gt 0 ]; then need_packages "system tools are missing" "${missing[@]}"; fi
}

# The absolute path of the newest interpreter that serves.
choose_python() {
    local found
    found=$(tools/interpreters.sh)
    if [ -z "$found" ]; then
        need_packages "no Python 3.11 to 3.13 with venv, ensurepip and ssl was found" python3 python3-venv
        found=$(tools/interpreters.sh)
    fi
    [ -n "$found" ] || die "apt's python3 is none of 3.11, 3.12 and 3.13. Install one of them and try again"
    head -n 1 <<<"$found" | cut -d' ' -f2-
}

# A virtual environment holds absolute paths: in a folder that was moved it is not whole any more.
whole() { grep -qxF "folder $PWD" "$stamp" 2>/dev/null && "$venv/bin/python" -c '' 2>/dev/null; }

digest() { cat "${requirements[@]}" | sha256sum | cut -d' ' -f1; }

make_venv() {
    local python
    python=$(choose_python)
    say "making $venv with $python"
    rm -rf "$venv"
    "$python" -m venv "$venv"
}

# The user's pip configuration (mirrors, proxies, certificates) is used as it is; only a wish to install into the home
# cannot be met inside a virtual environment.
install_packages() {
    local file arguments=()
    for file in "${requirements[@]}"; do arguments+=(-r "$file"); done
    say "installing the pinned packages of ${requirements[*]}; the first time takes a minute or two"
    PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install -q "${arguments[@]}" </dev/null \
        || die "pip could not install them (its reason is above; a mirror that lags behind may lack a version). Try again"
}

ready() { whole && grep -qxF "$set_name $(digest)" "$stamp"; }

prepare() {
    local kept=""
    ready && return
    if whole; then kept=$(grep -vE "^(folder|$set_name) " "$stamp" || true); else make_venv; fi
    rm -f "$stamp"
    install_packages
    printf '%s\n' "folder $PWD" "$set_name $(digest)" ${kept:+"$kept"} >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

system_tools
if ready; then exit 0; fi
# Two commands at once: the second waits, and then finds the first one's work done.
exec 9>.bootstrap.lock
flock 9
prepare
