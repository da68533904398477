"""When a boot is given up: the whole of it is bounded, and so is silence, by what a phase may legitimately need. Pure.

Silence means that no new line came that tells of work. Lines that only say that others are waited for, and answers
to health checks, are no sign of life. Why each bound:
"""

from __future__ import annotations

from dataclasses import dataclass

from sm86.boot import phases

SILENCE_S = {
    # Compose creates the container within its own limit
    phases.IMAGE: 300.0,
    # eight workers import torch and vLLM from a cold disk: a minute was seen on a warm one
    phases.START: 300.0,
    # a 5 GB shard from a network folder at 20 MB/s takes 250 s between two lines; the Marlin repack says nothing
    phases.LOAD: 900.0,
    # the first boot compiles kernels (TileLang 4 to 17 s each, FlashInfer minutes) while all ranks wait without a word
    phases.PROFILE: 1200.0,
    # each graph prints; the first one of a size may compile as well
    phases.CAPTURE: 900.0,
    # the API server only builds its routes and renders the chat template
    phases.READY: 300.0,
}

NCCL_STALL_S = 180.0
"""Joining eight ranks takes seconds; where a log ended at the NCCL version for minutes, it was a dead peer link."""

UNREADY_S = 60.0
"""After `Application startup complete` the health check answers at once; a minute covers a loaded machine."""

LIMIT = "limit"
SILENCE = "silence"
NCCL_STALL = "nccl stall"
UNREADY = "unready"


@dataclass(frozen=True, slots=True)
class Expired:
    """Why it was given up: kind (LIMIT, SILENCE, NCCL_STALL, UNREADY), and the bound that was passed, in seconds."""

    kind: str
    seconds: float


class Deadline:
    """Bounds of one boot. Times are seconds on the caller's clock."""

    def __init__(self, limit_s: float, ranks: int, at: float = 0.0) -> None:
        """ranks: how many GPUs talk to each other; 1 has no NCCL to stall in."""
        self._limit_s = limit_s
        self._ranks = ranks
        self._zero = at
        self._last_life = at
        self._joining = False
        self._complete: float | None = None

    def life(self, at: float) -> None:
        """The server said something that tells of work."""
        self._last_life = at
        self._joining = False

    def nccl_named(self, at: float) -> None:
        """The ranks begin to join: the NCCL version was the last thing said."""
        self._last_life = at
        self._joining = self._ranks > 1

    def server_says_ready(self, at: float) -> None:
        """The log says that the API is up; the health check has to agree soon."""
        self._complete = self._complete if self._complete is not None else at

    def silent_for(self, now: float) -> float:
        return now - self._last_life

    def bound(self, phase: str) -> float:
        """How long silence may last now, in seconds."""
        return NCCL_STALL_S if self._joining and phase == phases.START else SILENCE_S[phase]

    def expired(self, phase: str, now: float) -> Expired | None:
        """What bound is passed now, if any; the whole limit first."""
        if now - self._zero >= self._limit_s:
            return Expired(LIMIT, self._limit_s)
        if self._complete is not None:
            return Expired(UNREADY, UNREADY_S) if now - self._complete >= UNREADY_S else None
        if self.silent_for(now) >= self.bound(phase):
            stalled = self._joining and phase == phases.START
            return Expired(NCCL_STALL if stalled else SILENCE, self.bound(phase))
        return None
