"""Several ranks of one capture side by side: time a collective moves data told from time it waits. Pure.

A collective kernel runs from the moment its own rank comes to the moment the last rank has come and the
data has moved. The rank that comes last waits for nobody, so the least duration over all ranks of one
call is work, and what a rank has above it is waiting for the slowest.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.trace.analysis import FileResult, View
from sm86.trace.kernels import COLLECTIVES, Bucket

_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
MEND = "give the traces of one capture: one file per rank, recorded at the same time by one server"


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank. own, waiting: ns per unit in the collectives of each bucket; span: ns per unit, mean."""

    rank: int
    path: Path
    own: dict[Bucket, float]
    waiting: dict[Bucket, float]
    span: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks over the units that every rank has whole. work: ns per unit; calls: per unit."""

    unit: str
    units: int
    rows: tuple[RankRow, ...]
    work: dict[Bucket, float]
    calls: dict[Bucket, float]
    ranks_missing: tuple[int, ...]

    @property
    def slowest(self) -> RankRow:
        """The rank that the others wait for: it waits least itself."""
        return min(self.rows, key=lambda row: sum(row.waiting.values()))


def rank_of(result: FileResult) -> int | None:
    """The rank that the trace says, else the one in its file name."""
    if result.rank is not None:
        return result.rank
    match = _RANK.search(result.path.name)
    return int(match[1]) if match else None


def compare(results: Sequence[FileResult]) -> Comparison:
    """Compare at least two ranks. Raises CouldNotRun when they do not belong together."""
    by_rank = _by_rank(results)
    views = {rank: _view_of(result) for rank, result in by_rank.items()}
    _same_kind(by_rank, views)
    units = _common_units(by_rank, views)
    reference = min(views)
    own = {rank: dict.fromkeys(COLLECTIVES, 0.0) for rank in views}
    waiting = {rank: dict.fromkeys(COLLECTIVES, 0.0) for rank in views}
    work, calls, span = dict.fromkeys(COLLECTIVES, 0.0), dict.fromkeys(COLLECTIVES, 0), dict.fromkeys(views, 0.0)
    for places in units:
        per_rank = {rank: views[rank].collectives[place] for rank, place in places.items()}
        buckets = views[reference].collective_buckets[places[reference]]
        for index, bucket in enumerate(buckets):
            least = min(durations[index] for durations in per_rank.values())
            work[bucket] += least
            calls[bucket] += 1
            for rank, durations in per_rank.items():
                own[rank][bucket] += durations[index]
                waiting[rank][bucket] += durations[index] - least
        for rank, place in places.items():
            span[rank] += views[rank].ends[place] - views[rank].starts[place]
    count = len(units)
    used = [bucket for bucket in COLLECTIVES if calls[bucket]]
    world = max((result.world_size or 0 for result in results), default=0)
    return Comparison(
        unit=views[reference].unit,
        units=count,
        rows=tuple(
            RankRow(
                rank,
                by_rank[rank].path,
                {bucket: own[rank][bucket] / count for bucket in used},
                {bucket: waiting[rank][bucket] / count for bucket in used},
                span[rank] / count,
            )
            for rank in sorted(views)
        ),
        work={bucket: work[bucket] / count for bucket in used},
        calls={bucket: calls[bucket] / count for bucket in used},
        ranks_missing=tuple(rank for rank in range(world) if rank not in views),
    )


def _by_rank(results: Sequence[FileResult]) -> dict[int, FileResult]:
    by_rank: dict[int, FileResult] = {}
    for result in results:
        rank = rank_of(result)
        if rank is None:
            raise CouldNotRun(
                f"{result.path} says nowhere which rank it is of",
                "give it alone, or put its rank in the file name, as in rank0.pt.trace.json.gz",
            )
        if rank in by_rank:
            raise CouldNotRun(f"{by_rank[rank].path.name} and {result.path.name} are both of rank {rank}", MEND)
        by_rank[rank] = result
    return by_rank


def _view_of(result: FileResult) -> View:
    view = result.main
    if view is None:
        raise CouldNotRun(f"{result.path} has neither steps nor graphs to compare", MEND)
    return view


def _same_kind(by_rank: dict[int, FileResult], views: dict[int, View]) -> None:
    reference = min(views)
    first, first_view = by_rank[reference], views[reference]
    for rank, result in by_rank.items():
        if result.world_size is not None and rank >= result.world_size:
            raise CouldNotRun(f"{result.path.name} is of rank {rank}, but says there are {result.world_size}", MEND)
        if result.world_size != first.world_size:
            raise CouldNotRun(
                f"{first.path.name} is of {first.world_size} ranks, {result.path.name} of {result.world_size}", MEND
            )
        if views[rank].unit != first_view.unit:
            raise CouldNotRun(
                f"{first.path.name} is counted by {first_view.unit}, {result.path.name} by {views[rank].unit}", MEND
            )
        if views[rank].layers != first_view.layers:
            raise CouldNotRun(
                f"{first.path.name} has the layers {_layers(first_view)}, {result.path.name} {_layers(views[rank])}",
                MEND,
            )


def _layers(view: View) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in view.layers.items()) or "none"


def _common_units(by_rank: dict[int, FileResult], views: dict[int, View]) -> list[dict[int, int]]:
    """The units that every rank has: per unit each rank's place in its view."""
    reference = min(views)
    base = by_rank[reference].base_ns
    rows = [{reference: place} for place in range(len(views[reference].starts))]
    for rank in sorted(views):
        if rank == reference:
            continue
        shift = by_rank[rank].base_ns - base
        starts = [start + shift for start in views[rank].starts]
        ends = [end + shift for end in views[rank].ends]
        matched = []
        for row in rows:
            place = _overlapping(
                views[reference].starts[row[reference]], views[reference].ends[row[reference]], starts, ends
            )
            if place is not None:
                matched.append({**row, rank: place})
        if 2 * len(matched) < min(len(rows), len(starts)) or not matched:
            raise CouldNotRun(
                f"the {views[rank].unit}s of {by_rank[reference].path.name} and {by_rank[rank].path.name}"
                " do not run at the same time",
                MEND + " (on hosts with one clock)",
            )
        rows = matched
    rows = [row for row in rows if len({len(views[rank].collectives[place]) for rank, place in row.items()}) == 1]
    if not rows:
        raise CouldNotRun("no two ranks made the same number of collective calls in one step", MEND)
    if not any(views[reference].collectives[row[reference]] for row in rows):
        raise CouldNotRun("there is no collective in these traces, so nothing to compare between ranks", MEND)
    return rows


def _overlapping(start: int, end: int, starts: list[int], ends: list[int]) -> int | None:
    """The unit that covers more than half of start..end, or None."""
    place = bisect_right(starts, start)
    best, covered = None, 0
    for candidate in (place - 1, place):
        if 0 <= candidate < len(starts):
            common = min(end, ends[candidate]) - max(start, starts[candidate])
            if common > covered:
                best, covered = candidate, common
    return best if 2 * covered > end - start else None
