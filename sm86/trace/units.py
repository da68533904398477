"""Steps or graphs (units) added up as they come: by shape, by kernel position, by bucket. Pure.

Two units have one shape when they ran the same kernels equally often, whatever the order across
streams. Everything is kept per shape, so that units of a partial shape can be left out at the end,
when it is known which shapes are usual.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sm86.trace.kernels import COLLECTIVES, Bucket, Kind
from sm86.trace.layers import Placement, place

PLAN_LIMIT = 64
SHAPE_LIMIT = 2048
BUCKETS = len(Bucket)
# What may be kept per unit for medians and for comparing ranks: about 37,000 steps of DeepSeek-V4-Flash.
SERIES_BYTES = 32 << 20
ALWAYS_KEPT = 4


@dataclass(slots=True)
class Unit:
    """One step or graph: its GPU events, stream after stream, each stream in the order of its starts.

    In that order every replay of one graph reads the same, however its streams overlap.
    names, streams: small numbers; starts, durations: ns; sum, busy, span: ns, of all durations, of the
    union over the streams, from the first start to the last end; launch: when the CPU launched it, ns;
    label: units of another label never share a shape (decode and prefill steps; graph ids).
    """

    names: array[int]
    streams: array[int]
    starts: list[int]
    durations: list[int]
    sum: int
    busy: int
    span: int
    launch: int
    label: str = ""
    graphs: int = 0


def unit_of(names: array[int], streams: array[int], starts: list[int], durations: list[int], launch: int) -> Unit:
    """The unit of these events, given in any order. At least one; all lists of one length."""
    in_time = sorted(range(len(starts)), key=starts.__getitem__)
    first = starts[in_time[0]]
    end, busy = first, 0
    for index in in_time:
        start = starts[index]
        stop = start + durations[index]
        if stop > end:
            busy += stop - (start if start > end else end)
            end = stop
    in_time.sort(key=streams.__getitem__)
    return Unit(
        array("i", [names[index] for index in in_time]),
        array("H", [streams[index] for index in in_time]),
        [starts[index] for index in in_time],
        [durations[index] for index in in_time],
        sum(durations),
        busy,
        end - first,
        launch,
    )


@dataclass(slots=True, eq=False)
class Plan:
    """One set of stream sequences seen, with its placement and the time summed at each position (ns).

    cuts: positions of the kernels that open a sublayer; beside: per kernel of another stream than theirs
    its position and the number of the last cut before it.
    """

    shape: Shape
    placement: Placement
    names: array[int]
    time: list[int]
    collectives: tuple[int, ...]
    cuts: tuple[int, ...]
    beside: tuple[tuple[int, int], ...]
    units: int = 0

    def holds_for(self, starts: list[int]) -> bool:
        """Whether a unit with these starts has every kernel between the same cuts."""
        borders = [starts[position] for position in self.cuts]
        borders.append(1 << 63)
        if any(a > b for a, b in pairwise(borders)):
            return False
        return all(
            borders[cut] <= starts[position] < borders[cut + 1] if cut >= 0 else starts[position] < borders[0]
            for position, cut in self.beside
        )


@dataclass(slots=True, eq=False)
class Shape:
    """All units that ran the same kernels equally often; count and total (ns) are of every one of them.

    Per unit, as long as SERIES_BYTES allow: its start, sum, busy and span (ns) and its bucket sums.
    cells: (layer, bucket) -> [calls, ns]; name_cells: (bucket, name) -> [calls, ns];
    collective_time: the durations of the collectives of one unit after the other, each in order.
    """

    label: str
    multiset: Counter[int]
    nodes: int
    graphs: int
    kinds: tuple[str, ...]
    collective_buckets: tuple[Bucket, ...]
    count: int = 0
    total: int = 0
    starts: array[int] = field(default_factory=lambda: array("q"))
    sums: array[int] = field(default_factory=lambda: array("q"))
    busy: array[int] = field(default_factory=lambda: array("q"))
    spans: array[int] = field(default_factory=lambda: array("q"))
    bucket_time: array[int] = field(default_factory=lambda: array("q"))
    collective_time: array[int] = field(default_factory=lambda: array("q"))
    cells: dict[tuple[int, Bucket], list[int]] = field(default_factory=dict)
    name_cells: dict[tuple[Bucket, int], list[int]] = field(default_factory=dict)


class Tally:
    """Adds up the units of one view (all steps, or all graphs) of one file.

    The unit launched first is held back: CUPTI can lose kernels at the start of a session, so the
    first unit is never averaged while enough others are there (`Usual.first`).
    """

    def __init__(self, kind_by_name: Sequence[Kind]) -> None:
        """kind_by_name: the kind of each name number; may grow while units come."""
        self._kind_by_name = kind_by_name
        self._plans: dict[tuple[bytes, bytes, str], Plan] = {}
        self.shapes: dict[tuple[str, frozenset[tuple[int, int]]], Shape] = {}
        self.held: Unit | None = None
        self.beyond_limit = 0
        self._series_bytes = SERIES_BYTES
        self.units = 0
        self.example: Unit | None = None
        self._example_shape: Shape | None = None
        self._example_distance = 0.0

    def add(self, unit: Unit) -> None:
        """Count one unit. It must have at least one GPU event."""
        self.units += 1
        if self.held is None:
            self.held = unit
        elif unit.launch < self.held.launch:
            self.held, later = unit, self.held
            self._count(later)
        else:
            self._count(unit)

    def release_held(self) -> None:
        """Count the first unit as well: too few others are there."""
        if self.held is not None:
            unit, self.held = self.held, None
            self._count(unit)

    def finish(self) -> None:
        """Bring what stands in the plans to the shapes. Call once, after the last unit."""
        for plan in self._plans.values():
            _settle(plan)
        self._plans.clear()

    def placement(self, unit: Unit) -> Placement:
        """The placement of `unit`'s kernels, in the order in which the unit has them."""
        in_time = sorted(range(len(unit.starts)), key=unit.starts.__getitem__)
        placed = place(
            [self._kind_by_name[unit.names[index]] for index in in_time], [unit.streams[index] for index in in_time]
        )
        back = sorted(range(len(in_time)), key=in_time.__getitem__)
        return Placement(
            tuple(placed.buckets[index] for index in back),
            tuple(placed.layers[index] for index in back),
            placed.kinds,
            tuple(placed.sublayers[index] for index in back),
        )

    def _count(self, unit: Unit) -> None:
        plan = self._plan_of(unit)
        if plan is None:
            self.beyond_limit += 1
            return
        shape = plan.shape
        durations = unit.durations
        plan.time = [a + b for a, b in zip(plan.time, durations, strict=True)] if plan.units else list(durations)
        plan.units += 1
        shape.count += 1
        shape.total += unit.sum
        cost = 8 * (4 + BUCKETS + len(plan.collectives))
        if self._series_bytes >= cost or shape.count <= ALWAYS_KEPT:
            self._series_bytes -= cost
            self._keep_series(unit, plan)
        self._consider_example(unit, shape, unit.span)

    def _keep_series(self, unit: Unit, plan: Plan) -> None:
        shape = plan.shape
        shape.starts.append(min(unit.starts))
        shape.sums.append(unit.sum)
        shape.busy.append(unit.busy)
        shape.spans.append(unit.span)
        by_bucket = [0] * BUCKETS
        for bucket, duration in zip(plan.placement.buckets, unit.durations, strict=True):
            by_bucket[bucket] += duration
        shape.bucket_time.extend(by_bucket)
        shape.collective_time.extend([unit.durations[index] for index in plan.collectives])

    def _plan_of(self, unit: Unit) -> Plan | None:
        key = (unit.names.tobytes(), unit.streams.tobytes(), unit.label)
        plan = self._plans.get(key)
        if plan is not None and plan.holds_for(unit.starts):
            return plan
        placement = self.placement(unit)
        multiset = Counter(unit.names)
        shape_key = (unit.label, frozenset(multiset.items()))
        shape = self.shapes.get(shape_key)
        collectives = tuple(
            sorted(
                (i for i, bucket in enumerate(placement.buckets) if bucket in COLLECTIVES),
                key=unit.starts.__getitem__,
            )
        )
        if shape is None:
            if len(self.shapes) >= SHAPE_LIMIT:
                return None
            shape = Shape(
                label=unit.label,
                multiset=multiset,
                nodes=len(unit.names),
                graphs=unit.graphs,
                kinds=placement.kinds,
                collective_buckets=tuple(placement.buckets[i] for i in collectives),
            )
            self.shapes[shape_key] = shape
        if plan is not None:
            _settle(plan)
        elif len(self._plans) >= PLAN_LIMIT:
            self.finish()
        plan = Plan(shape, placement, unit.names, [], collectives, *_cuts(unit, placement, self._kind_by_name))
        self._plans[key] = plan
        return plan

    def _consider_example(self, unit: Unit, shape: Shape, span: int) -> None:
        """Keep one unit to draw: of the shape with most GPU events, one near to the mean span of late."""
        recent = shape.spans[-64:]
        distance = abs(span - sum(recent) / len(recent))
        known = self._example_shape
        heavier = known is None or (shape is not known and shape.count * shape.nodes > known.count * known.nodes)
        if heavier or (shape is known and distance < self._example_distance):
            self.example, self._example_shape, self._example_distance = unit, shape, distance


def _cuts(
    unit: Unit, placement: Placement, kind_by_name: Sequence[Kind]
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The positions of the kernels that open a sublayer, and the kernels of other streams with their last cut."""
    opening: dict[int, int] = {}
    for index in sorted(range(len(unit.starts)), key=unit.starts.__getitem__):
        sublayer = placement.sublayers[index]
        if sublayer and kind_by_name[unit.names[index]] is Kind.MHC:
            opening.setdefault(sublayer, index)
    cuts = tuple(opening[sublayer] for sublayer in sorted(opening))
    streams = {unit.streams[position] for position in cuts}
    only = streams.pop() if len(streams) == 1 else -1
    beside = tuple(
        (index, placement.sublayers[index] - 1)
        for index in range(len(unit.starts))
        if cuts and unit.streams[index] != only
    )
    return cuts, beside


def _settle(plan: Plan) -> None:
    """Add the summed times of one order of kernels to its shape, by layer and bucket and by name."""
    shape, units = plan.shape, plan.units
    for name, bucket, layer, time in zip(
        plan.names, plan.placement.buckets, plan.placement.layers, plan.time, strict=True
    ):
        cell = shape.cells.setdefault((layer, bucket), [0, 0])
        cell[0] += units
        cell[1] += time
        named = shape.name_cells.setdefault((bucket, name), [0, 0])
        named[0] += units
        named[1] += time


def partial_shapes(shapes: Sequence[Shape]) -> set[int]:
    """Which of `shapes` (by index) hold units that lost kernels.

    That is: of a graph id whose usual node count is higher; or the kernels of another shape of the same
    label with some missing, and rare beside it (once or twice against three times as many, or below a
    tenth): losses differ from unit to unit, while a kernel that some steps do without comes back.
    """
    lost: set[int] = set()
    by_label: dict[str, list[int]] = {}
    for index, shape in enumerate(shapes):
        by_label.setdefault(shape.label, []).append(index)
    for label, members in by_label.items():
        if label.startswith("graph "):
            nodes: Counter[int] = Counter()
            for index in members:
                nodes[shapes[index].nodes] += shapes[index].count
            usual = max(nodes.items(), key=lambda item: (item[1], item[0]))[0]
            lost.update(index for index in members if shapes[index].nodes < usual)
            continue
        frequent = sorted((i for i in members if shapes[i].count >= 3), key=lambda i: -shapes[i].count)[:64]
        for index in members:
            shape = shapes[index]
            if any(
                shapes[other].nodes > shape.nodes
                and _rare(shape.count, shapes[other].count)
                and shape.multiset <= shapes[other].multiset
                for other in frequent
                if other != index
            ):
                lost.add(index)
    return lost


def _rare(count: int, beside: int) -> bool:
    return (3 if count <= 2 else 10) * count <= beside


def lost_kernels(unit: Unit, shapes: Sequence[Shape]) -> bool:
    """Whether `unit`, counted to none of `shapes` yet, has the kernels of a usual one with some missing."""
    multiset = Counter(unit.names)
    if any(shape.label == unit.label and shape.multiset == multiset for shape in shapes):
        return False
    return any(
        shape.label == unit.label
        and shape.nodes > len(unit.names)
        and shape.count >= 3
        and (unit.label.startswith("graph ") or multiset <= shape.multiset)
        for shape in shapes
    )
