# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The request schemas of the vendor's file, in short."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from lab.dialects.runpod.problems import Problem
from lab.schema import Schema, violations

_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_CUDA: Schema = {"type": "string", "pattern": r"^\d+\.\d+$"}
_CONTAINER: Schema = {
    "args": _TEXT,
    "disk": {"type": "integer", "minimum": 1},
    "env": {"type": "object", "additionalProperties": _TEXT},
    "image": _TEXT,
    "ports": {"type": "array", "items": _TEXT},
    "registry": {"type": ["string", "null"]},
    "name": _NAME,
    "globalNetworking": {"type": "boolean"},
    "mounts": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "persistent": {
                "type": "object",
                "additionalProperties": False,
                "required": ["size", "path"],
                "properties": {"size": {"type": "integer", "minimum": 10}, "path": _TEXT},
            },
            "network": {
                "type": "array",
                "maxItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["volumeId", "path"],
                    "properties": {"volumeId": _TEXT, "path": _TEXT},
                },
            },
        },
    },
}
CREATE_POD: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "if": {"not": {"required": ["templateId"]}},
    "then": {"required": ["image"]},
    "properties": {
        **_CONTAINER,
        "templateId": _NAME,
        "cloud": {"enum": ["SECURE", "COMMUNITY"]},
        "cpu": {
            "type": "object",
            "additionalProperties": False,
            "required": ["id", "vcpuCount"],
            "properties": {"id": _NAME, "vcpuCount": {"type": "integer", "minimum": 2}},
        },
        "dataCenterIds": {"type": "array", "items": _TEXT},
        "gpu": {
            "type": "object",
            "additionalProperties": False,
            "required": ["id"],
            "properties": {
                "id": _TEXT,
                "count": {"type": "integer", "minimum": 1},
                "allowedCudaVersions": {"type": "array", "items": _CUDA},
                "minCudaVersion": _CUDA,
            },
        },
        "startJupyter": {"type": "boolean"},
        "startSsh": {"type": "boolean"},
    },
}
UPDATE_POD: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**_CONTAINER, "templateId": _TEXT, "locked": {"type": "boolean"}},
}
POD_ACTION: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["action"],
    "properties": {"action": {"enum": ["start", "stop", "restart", "terminate"]}},
}
SSH_KEYS: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["keys"],
    "properties": {
        "keys": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^(ssh|ecdsa|sk)-[^\s]+ [^\s]+([ \t][^\n\r]*)?$"},
        }
    },
}
_VOLUME_SIZE: Schema = {"type": "integer", "minimum": 10, "maximum": 4096}
CREATE_VOLUME: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "size", "dataCenter"],
    "properties": {
        "name": _NAME,
        "size": _VOLUME_SIZE,
        "dataCenter": _NAME,
        "type": {"enum": ["STANDARD", "HIGH_PERFORMANCE"]},
    },
}
UPDATE_VOLUME: Schema = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {"name": _NAME, "size": _VOLUME_SIZE},
}


async def read_body(request: web.Request, schema: Schema) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as wrong:
        raise Problem(400, "request could not be processed") from wrong
    errors = violations(body, schema)
    if errors:
        raise Problem(422, "Request validation failed.", errors)
    return body
