# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A bare HTTP client for the lab's RunPod dialect; every answer is held against the vendor's specification."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

SPECS_VARIABLE = "TENANT_SPECS"
GPU = "NVIDIA GeForce RTX 4090"
_SPEC_URI = "urn:runpod-v2"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]


@dataclass
class RunPodClient:
    """Plain requests to one lab. `checked` counts the answers that were held against the specification."""

    url: str
    key: str | None
    checked: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **query: Any) -> Answer:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            whole = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, whole, content, {**headers, "Content-Type": "application/json"})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, names, response.read().decode())
        finally:
            connection.close()
        if specification() and path != "/graphql":
            specification().check(method, path, answer)  # type: ignore[union-attr]  # there, or the test is skipped
            self.checked.append(f"{method} {path} {answer.status}")
        return answer

    def with_key(self, key: str | None) -> RunPodClient:
        return RunPodClient(self.url, key, self.checked)

    # What most tests need.

    def create(self, public_key: str | None = None, **more: Any) -> dict[str, Any]:
        """Create a pod that can be reached over SSH, and expect it to work."""
        body = pod_request(**more)
        if public_key:
            body["env"] = {**body.get("env", {}), "PUBLIC_KEY": public_key}
        answer = self.ask("POST", "/v2/pods", body)
        assert answer.status == 201, answer.text
        return answer.data

    def pod(self, pod_id: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/v2/pods/{pod_id}")
        assert answer.status == 200, answer.text
        return answer.data

    def act(self, pod_id: str, action: str) -> Answer:
        return self.ask("POST", f"/v2/pods/{pod_id}/action", {"action": action})

    def until(self, pod_id: str, true: Callable[[dict[str, Any]], Any], seconds: float = 20) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not true(pod := self.pod(pod_id)):
            assert time.monotonic() < deadline, f"after {seconds} s still {pod}"
            time.sleep(0.05)
        return pod

    def ready(self, pod_id: str) -> dict[str, Any]:
        return self.until(pod_id, lambda pod: pod["status"] == "RUNNING" and pod["ssh"]["direct"])

    def volume(self, name: str = "data", size: int = 10, centre: str = "US-KS-2") -> dict[str, Any]:
        answer = self.ask("POST", "/v2/network-volumes", {"name": name, "size": size, "dataCenter": centre})
        assert answer.status == 201, answer.text
        return answer.data


def pod_request(**more: Any) -> dict[str, Any]:
    return {
        "name": "job-1",
        "image": "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404",
        "gpu": {"id": GPU},
        "disk": 10,
        "ports": ["22/tcp"],
        "startSsh": True,
        **more,
    }


def ssh(pod: dict[str, Any], key: Path, command: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """Run a command in a pod through `ssh.direct`, with OpenSSH's own client."""
    there = pod["ssh"]["direct"]
    options = {
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "5",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    argv = ["ssh", "-F", "none", *words, "-i", str(key), "-p", str(there["port"]), f"root@{there['host']}", command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)


class Specification:
    """The vendor's OpenAPI file as a judge of answers."""

    def __init__(self, path: Path) -> None:
        self._document = json.loads(path.read_text())
        resource = Resource.from_contents(self._document, default_specification=DRAFT202012)
        self._registry: Registry[Any] = Registry().with_resource(_SPEC_URI, resource)

    def schema(self, pointer: str) -> Draft202012Validator:
        """The validator of a schema inside the document, for example /components/schemas/Pod."""
        return Draft202012Validator(
            {"$ref": f"{_SPEC_URI}#{pointer}"}, registry=self._registry, format_checker=FormatChecker()
        )

    def check(self, method: str, path: str, answer: Answer) -> None:
        """Raises AssertionError where status, media type, headers or body are not what the specification allows."""
        template = self._template(path)
        if template is None or method.lower() not in self._document["paths"][template]:
            assert answer.status in (401, 404, 405, 429), f"{method} {path}: not in the specification"
            pointer, content = "/components/responses/NotFoundError", "application/problem+json"
            self._check_body(f"{pointer}/content/{_escaped(content)}/schema", answer)
            return
        pointer, response = self._response(template, method.lower(), answer.status)
        allowed = response.get("content", {})
        if not allowed:
            assert answer.text == "", f"{method} {path} {answer.status}: a body where none is allowed"
            return
        assert answer.content_type in allowed, f"{method} {path} {answer.status}: {answer.content_type}"
        if answer.content_type.endswith("json"):
            self._check_body(f"{pointer}/content/{_escaped(answer.content_type)}/schema", answer)
        if answer.status < 500 and answer.status != 401:  # a caller that is not known has no quota
            assert {"ratelimit", "ratelimit-policy"} <= answer.headers.keys(), f"{method} {path}: no quota headers"

    def _check_body(self, pointer: str, answer: Answer) -> None:
        errors = [f"{error.json_path}: {error.message}" for error in self.schema(pointer).iter_errors(answer.data)]
        assert not errors, f"{pointer}: {errors}\n{answer.text}"

    def _template(self, path: str) -> str | None:
        plain = path.partition("?")[0]
        exact = [template for template in self._document["paths"] if template == plain]
        shaped = [
            template
            for template in self._document["paths"]
            if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), plain)
        ]
        return next(iter(exact + shaped), None)

    def _response(self, template: str, method: str, status: int) -> tuple[str, dict[str, Any]]:
        responses = self._document["paths"][template][method]["responses"]
        name = str(status) if str(status) in responses else "default"
        if status < 400:
            assert name != "default", f"{method} {template}: success status {status} is not in the specification"
        pointer = f"/paths/{_escaped(template)}/{method}/responses/{name}"
        reference = responses[name].get("$ref")
        if reference:
            pointer = reference.removeprefix("#")
            return pointer, self._document["components"]["responses"][reference.rpartition("/")[2]]
        return pointer, responses[name]


def _escaped(part: str) -> str:
    return quote(part.replace("~", "~0").replace("/", "~1"))


@cache
def specification() -> Specification | None:
    """The judge, or None where TENANT_SPECS names no folder."""
    folder = os.environ.get(SPECS_VARIABLE)
    return Specification(Path(folder) / "runpod-v2-openapi.json") if folder else None
