# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clients of the rental platforms. ``client`` is the only way in: no other file names a platform."""

from __future__ import annotations

import typing as t

from .autodl import AutoDL
from .base import Platform, PlatformError
from .featurize import Featurize
from .lambda_cloud import Lambda
from .manual import Manual
from .paperspace import Paperspace
from .runpod import RunPod
from .vastai import VastAi

CLIENTS: dict[str, type[Platform]] = {
    "runpod": RunPod,
    "manual": Manual,
    "autodl": AutoDL,
    "featurize": Featurize,
    "lambda": Lambda,
    "paperspace": Paperspace,
    "vastai": VastAi,
}


def client(api: str, environ: t.Mapping[str, str]) -> Platform:
    """The client that a profile names in ``profile_api``; keys come from ``environ``."""
    kind = CLIENTS.get(api)
    if kind is None:
        raise PlatformError(
            f"profile_api is {api!r}",
            means="No such client exists.",
            do=f"Use one of: {', '.join(sorted(CLIENTS))}.",
        )
    return kind(environ)  # type: ignore[call-arg]  # every client takes the environment; the ABC has no constructor
