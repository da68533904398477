"""A stand-in for the model hub: a real HTTP server with the hub's addresses, which misbehaves on request."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "1234567890abcdef1234567890abcdef12345678"
REPOSITORY = "Intel/DeepSeek-V4-Flash-W4A16-AutoRound"
LARGE = 4096
"""Bytes from which a file counts as large: listed by its SHA-256, and served by a redirect."""

Answer = Callable[["Handler", str, bytes], None]
"""Misbehaviour: takes the handler, the file's name and its right contents, and answers."""


@dataclass
class StandIn:
    """The hub's state. faults: per file, answers to give in turn before the right one; listing: likewise for the list.

    seen: (path, headers) of every request; held: set to let go of answers that wait.
    """

    files: dict[str, bytes]
    faults: dict[str, list[Answer]] = field(default_factory=dict)
    listing: list[Answer] = field(default_factory=list)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    ranges: bool = True
    commit: str = COMMIT
    change_listing: Callable[[dict[str, Any]], Any] = lambda values: values
    other_host: str = ""
    endpoint: str = ""

    def asked(self, name: str) -> list[dict[str, str]]:
        """Headers of the requests for a file's bytes from the hub itself."""
        return [headers for path, headers in self.seen if path.endswith(f"/resolve/{self.commit}/{name}")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.hub
        hub.seen.append((self.path, dict(self.headers)))
        if self.path.startswith("/api/models/"):
            data = json.dumps(hub.change_listing(self._list())).encode()
            self._answer(hub.listing, "", data)
        elif f"/resolve/{hub.commit}/" in self.path:
            name = self.path.rsplit("/", 1)[1]
            data = hub.files.get(name)
            if data is None:
                self.status(404)
            elif len(data) >= LARGE and hub.other_host and not hub.faults.get(name):
                digest = hashlib.sha256(data).hexdigest()
                self.head(302, {"Location": f"{hub.other_host}/cdn/{name}", "X-Linked-Etag": f'"{digest}"'}, 0)
            else:
                self._answer(hub.faults.get(name, []), name, data)
        elif self.path.startswith("/cdn/"):
            self.right(hub.files[self.path.rsplit("/", 1)[1]])
        else:
            self.status(404)

    def _list(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.hub.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git}
            if len(data) >= LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": REPOSITORY, "sha": self.hub.commit, "siblings": siblings}

    def _answer(self, faults: list[Answer], name: str, data: bytes) -> None:
        if faults:
            faults.pop(0)(self, name, data)
        else:
            self.right(data)

    def start(self) -> int:
        """Where the request wants to begin."""
        asked = self.headers.get("Range", "")
        return int(asked.removeprefix("bytes=").split("-")[0]) if asked and self.hub.ranges else 0

    def right(self, data: bytes) -> None:
        start = self.start()
        if start:
            self.head(206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, len(data) - start)
        else:
            self.head(200, {}, len(data))
        self.wfile.write(data[start:])

    def head(self, code: int, headers: dict[str, str], length: int) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(length), "X-Repo-Commit": self.hub.commit, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def status(self, code: int, **headers: str) -> None:
        self.head(code, headers, 0)

    def leave(self) -> None:
        """End the connection without another word."""
        self.wfile.flush()
        self.close_connection = True


def status(code: int, **headers: str) -> Answer:
    return lambda handler, name, data: handler.status(code, **{k.replace("_", "-"): v for k, v in headers.items()})


def cut(count: int) -> Answer:
    """Promise everything, send `count` bytes, and go."""

    def answer(handler: Handler, name: str, data: bytes) -> None:
        start = handler.start()
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        handler.head(206 if start else 200, headers, len(data) - start)
        handler.wfile.write(data[start : start + count])
        handler.leave()

    return answer


def silent(after: int) -> Answer:
    """Send some bytes, then nothing until the test is over."""

    def answer(handler: Handler, name: str, data: bytes) -> None:
        start = handler.start()
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        handler.head(206 if start else 200, headers, len(data) - start)
        handler.wfile.write(data[start : start + after])
        handler.wfile.flush()
        handler.hub.held.wait(60)
        handler.leave()

    return answer


def wrong(handler: Handler, name: str, data: bytes) -> None:
    """Other bytes, as many."""
    handler.right(bytes(byte ^ 1 for byte in data))


def long(handler: Handler, name: str, data: bytes) -> None:
    """More bytes than are listed, without a promise of how many."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(data + b"more")
    handler.leave()


def lying(by: int) -> Answer:
    """A Content-Length that is not the file's."""

    def answer(handler: Handler, name: str, data: bytes) -> None:
        handler.head(200, {}, len(data) + by)
        handler.wfile.write(data)
        handler.leave()

    return answer


def redirect(location: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, name, data: handler.head(302, {"Location": location, **named}, 0)


def body(data: bytes) -> Answer:
    return lambda handler, name, right: handler.right(data)


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[StandIn]:
    """The hub on a port of its own."""
    hub = StandIn(files)
    handler = type("OneHub", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.held.set()
            server.shutdown()
            thread.join(10)
