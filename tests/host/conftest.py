"""A Docker engine that is not one: answers `/version`, `/info` and a few questions over a unix socket as told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from types import SimpleNamespace
from typing import Any

import pytest

Answer = tuple[int, bytes] | None
"""Status and body; None: say nothing until the client gives up."""

VERSION = {"ApiVersion": "1.44", "Version": "25.0.0", "Os": "linux", "Arch": "amd64"}
INFO = {"Runtimes": {"runc": {}, "nvidia": {}}, "OSType": "linux", "SecurityOptions": ["name=seccomp"]}


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def as_json(value: Any, status: int = 200) -> Answer:
    return status, json.dumps(value).encode()


def healthy(path: str) -> Answer:
    """What a good engine says to the first two questions; anything else is not found."""
    if path.endswith("/version"):
        return as_json(VERSION)
    if path.endswith("/info"):
        return as_json(INFO)
    return as_json({"message": "no such thing"}, 404)


@contextmanager
def engine(folder: Path, answer: Callable[[str], Answer]) -> Iterator[str]:
    """Serve until the block ends; gives the value for DOCKER_HOST."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = answer(self.path.split("?")[0])
            if found is None:
                done.wait(30)
                return
            status, body = found
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *args: Any) -> None:
            pass

    path = folder / "docker.sock"
    server = _Server(str(path), Handler)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"unix://{path}"
    finally:
        done.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def fake_engine() -> SimpleNamespace:
    """The stand-in engine's parts: `engine(folder, answer)`, `healthy`, `as_json`, `VERSION`, `INFO`."""
    return SimpleNamespace(engine=engine, healthy=healthy, as_json=as_json, VERSION=VERSION, INFO=INFO)
