"""What one trace file says: its counts, and time per bucket and layer over its whole steps or graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.trace.collect import PYTORCH_CATEGORIES, WINDOW, Collector, Counts
from sm86.trace.events import BlockDecoder
from sm86.trace.kernels import Bucket, short_name
from sm86.trace.layers import Placement, place
from sm86.trace.reader import Trace, read
from sm86.trace.source import NEED, CpuAlone
from sm86.trace.units import BUCKETS, Shape, Tally, Unit, lost_kernels, partial_shapes

# With fewer whole units than this beside it, the first of a session is averaged after all.
ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, mean, extremes and quartiles of one number per unit, in ns."""

    median: float
    mean: float
    low: float
    high: float
    quartile_1: float
    quartile_3: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """values: at least one."""
        ordered = sorted(values)
        if len(ordered) == 1:
            only = ordered[0]
            return Spread(only, only, only, only, only, only)
        first, middle, third = statistics.quantiles(ordered, n=4, method="inclusive")
        return Spread(middle, sum(ordered) / len(ordered), ordered[0], ordered[-1], first, third)


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One bucket over all averaged units: calls and ns in total, ns per unit, names by time (name, calls, ns)."""

    bucket: Bucket
    calls: int
    total: int
    per_unit: Spread
    names: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer over all averaged units: its kind, and per bucket calls and ns. layer -1: outside of layers."""

    layer: int
    kind: str
    cells: dict[Bucket, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """Units that ran the same kernels. averaged: whether they are part of the table, else why not."""

    label: str
    nodes: int
    graphs: int
    units: int
    averaged: bool
    why_not: str
    sum: Spread
    busy: Spread
    span: Spread
    layers: dict[str, int]


@dataclass(frozen=True, slots=True)
class Example:
    """One unit to draw: its events and where they belong."""

    unit: Unit
    placement: Placement
    names: tuple[str, ...]
    streams: tuple[str, ...]


@dataclass(slots=True)
class View:
    """All steps, or all graphs, of one file.

    unit: "step" or "graph"; units: how many are averaged; seen: how many had GPU events;
    partial, first, odd: how many are left out because kernels are lost, because one was the session's
    first, or because another kind of step (prefill) or too many shapes were there; starts, ends and
    collectives per averaged unit in the order of their starts (ns; collectives in call order), and the
    spreads, are of as many units as memory is kept for (units.SERIES_BYTES), totals of all.
    """

    unit: str
    label: str
    seen: int
    units: int
    partial: int
    first: int
    odd: int
    sum: Spread
    busy: Spread
    span: Spread
    total: int
    layers: dict[str, int]
    layers_agree: bool
    buckets: tuple[BucketRow, ...]
    per_layer: tuple[LayerRow, ...]
    shapes: tuple[ShapeRow, ...]
    starts: list[int]
    ends: list[int]
    collectives: list[tuple[int, ...]]
    collective_buckets: list[tuple[Bucket, ...]]
    example: Example | None = None

    @property
    def all_reduce_per_layer(self) -> tuple[tuple[int, float], ...]:
        """(layer, ns per unit) of the TP all-reduce; layer -1: the one behind the embedding."""
        return tuple(
            (row.layer, row.cells[Bucket.ALL_REDUCE][1] / self.units)
            for row in self.per_layer
            if Bucket.ALL_REDUCE in row.cells
        )


@dataclass(slots=True)
class FileResult:
    """Everything about one trace file. outside: kernels in no graph and no step, as (name, bucket, calls, ns)."""

    path: Path
    rank: int | None
    world_size: int | None
    device: str
    base_ns: int
    events: int
    repaired: int
    dropped: int
    truncated: str
    counts: Counts
    steps: View | None
    graphs: View | None
    outside: tuple[tuple[str, Bucket, int, int], ...]
    readings: int = 1
    late_launches: int = 0

    @property
    def main(self) -> View | None:
        """The view to report: steps where vLLM's annotations are there, else graphs."""
        return self.steps or self.graphs

    def expected_counts(self) -> dict[str, Any]:
        """The counts under the names of the answer key of real traces."""
        counts = self.counts
        return {
            "events": self.events,
            "launches": counts.launches,
            "graphs_with_gpu_events": counts.graphs_with_gpu_events,
            "graph_gpu_events": counts.graph_gpu_events,
            "graph_us": round(counts.graph_ns / 1000, 1),
            "nodes_min": counts.nodes_min,
            "nodes_max": counts.nodes_max,
            "gpu_events": counts.gpu_events,
            "orphan_groups": counts.orphan_groups,
            "gpu_before_launch": counts.gpu_before_launch,
            "annotations": sorted(counts.annotations),
            "device": self.device,
            "rank": self.rank,
        }


def analyse(
    path: Path,
    progress: Callable[[int], None] | None = None,
    window: int = WINDOW,
    standard_json: bool = False,
) -> FileResult:
    """Read `path` from start to end and attribute its GPU time; a second time if launches came too late.

    progress: called with the bytes read so far; window: see Collector; standard_json: do without
    msgspec. Raises CouldNotRun when it is no trace, or no trace of PyTorch with GPU events.
    """
    trace, collector, categories = _reading(path, progress, standard_json, Collector(window))
    readings = 1
    if collector.late and path.is_file():
        trace, collector, categories = _reading(path, progress, standard_json, Collector(window, collector))
        readings = 2
    _refuse_without_gpu(trace, collector, categories)
    names = collector.names.list
    device = collector.first_device
    return FileResult(
        path=path,
        rank=trace.rank,
        world_size=trace.world_size,
        device=trace.device(device if isinstance(device, int) else None),
        base_ns=trace.base_ns,
        events=trace.decoder.events,
        repaired=trace.decoder.repaired,
        dropped=trace.decoder.dropped,
        truncated=trace.truncated,
        counts=collector.counts,
        steps=_view("step", collector.steps, collector),
        graphs=_view("graph", collector.graphs, collector),
        outside=tuple(
            (names[number], _by_name(collector, number), calls, time)
            for number, (calls, time) in sorted(collector.outside.items(), key=lambda item: -item[1][1])
        ),
        readings=readings,
        late_launches=collector.late.count(),
    )


def _reading(
    path: Path, progress: Callable[[int], None] | None, standard_json: bool, collector: Collector
) -> tuple[Trace, Collector, set[str | None]]:
    trace = Trace(path, BlockDecoder(standard=standard_json))
    categories: set[str | None] = set()
    for events in read(trace, progress):
        collector.feed(events)
        if not collector.counts.gpu_events and len(categories) < 64:
            categories.update(event.cat for event in events)
    collector.finish()
    return trace, collector, categories


def _by_name(collector: Collector, number: int) -> Bucket:
    """The bucket that a kernel's name alone tells; attention without its place stays unplaced."""
    return place([collector.names.kinds[number]], [0]).buckets[0]


def _refuse_without_gpu(trace: Trace, collector: Collector, categories: set[str | None]) -> None:
    if collector.counts.gpu_events:
        return
    path = trace.path
    if not trace.decoder.events:
        raise CouldNotRun(
            f"{path} holds no whole event" + (f": {trace.truncated}" if trace.truncated else ""),
            "record it again, and wait for /stop_profile to return before copying the file",
        )
    pytorch = bool(categories & PYTORCH_CATEGORIES) or "deviceProperties" in trace.metadata
    if pytorch:
        raise CpuAlone(
            f"{path} is a PyTorch trace of the CPU alone: it has no GPU event",
            "give the trace of a worker (its name has rank in it), recorded with CUDA activities",
        )
    raise CouldNotRun(f"{path} is a trace of another tool: no event in it is of the PyTorch profiler", NEED)


def _view(unit: str, tally: Tally, collector: Collector) -> View | None:
    if not tally.units:
        return None
    tally.finish()
    lost, odd = _left_out(tally)
    whole = sum(s.count for i, s in enumerate(tally.shapes.values()) if i not in lost and i not in odd)
    first = first_lost = 0
    if tally.held is not None and whole >= ENOUGH:
        first_lost = int(lost_kernels(tally.held, list(tally.shapes.values())))
        first = 1 - first_lost
        tally.held = None
    elif tally.held is not None:
        tally.release_held()
        tally.finish()
        lost, odd = _left_out(tally)
    shapes = list(tally.shapes.values())
    chosen = [shape for i, shape in enumerate(shapes) if i not in lost and i not in odd]
    if not chosen:
        # every unit lost kernels: show what there is rather than nothing, and say so
        chosen = [max(shapes, key=lambda shape: (shape.count, shape.nodes))] if shapes else []
        if not chosen:
            return None
    view = _summed(unit, tally, collector, shapes, chosen, lost, odd)
    view.first = first
    view.partial += first_lost
    return view


def _left_out(tally: Tally) -> tuple[set[int], set[int]]:
    """(indexes of shapes that lost kernels, indexes of shapes of another kind of step than the averaged)."""
    shapes = list(tally.shapes.values())
    lost = partial_shapes(shapes)
    decode = any(shape.label.startswith("decode") for shape in shapes)
    others = {i for i, shape in enumerate(shapes) if decode and not shape.label.startswith("decode")}
    return lost, others - lost


def _summed(
    unit: str,
    tally: Tally,
    collector: Collector,
    shapes: list[Shape],
    chosen: list[Shape],
    lost: set[int],
    odd: set[int],
) -> View:
    names = collector.names.list
    units = sum(shape.count for shape in chosen)
    cells: dict[tuple[int, Bucket], list[int]] = {}
    named: dict[tuple[Bucket, int], list[int]] = {}
    for shape in chosen:
        for key, (calls, time) in shape.cells.items():
            _add(cells.setdefault(key, [0, 0]), calls, time)
        for name_key, (calls, time) in shape.name_cells.items():
            _add(named.setdefault(name_key, [0, 0]), calls, time)
    biggest = max(chosen, key=lambda shape: shape.count * shape.nodes)
    partial = sum(shape.count for i, shape in enumerate(shapes) if i in lost and shape not in chosen)
    others = sum(shape.count for i, shape in enumerate(shapes) if i in odd and shape not in chosen)
    series = sorted(
        (
            (start, start + span, _slice(shape.collective_time, number, len(shape.collective_buckets)), shape)
            for shape in chosen
            for number, (start, span) in enumerate(zip(shape.starts, shape.spans, strict=True))
        ),
        key=lambda item: item[0],
    )
    sums = [value for shape in chosen for value in shape.sums]
    return View(
        unit=unit,
        label=", ".join(sorted({shape.label for shape in chosen if shape.label and unit == "step"})),
        seen=tally.units,
        units=units,
        partial=partial,
        first=0,
        odd=others + tally.beyond_limit,
        sum=Spread.of(sums),
        busy=Spread.of([value for shape in chosen for value in shape.busy]),
        span=Spread.of([value for shape in chosen for value in shape.spans]),
        total=sum(shape.total for shape in chosen),
        layers=_layer_counts(biggest),
        layers_agree=all(_layer_counts(shape) == _layer_counts(biggest) for shape in chosen),
        buckets=_bucket_rows(chosen, cells, named, names),
        per_layer=_layer_rows(cells, biggest.kinds),
        shapes=tuple(_shape_row(shape, shape in chosen, i in lost) for i, shape in enumerate(shapes)),
        starts=[item[0] for item in series],
        ends=[item[1] for item in series],
        collectives=[item[2] for item in series],
        collective_buckets=[item[3].collective_buckets for item in series],
        example=_example(tally, collector),
    )


def _add(cell: list[int], calls: int, time: int) -> None:
    cell[0] += calls
    cell[1] += time


def _slice(values: Sequence[int], number: int, width: int) -> tuple[int, ...]:
    return tuple(values[number * width : (number + 1) * width])


def _layer_counts(shape: Shape) -> dict[str, int]:
    return {kind: shape.kinds.count(kind) for kind in sorted(set(shape.kinds))}


def _bucket_rows(
    chosen: list[Shape],
    cells: dict[tuple[int, Bucket], list[int]],
    named: dict[tuple[Bucket, int], list[int]],
    names: list[str],
) -> tuple[BucketRow, ...]:
    rows: list[BucketRow] = []
    for bucket in Bucket:
        calls = sum(cell[0] for (_, b), cell in cells.items() if b is bucket)
        if not calls:
            continue
        total = sum(cell[1] for (_, b), cell in cells.items() if b is bucket)
        per_unit = Spread.of([value for shape in chosen for value in shape.bucket_time[bucket::BUCKETS]])
        top = sorted(
            ((names[number], cell[0], cell[1]) for (b, number), cell in named.items() if b is bucket),
            key=lambda item: -item[2],
        )
        rows.append(BucketRow(bucket, calls, total, per_unit, tuple(top)))
    return tuple(rows)


def _layer_rows(cells: dict[tuple[int, Bucket], list[int]], kinds: tuple[str, ...]) -> tuple[LayerRow, ...]:
    layers = sorted({layer for layer, _ in cells})
    return tuple(
        LayerRow(
            layer,
            kinds[layer] if 0 <= layer < len(kinds) else "",
            {b: (cell[0], cell[1]) for (at, b), cell in sorted(cells.items()) if at == layer},
        )
        for layer in layers
    )


def _shape_row(shape: Shape, averaged: bool, lost: bool) -> ShapeRow:
    return ShapeRow(
        label=shape.label,
        nodes=shape.nodes,
        graphs=shape.graphs,
        units=shape.count,
        averaged=averaged,
        why_not="" if averaged else "kernels are missing" if lost else "not a decode step",
        sum=Spread.of(shape.sums),
        busy=Spread.of(shape.busy),
        span=Spread.of(shape.spans),
        layers=_layer_counts(shape),
    )


def _example(tally: Tally, collector: Collector) -> Example | None:
    unit = tally.example
    if unit is None:
        return None
    every = collector.names.list
    return Example(
        unit,
        tally.placement(unit),
        tuple(short_name(every[name]) for name in unit.names),
        tuple(collector.streams.list[stream] for stream in unit.streams),
    )
