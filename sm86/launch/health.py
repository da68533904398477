"""The container's health check.

    python3 -P -m sm86.launch.health [--port N]        exit 0: the server answers and its engine moves; 1: not

/health says no when the engine process is dead, but yes when it hangs (all GPUs busy in a collective that never
ends). So the engine's own step counter is looked at as well: requests there and no step for STALL_S is unhealthy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.json_text import parse as parse_json

TIMEOUT_S: Mapping[str, float] = {"/health": 6.0, "/metrics": 2.0}
"""For each answer; the container's own limit for the whole check is 10 s."""

STALL_S = 300.0
"""A step takes seconds at most, but the first one of a new shape may compile kernels for minutes."""

MAX_METRICS = 8 * 1024 * 1024
DEFAULT_PORT = 8000

_SAMPLE = re.compile(r"(?P<name>vllm:[a-z_]+)(?:\{[^}]*\})? (?P<value>[0-9.eE+-]+)")
STEPS = "vllm:iteration_tokens_total_count"
REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def serve_file() -> Path:
    """Where the launcher says which address the server gets."""
    return Path(tempfile.gettempdir()) / f"sm86-serve-{os.getuid()}.json"


def _state_file(port: int) -> Path:
    return Path(tempfile.gettempdir()) / f"sm86-health-{os.getuid()}-{port}.json"


def announce(host: str | None, port: int) -> None:
    """Write the address for the health check. Raises CouldNotRun where the temporary folder cannot be written."""
    write_atomic(serve_file(), json.dumps({"host": reachable(host), "port": port}), mode=0o600)


def reachable(host: str | None) -> str:
    """The address at which a server bound to `host` answers from beside it."""
    return "127.0.0.1" if host in (None, "", "0.0.0.0", "localhost") else "::1" if host == "::" else str(host)


def samples(text: str) -> dict[str, float]:
    """Sums of the samples of vLLM's metrics by name, over engines."""
    found: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        try:
            found[match["name"]] = found.get(match["name"], 0.0) + float(match["value"])
        except ValueError:
            continue
    return found


def judge(now: float, metrics: Mapping[str, float], before: Mapping[str, float] | None) -> tuple[str, dict[str, float]]:
    """What is wrong ("" for nothing) and what to remember: the step count, and since when it is the same with requests
    there."""
    steps = metrics.get(STEPS)
    if steps is None:
        return "", {}
    requests = sum(metrics.get(name, 0.0) for name in REQUESTS)
    moved = before is None or before.get("steps") != steps or requests == 0
    since = now if moved else float((before or {}).get("since", now))
    # a clock set back must not make a healthy server hang for ever
    since = min(since, now)
    state = {"steps": steps, "since": since}
    if now - since >= STALL_S:
        return f"{requests:.0f} requests and no engine step for {now - since:.0f} s", state
    return "", state


def check(host: str, port: int, get: Callable[[str, int, str], tuple[int, str]] | None = None) -> str:
    """What is wrong with the server at that address, "" for nothing."""
    # only the check itself needs it; the launcher, which announces the address, starts without
    from http.client import HTTPException

    ask = get or _get
    try:
        status, _ = ask(host, port, "/health")
    except (OSError, HTTPException) as error:
        return f"no answer from {host}:{port}: {error or type(error).__name__}"
    if status != 200:
        return f"/health answers {status}: the engine is dead" if status == 503 else f"/health answers {status}"
    try:
        status, text = ask(host, port, "/metrics")
    except (OSError, HTTPException):
        return ""
    return _stalled(port, text) if status == 200 else ""


def _stalled(port: int, text: str) -> str:
    path = _state_file(port)
    try:
        before = parse_json(path.read_text())
        before = before if isinstance(before, dict) else None
    except (OSError, ValueError):
        before = None
    problem, state = judge(time.time(), samples(text), before)
    try:
        write_atomic(path, json.dumps(state), mode=0o600)
    except CouldNotRun:
        return ""
    return problem


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    from http.client import HTTPConnection

    connection = HTTPConnection(host, port, timeout=TIMEOUT_S[path])
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read(MAX_METRICS).decode("utf-8", "replace")
    finally:
        connection.close()


def _address(port: int | None) -> tuple[str, int]:
    if port is not None:
        return "127.0.0.1", port
    try:
        said = parse_json(serve_file().read_text())
        return str(said["host"]), int(said["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return "127.0.0.1", DEFAULT_PORT


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -P -m sm86.launch.health", description="Is the server healthy?")
    parser.add_argument("--port", type=int, help="port of the server (default: the one the launcher gave it)")
    problem = check(*_address(parser.parse_args(arguments).port))
    if problem:
        print(f"unhealthy: {problem}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
