"""Host memory or NCCL, and for which sizes: pure choices over facts that all ranks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sm86.backend.collectives.plan import Plan, candidates, takes
from sm86.backend.collectives.trial import Times, fastest
from sm86.manifest import Value

AUTO, ON, OFF = "auto", "1", "0"
HOST, NCCL = "host", "nccl"

LEAST_GAIN = 0.03
"""In auto a size goes by host memory when its median is this much below NCCL's and the middle halves do not touch."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size of the table: bytes, the fastest plan with its times, NCCL's times (None where not measured)."""

    size: int
    plan: Plan
    host: Times
    nccl: Times | None

    @property
    def ratio(self) -> float | None:
        return self.nccl.median / self.host.median if self.nccl and self.host.median else None

    @property
    def host_wins(self) -> bool:
        """Beyond the spread."""
        if self.nccl is None:
            return False
        return self.host.median <= self.nccl.median * (1 - LEAST_GAIN) and self.host.high < self.nccl.low

    def entry(self) -> dict[str, Value]:
        """For the log: microseconds with two decimals."""
        row: dict[str, Value] = {"bytes": self.size, "host_us": round(self.host.median, 2), "plan": self.plan.name}
        row["host_spread"] = [round(self.host.low, 2), round(self.host.high, 2)]
        if self.nccl is not None and self.ratio is not None:
            row["nccl_us"] = round(self.nccl.median, 2)
            row["nccl_spread"] = [round(self.nccl.low, 2), round(self.nccl.high, 2)]
            row["ratio"] = round(self.ratio, 2)
        return row


@dataclass(frozen=True, slots=True)
class Choice:
    """way: HOST or NCCL; reason: one sentence; plans: by size, ascending, of the sizes that go by host memory.

    table: what was measured, if anything was, by ascending size.
    """

    mode: str
    way: str
    reason: str
    plans: Mapping[int, Plan] = field(default_factory=dict)
    table: tuple[Row, ...] = ()

    def plan_for(self, size: int) -> Plan | None:
        """The plan for a message: that of the next larger size that was timed or planned. None: NCCL."""
        if self.way != HOST or not takes(size):
            return None
        known = [row.size for row in self.table] or sorted(self.plans)
        timed = next((one for one in known if size <= one), None)
        return None if timed is None else self.plans.get(timed)


def declined(mode: str, facts: Sequence[Mapping[str, Any]]) -> str | None:
    """Why there is no need to even set up, from every rank's facts; None to go on. The same on all ranks.

    facts: per rank "peer_access" (another GPU of the group can be reached and NCCL may use that), "ubatches" (vLLM
    splits batches over two streams).
    """
    if mode == OFF:
        return "SM86_HOST_ALLREDUCE=0"
    if not 2 <= len(facts) <= 8:
        return f"{len(facts)} ranks; the host all-reduce is for 2 to 8"
    if any(fact["ubatches"] for fact in facts):
        return "micro-batches use two streams; the host all-reduce needs one"
    if mode == AUTO and any(fact["peer_access"] for fact in facts):
        ranks = [rank for rank, fact in enumerate(facts) if fact["peer_access"]]
        return f"peer access is there (ranks {', '.join(map(str, ranks))}); host memory is the way around its absence"
    return None


def choose(mode: str, world: int, table: Mapping[int, Mapping[str, Times]], nccl: str = NCCL) -> Choice:
    """From the times by size and name. In auto a size must win; with 1 all sizes go by host memory."""
    rows = []
    for size, times in sorted(table.items()):
        plan = fastest(size, world, times)
        rows.append(Row(size, plan, times[plan.name], times.get(nccl)))
    taken = {row.size: row.plan for row in rows if mode == ON or row.host_wins}
    if not taken:
        return Choice(mode, NCCL, "NCCL is as fast at every size that was timed", table=tuple(rows))
    if mode == ON:
        return Choice(mode, HOST, "SM86_HOST_ALLREDUCE=1", taken, tuple(rows))
    reason = f"faster than NCCL at {', '.join(map(str, sorted(taken)))} bytes"
    lost = [row.size for row in rows if row.size not in taken]
    if lost:
        reason += f"; NCCL stays at {', '.join(map(str, lost))}"
    return Choice(mode, HOST, reason, taken, tuple(rows))


def untimed(mode: str, world: int, sizes: Sequence[int]) -> Choice:
    """Host memory for every size without a timing, where there is no other way: the algorithms in turn, so that a run
    meets more than one of them."""
    plans = {}
    for place, size in enumerate(sorted(sizes)):
        first = {plan.algorithm: plan for plan in reversed(candidates(size, world))}
        algorithms = sorted(first)
        plans[size] = first[algorithms[place % len(algorithms)]]
    return Choice(mode, HOST, "there is no other way; nothing was timed", plans)


def sizes_of(hidden: int, element: int, tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """Message sizes of decode steps, ascending: bytes of `tokens` rows of `hidden` elements, up to `most`.

    Many capture sizes are thinned out to the powers of two and the largest.
    """
    sizes = sorted({hidden * element * count for count in tokens if takes(hidden * element * count, most)})
    if len(sizes) > 6:
        kept = [size for size in sizes if (size // sizes[0]).bit_count() == 1 and size % sizes[0] == 0]
        sizes = sorted({*kept[:6], sizes[-1]})
    return tuple(sizes)
