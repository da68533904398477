"""The profiler's files, brought here from where the server's workers wrote them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from sm86.errors import CouldNotRun
from sm86.host.docker import DockerGateway

SLACK_S = 2.0
"""File systems keep times more coarsely than clocks tell them."""


def from_folder(folder: Path, since: float, target: Path) -> tuple[str, ...]:
    """Move the files that were written to `folder` from `since` (seconds since the epoch) on; their names.

    Raises CouldNotRun: unreadable, or no space.
    """
    moved = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_file() and path.stat().st_mtime >= since - SLACK_S:
                shutil.move(path, target / path.name)
                moved.append(path.name)
    except OSError as error:
        raise _fault(error, target) from None
    return tuple(moved)


def from_container(docker: DockerGateway, container: str, folder: str, since: float, target: Path) -> tuple[str, ...]:
    """Move the files that were written to a folder of the container from `since` on; their names.

    The folder lies in the cache volume, which outlives the container, so they are removed there once they are here.
    Raises CouldNotRun: no space.
    """
    found = docker.ask(lambda api: api.get_archive(container, folder))
    if found is None:
        return ()
    chunks = iter(found[0])
    copied = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=cast(IO[bytes], _Stream(chunks)), mode="r|") as archive:
            for member in archive:
                # the last part of the name alone: what a container says must not choose a place here
                name = os.path.basename(member.name)
                if not member.isreg() or not name or name.startswith(".") or member.mtime < since - SLACK_S:
                    continue
                content = archive.extractfile(member)
                assert content is not None
                _write(target / name, content)
                copied.append(name)
    except tarfile.TarError as error:
        raise CouldNotRun(f"the traces could not be copied from {container}: {error}", "run it again") from None
    except OSError as error:
        raise _fault(error, target) from None
    _remove(docker, container, [f"{folder}/{name}" for name in copied])
    return tuple(copied)


def _remove(docker: DockerGateway, container: str, paths: Sequence[str]) -> None:
    def run(api: Any) -> None:
        made = api.exec_create(container, ["rm", "-f", "--", *paths])
        api.exec_start(made["Id"])

    if paths:
        docker.ask(run)


def _write(path: Path, content: IO[bytes]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _fault(error: OSError, target: Path) -> CouldNotRun:
    where = error.filename or target
    return CouldNotRun(
        f"the traces cannot be kept at {where}: {error.strerror or error}", "free some space, or use --out"
    )


class _Stream:
    """A file to read from, made of chunks: a trace is never wholly in memory."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        size = len(self._rest) if size < 0 else size
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
