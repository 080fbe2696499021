# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The artifacts: what must exist (roster), what the box has (manifest), whether it is whole, and the proof of it.

``roster``, ``manifest`` and ``structure`` also run on the box, where they need nothing but Python 3.8; ``loaders``,
``verify`` and ``receipt`` stay on the controller.
"""
