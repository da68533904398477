"""Who is told how far a benchmark is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from several threads."""

    def stage(self, text: str, total: int, unit: str) -> None:
        """A new stage of `total` units begins; the one before it has ended."""

    def advance(self, count: int) -> None:
        """`count` more units of the stage are done."""


class Silent:
    """Tells nobody."""

    def stage(self, text: str, total: int, unit: str) -> None:
        pass

    def advance(self, count: int) -> None:
        pass
