# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An HTTP server that answers as a test tells it: for answers that no lab gives, over a real connection."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; ``body`` is parsed JSON, or None."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Script:
    """``tell("GET /path", answer, …)``: the answers in turn, the last one for ever.

    An answer is a status and a body (a string is sent as it stands, anything else as JSON), or ``"drop"``, which
    closes the connection without one.
    """

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, list[Any]] = field(default_factory=dict)

    def tell(self, call: str, *answers: Any) -> None:
        self.answers[call] = list(answers)

    def calls(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.asked]

    def next_answer(self, call: str) -> Any:
        waiting = self.answers.get(call, [(501, {"message": f"the script does not know {call}"})])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def _handle(self) -> None:
        place = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = json.loads(raw) if raw else None
        self.script.asked.append(Asked(self.command, place.path, dict(parse_qsl(place.query)), headers, body))
        answer = self.script.next_answer(f"{self.command} {place.path}")
        if answer == "drop":
            self.close_connection = True
            return
        status, content = answer
        text = (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if not text.startswith(b"<") else "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def scripted() -> Iterator[Script]:
    """A script and the server that follows it."""
    script = Script()
    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
