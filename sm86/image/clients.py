"""Which docker client can build this image: one with buildx, or one old enough to have BuildKit built in. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

BUILT_IN_UNTIL = (23, 0)
"""From this client version on, BuildKit is no longer in the client and needs the buildx plugin."""

BUILDKIT_SINCE = (18, 9)
"""Older clients know no BuildKit at all."""


@dataclass(frozen=True, slots=True)
class Client:
    """A docker program: its path, version and whether the buildx plugin answers."""

    program: str
    version: tuple[int, ...]
    has_buildx: bool

    @property
    def can_build(self) -> bool:
        return self.has_buildx or BUILDKIT_SINCE <= self.version[:2] < BUILT_IN_UNTIL

    def describe(self) -> str:
        plugin = "with buildx" if self.has_buildx else "without buildx"
        return f"{self.program} ({'.'.join(map(str, self.version))}, {plugin})"


def client_version(words: str) -> tuple[int, ...] | None:
    """The version in what `docker --version` prints; None for anything else (podman's stand-in, a wrapper)."""
    found = re.match(r"Docker version (\d+)\.(\d+)(?:\.(\d+))?", words.strip())
    return tuple(int(part) for part in found.groups() if part) if found else None


def choose(clients: tuple[Client, ...]) -> Client | None:
    """The first that can build, in the order given; None where none can."""
    return next((client for client in clients if client.can_build), None)
