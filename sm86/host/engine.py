"""What every way of running a server looks like: up, verify, bench and demo do not care which one it is.

`sm86.host.compose` (a container) and `sm86.host.local` (a process) are the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sm86.boot.state import CREATED, EXITED, MISSING, RESTARTING, RUNNING, EngineState
from sm86.spec import Envelope

__all__ = [
    "CREATED",
    "ENGINES",
    "EXITED",
    "MISSING",
    "RESTARTING",
    "RUNNING",
    "EngineState",
    "ServerEngine",
    "Stopped",
]

ENGINES = ("docker", "local")


@dataclass(frozen=True, slots=True)
class Stopped:
    """What stopping did. `was`: the state before; forced: SIGKILL was needed; leftovers: processes still there."""

    was: EngineState
    seconds: float
    forced: bool = False
    leftovers: tuple[str, ...] = ()


class ServerEngine(Protocol):
    """One envelope's server on one engine."""

    kind: str
    envelope: Envelope

    @property
    def base_url(self) -> str:
        """http://127.0.0.1:<port> of the server that runs, or of the one that `start` would make."""
        ...

    def start(self) -> None:
        """Start it and return at once; Sm86Error when that cannot be done, with nothing left running."""
        ...

    def state(self) -> EngineState: ...

    def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False) -> Iterator[bytes]:
        """The server's output, oldest first; with `follow` until the process ends (blocks meanwhile).

        tail: only so many lines from the end; this_run: nothing from before the last restart of one that runs.
        Nothing where there is no server.
        """
        ...

    def stop(self) -> Stopped:
        """End the server and all its processes within its stop grace and a little; caches and weights stay."""
        ...

    def halt(self) -> None:
        """End what is left of a server that has died: it is not restarted; its state and log stay for inspection."""
        ...

    def differs(self) -> str | None:
        """What the running server has otherwise than `start` would make it, in words; None where nothing differs."""
        ...

    def describe(self) -> str:
        """What it is, in words: "container sm86-262k", "process 4711"."""
        ...

    def plan(self) -> tuple[str, ...]:
        """What `start` would do, one line each; nothing is done."""
        ...
