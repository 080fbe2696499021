# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The platforms that the lab speaks. A platform is one module and one row here.

A module has `PLATFORM` (a `lab.market.Platform`), `routes(market, requests) -> aiohttp.web.Application` and
`exports(url, key) -> dict` (the environment that points a client at the lab).
"""

from __future__ import annotations

from types import ModuleType

from lab.dialects import autodl, featurize, lambda_cloud, paperspace, runpod, vastai

DIALECTS: dict[str, ModuleType] = {
    "runpod": runpod,
    "autodl": autodl,
    "featurize": featurize,
    "lambda": lambda_cloud,
    "paperspace": paperspace,
    "vastai": vastai,
}
