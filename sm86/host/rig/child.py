"""A program whose answers come line by line, with a limit for each wait: what it told before it went silent is kept."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from sm86.json_text import parse as parse_json

MOST_LINES = 100_000
LONGEST_LINE = 1 << 20
KILLED_S = 0.5
"""One that is not stuck is gone in milliseconds."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: "done", "silent" (it was left behind), "missing" (no such program); its exit code; words: the last
    line that it wrote to stderr."""

    how: str
    code: int | None = None
    words: str = field(default="", compare=False)


def json_lines(
    argv: Sequence[str], silence_s: float, total_s: float, stdin: bytes = b""
) -> Iterator[dict[str, Any] | Ended]:
    """Each JSON object the program prints, then how it ended. Lines that are no JSON object are passed over.

    silence_s: longest wait for the next line; total_s: for the whole. One that exceeds them is killed and not waited
    for: stuck inside a driver it cannot even be killed.
    """
    errors = tempfile.TemporaryFile()  # noqa: SIM115  it is closed where the child's end is known
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    except OSError:
        errors.close()
        yield Ended("missing")
        return
    lines: queue.Queue[bytes | None] = queue.Queue(MOST_LINES)
    threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
    threading.Thread(target=_feed, args=(child.stdin, stdin), daemon=True).start()
    deadline = time.monotonic() + total_s
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                # one that talks for ever is as little use as a silent one
                yield Ended("silent")
                return
            try:
                line = lines.get(timeout=min(silence_s, left))
            except queue.Empty:
                yield Ended("silent")
                return
            if line is None:
                break
            try:
                value = parse_json(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
        try:
            code = child.wait(timeout=max(0.1, min(silence_s, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            yield Ended("silent")
            return
        yield Ended("done", code, _last_line(errors))
    finally:
        if child.poll() is None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                child.kill()
                child.wait(timeout=KILLED_S)
        errors.close()


def _last_line(stream: IO[bytes]) -> str:
    size = stream.seek(0, 2)
    stream.seek(max(0, size - 4096))
    lines = [line for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]
    # Docker adds a hint after its reason
    told = [line for line in lines if not line.startswith(("Run 'docker", "See 'docker"))]
    return " ".join(told[-1].split())[:300] if told else ""


def _pump(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        while line := stream.readline(LONGEST_LINE):
            lines.put(line)
    lines.put(None)


def _feed(stream: IO[bytes], text: bytes) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        stream.write(text)
