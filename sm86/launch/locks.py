"""One file for each GPU (or for the CPU): while a server of ours holds its lock, no second one starts there.

The kernel keeps the lock, so it is gone when the last holder is, however that ended. The launcher takes it alone,
writes who it is, and keeps it shared through exec; every process of the server takes a share of its own (`hold`,
a vLLM plugin), as processes that vLLM spawns inherit no file. So a worker that outlives its server still holds
the GPU that it still occupies.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json

HELD_VARIABLE = "SM86_LOCK_FILES"
"""The lock files of this server, joined by colons: what its processes hold as well."""

WAIT_S = 2.0
"""How long to wait for a server that is just ending; its workers need a moment after it."""

_held: list[int] = []


def acquire(folder: Path, names: Sequence[str], envelope: str, wait_s: float = WAIT_S) -> tuple[Path, ...]:
    """Take the locks of these names, all or none, and return their files; they are held until the process ends.

    Raises CouldNotRun: another server holds one (it is named), or the folder cannot be written.
    """
    paths = tuple(folder / f"{name}.lock" for name in sorted(names))
    deadline = time.monotonic() + wait_s
    taken: list[int] = []
    try:
        for path in paths:
            taken.append(_take(path, deadline))
        for path, handle in zip(paths, taken, strict=True):
            _write_owner(handle, envelope)
            _share(path, handle)
            os.set_inheritable(handle, True)
    except BaseException:
        for handle in taken:
            os.close(handle)
        raise
    _held.extend(taken)
    return paths


def release() -> None:
    """Give the locks of this process back; only for a start that is given up."""
    while _held:
        os.close(_held.pop())


def hold() -> None:
    """Take a share of the server's locks in this process (entry point `vllm.general_plugins`).

    Never fails and imports nothing of vLLM: the launcher has refused by now whatever there was to refuse.
    """
    if _held:
        return
    for text in os.environ.get(HELD_VARIABLE, "").split(":"):
        try:
            handle = os.open(text, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            continue
        _held.append(handle)


def _take(path: Path, deadline: float) -> int:
    while True:
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read_owner(handle)
            os.close(handle)
            if time.monotonic() >= deadline:
                raise _busy(path, owner) from None
            time.sleep(0.1)
            continue
        except OSError as error:
            os.close(handle)
            raise CouldNotRun(
                f"the lock file {path} cannot be locked: {error.strerror}",
                "put the lock folder on a file system that has locks (SM86_LOCK_DIR)",
            ) from None
        if _is_still(path, handle):
            return handle
        # someone removed the file between opening and locking; another may hold the new one
        os.close(handle)


def _share(path: Path, handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # the change from alone to shared is not one step for the kernel: another start may come between
        raise _busy(path, _read_owner(handle)) from None


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise CouldNotRun(
            f"the lock folder {path.parent} cannot be written: {error.strerror}",
            f"let user {os.getuid()} write there, or name another folder in SM86_LOCK_DIR",
        ) from None
    if os.fstat(handle).st_uid == os.getuid():
        # containers that share the folder may run as other users
        os.fchmod(handle, 0o666)
    return handle


def _is_still(path: Path, handle: int) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    own = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)


def _write_owner(handle: int, envelope: str) -> None:
    owner = {
        "envelope": envelope,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    # in place: a file renamed over this one would carry no lock
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(owner).encode(), 0)


def _read_owner(handle: int) -> Mapping[str, Any]:
    try:
        value = parse_json(os.pread(handle, 4096, 0))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _busy(path: Path, owner: Mapping[str, Any]) -> CouldNotRun:
    name = path.name.removesuffix(".lock")
    what = "the CPU is" if name == "cpu" else f"{name} is"
    envelope = owner.get("envelope")
    if not envelope:
        return CouldNotRun(f"{what} in use by another server of this product", "stop that one first")
    where = f"{owner.get('host')} (process {owner.get('pid')})"
    if owner.get("host") == socket.gethostname() and not _is_alive(owner.get("pid")):
        return CouldNotRun(
            f"{what} in use: {envelope} on {where} has ended, but workers of it still run",
            f"end them (invoke down --envelope {envelope}, or kill the processes called VLLM::)",
        )
    return CouldNotRun(
        f"{what} in use: {envelope} runs on {where} since {owner.get('started')}",
        f"stop {envelope} first (docker compose stop {envelope}, or invoke down --envelope {envelope})",
    )
