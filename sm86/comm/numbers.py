"""Runs -> rows: medians with their spread, who is faster beyond it, and what a decode step would gain. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sm86.comm import answer
from sm86.comm.answer import Run
from sm86.comm.matrix import BASELINE, NCCL, Setting

ENOUGH_REPEATS = 3
"""With fewer, nothing is said about who is faster: two values have no spread worth the name."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one all-reduce of one size by one setting: each repeat's, in fresh processes."""

    repeats: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.repeats)

    @property
    def low(self) -> float:
        return min(self.repeats)

    @property
    def high(self) -> float:
        return max(self.repeats)

    def beats(self, other: Timing) -> bool:
        """Faster beyond the spread: even its slowest repeat is faster than the other's fastest."""
        return self.high < other.low


@dataclass(frozen=True, slots=True)
class Row:
    """One setting over all its repeats.

    state, why: "measured" only if every repeat was; ran: size -> every way that ran; differs: what ran is not what was
    asked, in words ("" where it is, or where nothing was asked); unseen: NCCL did not say what ran.
    """

    setting: Setting
    state: str
    why: str
    timings: Mapping[int, Timing]
    ran: Mapping[int, tuple[str, ...]]
    transports: tuple[str, ...]
    differs: str
    unseen: bool
    error: float
    bit_equal: bool

    @property
    def measured(self) -> bool:
        return self.state == answer.MEASURED


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is fastest at one size. leaders: all that nobody beats beyond the spread, the lowest median first; winner:
    the leader where there is only one, else None with the reason in `why`."""

    size: int
    leaders: tuple[str, ...]
    winner: str | None
    why: str
    gain: float | None
    """The baseline's median over the best's, where the best beats it beyond the spread; None otherwise."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What one decode step would gain with a setting: milliseconds at the medians, and between the extremes."""

    setting: str
    size: int
    calls: int
    ms: float
    least_ms: float
    most_ms: float
    baseline_ms: float


def rows_of(settings: Sequence[Setting], runs: Sequence[Run], repeats: int) -> tuple[Row, ...]:
    """One row for each setting, in the matrix's order; also for those that were refused or not reached."""
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.setting, []).append(run)
    return tuple(_row(setting, by_name.get(setting.name, []), repeats) for setting in settings)


def _row(setting: Setting, runs: Sequence[Run], repeats: int) -> Row:
    good = [run for run in runs if run.state == answer.MEASURED]
    bad = [run for run in runs if run.state != answer.MEASURED]
    state, why = answer.MEASURED, ""
    if bad:
        state, why = bad[0].state, bad[0].why
        if good:
            why = f"in {len(bad)} of {len(runs)} repeats: {why}"
    elif len(good) < repeats:
        state, why = answer.FAILED, f"only {len(good)} of {repeats} repeats were made"
    sizes = sorted({size for run in good for size in run.cells})
    timings = {s: Timing(tuple(run.cells[s].us for run in good if s in run.cells)) for s in sizes}
    ran = {s: tuple(dict.fromkeys(run.cells[s].ran for run in good if s in run.cells)) for s in sizes}
    cells = [cell for run in runs for cell in run.cells.values()]
    transports: Counter[str] = Counter()
    for run in runs:
        transports.update(dict(run.facts.get("transports") or {}))
    return Row(
        setting=setting,
        state=state,
        why=why,
        timings=timings,
        ran=ran,
        transports=tuple(name for name, _ in transports.most_common()),
        differs=_differs(setting, ran) if good else "",
        unseen=setting.path == NCCL and bool(good) and not all(all(ways) for ways in ran.values()),
        error=max((cell.error for cell in cells), default=0.0),
        bit_equal=all(cell.bit_equal for cell in cells),
    )


def _differs(setting: Setting, ran: Mapping[int, tuple[str, ...]]) -> str:
    """What ran otherwise than asked: "asked Tree LL128; Ring Simple ran at 2048 bytes"."""
    wanted = " ".join(filter(None, (setting.algo, setting.proto)))
    if not wanted:
        return ""
    others: dict[str, list[int]] = {}
    for size, ways in ran.items():
        for way in ways:
            if way and not way.startswith(wanted + ","):
                others.setdefault(way, []).append(size)
    if not others:
        return ""
    told = "; ".join(f"{way} ran at {', '.join(map(str, sizes))} bytes" for way, sizes in others.items())
    return f"asked {wanted}; {told}"


def verdict_at(size: int, rows: Sequence[Row], mark: str = "") -> Verdict:
    """Who is fastest at one size. mark: how the numbers must be called; emulated ones have no winner."""
    timed = [row for row in rows if row.measured and size in row.timings]
    ordered = sorted(timed, key=lambda row: row.timings[size].median)
    if not ordered:
        return Verdict(size, (), None, "nothing was measured", None)
    best = ordered[0]
    leaders = tuple(r.setting.name for r in ordered if not best.timings[size].beats(r.timings[size]))
    base = next((row for row in timed if row.setting.name == BASELINE), None)
    gain = None
    if base is not None and best.timings[size].beats(base.timings[size]):
        gain = base.timings[size].median / best.timings[size].median
    fewest = min(len(row.timings[size].repeats) for row in ordered)
    if mark:
        return Verdict(size, leaders, None, f"{mark}: these numbers say nothing about a rig", None)
    if len(ordered) == 1:
        return Verdict(size, leaders, None, "there is nothing to compare it with", None)
    if fewest < ENOUGH_REPEATS:
        return Verdict(size, leaders, None, f"{fewest} repeats are too few to tell (at least {ENOUGH_REPEATS})", None)
    if len(leaders) == 1:
        return Verdict(size, leaders, best.setting.name, "faster than every other beyond the spread", gain)
    return Verdict(size, leaders, None, f"{len(leaders)} settings lie within each other's spread", gain)


def gain_of(row: Row, base: Row, size: int, calls: int) -> Gain | None:
    """What a step of `calls` all-reduces would gain; None where one of the two was not measured."""
    if not (row.measured and base.measured and size in row.timings and size in base.timings):
        return None
    own, other = row.timings[size], base.timings[size]
    return Gain(
        setting=row.setting.name,
        size=size,
        calls=calls,
        ms=calls * (other.median - own.median) / 1000,
        least_ms=calls * (other.low - own.high) / 1000,
        most_ms=calls * (other.high - own.low) / 1000,
        baseline_ms=calls * other.median / 1000,
    )


BUSY_MIB = 2048
"""More than the contexts of eight ranks take; a server's weights are ten times as much."""


def company(facts: Mapping[str, Any]) -> str:
    """A line about GPUs that others use meanwhile; "" where none is seen."""
    used = [mib for mib in facts.get("used_mib", ()) if isinstance(mib, int)]
    busy = [rank for rank, mib in enumerate(used) if mib > BUSY_MIB]
    if not busy:
        return ""
    ranks = ", ".join(map(str, busy))
    return f"others use the GPUs of ranks {ranks} (up to {max(used)} MiB): these times may be theirs as well"


def facts_of(runs: Sequence[Run]) -> dict[str, Any]:
    """What the ranks and NCCL told of the machine, merged: the first that is known of each."""
    facts: dict[str, Any] = {}
    for run in runs:
        for name, value in run.facts.items():
            if name not in ("transports", "nccl_read", "nccl_warnings", "channels"):
                facts.setdefault(name, value)
    return facts
