# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rental market on your own machine: platforms' HTTP APIs, a meter, and sandboxed SSH boxes.

`python -m lab` is the command line, `lab.api.Lab` the Python interface for tests.
"""

from __future__ import annotations
