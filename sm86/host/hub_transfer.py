"""One file from the hub into a part on disk: goes on where the part ends, and with every broken connection anew."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Protocol, cast

from sm86.errors import CouldNotRun
from sm86.host.hub import TRIES, Broken, Hub, Listing, RemoteFile, pause_s

CHUNK = 1 << 20

MOST_FAILURES = 200
"""Failures altogether, for a connection that breaks after every few bytes."""


class Progress(Protocol):
    """What is told while files come. Called from several threads."""

    def advance(self, count: int) -> None: ...

    def say(self, text: str) -> None: ...


class Digests:
    """A file's SHA-256 as it comes, and git's hash where the hub lists no other."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._git = None if file.sha256 else hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def right(self) -> bool:
        if self._git is not None:
            return self._git.hexdigest() == self._file.git_sha1
        return self.sha256 == self._file.sha256


@dataclass(slots=True)
class Transfer:
    """The receiving of one file. at: bytes of it that are there; digests: over exactly those."""

    hub: Hub
    listing: Listing
    file: RemoteFile
    part: Path
    progress: Progress
    wait: Callable[[float], object]
    stop: threading.Event
    at: int = 0
    digests: Digests | None = None

    def receive(self) -> Digests | None:
        """Bring the part to its full size; its digests, or None when stopped.

        Raises CouldNotRun: the disk, the network for too long, or a hub that sends something else. What has come
        stays in the part.
        """
        # appending, so that what another program did to the part in between is at worst a wrong hash
        with disk(self.part.parent), open(self.part, "a+b") as opened:
            part = cast(BufferedRandom, opened)
            self._resume(part)
            failures = in_a_row = 0
            while self.at < self.file.size:
                before = self.at
                broken = self._some(part)
                if self.stop.is_set():
                    return None
                if broken is None:
                    continue
                failures, in_a_row = failures + 1, 0 if self.at > before else in_a_row + 1
                if in_a_row >= TRIES or failures >= MOST_FAILURES:
                    raise CouldNotRun(
                        f"{self.file.name} does not come: {broken}",
                        "what has come is kept: run it again when the network is better",
                    )
                seconds = pause_s(broken, in_a_row)
                self.progress.say(f"{self.file.name}: {broken}; again in {seconds:.0f} s")
                self.wait(seconds)
            part.flush()
            os.fsync(part.fileno())
        return self.digests

    def _resume(self, part: BufferedRandom) -> None:
        """Hash what the part holds already."""
        self.at, self.digests = 0, Digests(self.file)
        if part.seek(0, os.SEEK_END) > self.file.size:
            part.truncate(0)
        part.seek(0)
        while data := part.read(CHUNK):
            self.digests.update(data)
            self.at += len(data)
        if self.at:
            self.progress.say(f"{self.file.name}: going on after {self.at:,} bytes")

    def _some(self, part: BufferedRandom) -> Broken | None:
        """Receive until the answer ends; why it broke, or None when the file is whole or this was stopped."""
        try:
            with self.hub.open(self.listing, self.file, self.at) as (begin, response):
                if begin != self.at:
                    # a server without ranges: what is there already comes again
                    self.progress.advance(-self.at)
                    part.truncate(0)
                    self.at, self.digests = 0, Digests(self.file)
                while not self.stop.is_set() and (data := _read(response)):
                    self._take(part, data)
        except Broken as broken:
            return broken
        whole = self.at >= self.file.size or self.stop.is_set()
        return None if whole else Broken("the connection ended before the file did")

    def _take(self, part: BufferedRandom, data: bytes) -> None:
        if self.at + len(data) > self.file.size:
            raise CouldNotRun(
                f"the hub sends more of {self.file.name} than it lists",
                "try again later; a proxy or mirror may change what it passes on",
            )
        part.write(data)
        assert self.digests is not None
        self.digests.update(data)
        self.at += len(data)
        self.progress.advance(len(data))


@contextlib.contextmanager
def disk(target: Path) -> Iterator[None]:
    """Faults of the disk in words. Those of the network do not come here: they are Broken."""
    try:
        yield
    except OSError as error:
        raise CouldNotRun(
            f"cannot write to {target}: {error.strerror or error}",
            "make room, or mend the disk, and run it again: what has come is kept",
        ) from None


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except TimeoutError:
        raise Broken("no byte came for too long") from None
    except (OSError, http.client.HTTPException) as error:
        raise Broken(getattr(error, "strerror", None) or type(error).__name__) from None
