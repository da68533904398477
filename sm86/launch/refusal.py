"""Saying a refusal once. A container that refuses to start is restarted at once, some times; the same words again
would bury the first.

The mark holds what was said last and when the process ended. It silences only the very same words, only shortly
after, and only when everything was checked anew: another refusal is another text and is said.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sm86.errors import CouldNotRun, Sm86Error
from sm86.files import write_atomic
from sm86.json_text import parse as parse_json

WINDOW_S = 10.0
"""Docker restarts after 0.1, 0.2, 0.4 s. A person who reads, mends and starts the same container again takes longer,
and must be told again if it did not help."""

KEPT_S = 3600.0


def mark_paths(shared: Path) -> tuple[Path, ...]:
    """Where the mark may lie, best first: in a folder that outlives the restart (a container's own /tmp is often memory
    and starts empty), under the container's own name; else in the temporary folder."""
    name = f"refusal-{socket.gethostname()}.json"
    return (shared / name, Path(tempfile.gettempdir()) / f"sm86-{name}")


def words(error: Sm86Error) -> str:
    return f"sm86: {error.what}\nmend: {error.mend}\n"


def say(error: Sm86Error, began: float, marks: Sequence[Path]) -> int:
    """Print the refusal on stderr, two lines, and return the exit code. began: when this process started, seconds since
    the epoch; no marks: no silence (a process of the machine, where nobody restarts it)."""
    text = words(error)
    if not any(_was_just_said(text, began, mark) for mark in marks):
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # the log's disk is full: without this Python tries again at its end and changes the exit code
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    for mark in marks:
        if _leave(text, mark):
            _forget_old(mark)
            break
    return error.exit_code


def _was_just_said(text: str, began: float, mark: Path) -> bool:
    try:
        handle = os.open(mark, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return False
            value = parse_json(file.read(4096))
        return value["sha256"] == _digest(text) and 0 <= began - float(value["ended"]) <= WINDOW_S
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _leave(text: str, mark: Path) -> bool:
    # a container without a writable place says it again on every restart; that is no reason to fail otherwise
    try:
        write_atomic(mark, json.dumps({"sha256": _digest(text), "ended": time.time()}), mode=0o600)
    except CouldNotRun:
        return False
    return True


def _forget_old(mark: Path) -> None:
    """Remove marks of containers that are long gone; the folder is shared and would fill up."""
    for other in mark.parent.glob("*refusal-*.json"):
        with contextlib.suppress(OSError):
            if time.time() - other.lstat().st_mtime > KEPT_S:
                other.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
