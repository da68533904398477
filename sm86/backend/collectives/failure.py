"""How the collective fails: set-up that some rank could not do, and a call whose peers did not come. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STOPPED_WORDS = "host all-reduce stopped"
FINE, TIMED_OUT, STOPPED, PEER_GONE, ABORTED = range(5)


class SetupFailed(RuntimeError):
    """The group has no such collective; every rank of it raises this with the same reason, and NCCL can take over."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ended the group: the first record of it, the same on every rank.

    code: TIMED_OUT, PEER_GONE or ABORTED; rank: who found it; call: the number of its all-reduce, from 0; missing:
    ranks that did not come; algorithm and bytes_: of that call, None and 0 where no wait was going on.
    """

    code: int
    rank: int
    call: int
    missing: tuple[int, ...]
    algorithm: str | None
    bytes_: int

    def words(self, timeout_s: float) -> str:
        """One sentence that names the missing ranks."""
        ranks = "rank " + ", ".join(map(str, self.missing)) if len(self.missing) == 1 else f"ranks {self.missing}"
        if self.code == PEER_GONE:
            return f"the process of {ranks} has ended (seen by rank {self.rank}, which had entered call {self.call})"
        if self.code == TIMED_OUT:
            what = f"{self.algorithm}, {self.bytes_} bytes" if self.algorithm else "unknown"
            return f"rank {self.rank} waited {timeout_s:g} s for {ranks} in call {self.call} ({what})"
        return f"rank {self.rank} gave the group up in call {self.call}"


class CollectiveFailed(RuntimeError):
    """A peer did not come. Results since then are NaN; the communicator is of no use any more."""

    def __init__(self, verdict: Verdict | None, timeout_s: float) -> None:
        super().__init__(
            f"{STOPPED_WORDS}: "
            + (verdict.words(timeout_s) if verdict else "another rank ended the wait, and no record says why")
        )
        self.verdict = verdict


def ranks_of(mask: int) -> tuple[int, ...]:
    """The bits of a mask, ascending."""
    return tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def mask_of(ranks: Iterable[int]) -> int:
    """The inverse of `ranks_of`."""
    return sum(1 << rank for rank in ranks)
