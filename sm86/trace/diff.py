"""Two analyses side by side: which buckets moved beyond the spread of their own units. Pure.

Both sides are the JSON form of an analysis, so a saved answer can be compared with a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from sm86.errors import CouldNotRun, printable
from sm86.trace.as_json import SCHEMA, VERSION
from sm86.trace.kernels import short_name

WHOLE = ("sum", "busy", "span")
MOVED, SAME, UNKNOWN = "moved", "within the spread", "spread not seen"
# A median of n values with this interquartile range scatters by about IQR / 1.349 * 1.253 / sqrt(n).
_MEDIAN_ERROR = 1.253 / 1.349
SIGMAS = 3.0
LEAST_CHANGE = 0.005


@dataclass(frozen=True, slots=True)
class Values:
    """A spread read back, in us."""

    median: float
    mean: float
    quartile_1: float
    quartile_3: float

    def error(self, units: int) -> float | None:
        """By how much the median scatters; None for fewer than 4 units."""
        return _MEDIAN_ERROR * (self.quartile_3 - self.quartile_1) / sqrt(units) if units >= 4 else None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison. buckets: per JSON name (calls per unit, us per unit spread)."""

    name: str
    device: str
    rank: int | None
    world_size: int | None
    unit: str
    label: str
    units: int
    layers: Mapping[str, int]
    sum: Values
    busy: Values
    span: Values
    buckets: Mapping[str, tuple[float, Values]]
    names: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket (or sum, busy, span): us per unit, mean, on both sides, and the judgement on their medians."""

    key: str
    calls_a: float
    calls_b: float
    a: float
    b: float
    judgement: str

    @property
    def counted(self) -> bool:
        """Whether it is a bucket, so that its calls are a number."""
        return self.key not in WHOLE


@dataclass(frozen=True, slots=True)
class Diff:
    """conditions: what differs beside the times; names: (kernel, bucket, us A, us B) that changed most."""

    a: Side
    b: Side
    conditions: tuple[str, ...]
    rows: tuple[Row, ...]
    names: tuple[tuple[str, str, float, float], ...]

    @property
    def moved(self) -> bool:
        return any(row.judgement == MOVED for row in self.rows)


def side_of(values: Any, where: str, unit: str | None = None) -> Side:
    """The side that `values` (JSON of an analysis) make; unit: "step" or "graph", None for steps if there are.

    Raises CouldNotRun for other JSON, another version, several files, and an analysis without units.
    """
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise CouldNotRun(
            f"{where} is neither a trace nor an analysis of one", "give a trace, or a saved --json answer"
        )
    if values.get("version") != VERSION:
        raise CouldNotRun(
            f"{where} is an analysis of version {values.get('version')!r}; this program reads version {VERSION}",
            "analyse the trace again with this program",
        )
    try:
        files = values["files"]
        file = min(files, key=lambda each: (each["counts"]["rank"] is None, each["counts"]["rank"] or 0))
        view = file["graphs"] if unit == "graph" else file["steps"] or (None if unit == "step" else file["graphs"])
        if view is None:
            raise CouldNotRun(
                f"{where} has no {unit or 'steps and no graphs'} to compare"
                if unit is None
                else f"{where} has no {unit}s",
                "give a trace with graph launches or with vLLM's step annotations",
            )
        return Side(
            name=_text(file["file"]),
            device=_text(file["counts"]["device"]),
            rank=file["counts"]["rank"],
            world_size=file["world_size"],
            unit=_text(view["unit"]),
            label=_text(view["label"]),
            units=int(_number(view["units"])),
            layers={_text(kind): int(_number(count)) for kind, count in view["layers"].items()},
            sum=_values(view["sum_us"]),
            busy=_values(view["busy_us"]),
            span=_values(view["span_us"]),
            buckets={
                _text(key): (_number(bucket["calls_per_unit"]), _values(bucket["spread_us"]))
                for key, bucket in view["buckets"].items()
            },
            names=_names(view["buckets"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CouldNotRun(f"{where} is damaged: {error!r}", "analyse the trace again") from None


def _names(buckets: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """us per unit by (bucket, short name): template arguments change with every build of a kernel."""
    names: dict[tuple[str, str], float] = {}
    for key, bucket in buckets.items():
        for name in bucket["names"]:
            short = (key, short_name(_text(name["name"])))
            names[short] = names.get(short, 0.0) + _number(name["per_unit_us"])
    return names


def _values(spread: Mapping[str, float]) -> Values:
    return Values(*(_number(spread[name]) for name in ("median", "mean", "quartile_1", "quartile_3")))


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= float(value) < inf:
        raise ValueError(f"{value!r:.40} where a number from 0 on stands")
    return float(value)


def _text(value: Any) -> str:
    """A saved answer may come from another person: no control characters, nothing that cannot be written."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} where a text stands")
    return printable(value)


def diff(a: Side, b: Side) -> Diff:
    """Compare two sides of one unit. Raises CouldNotRun when one counts steps and the other graphs."""
    if a.unit != b.unit:
        raise CouldNotRun(
            f"{a.name} is counted by {a.unit}, {b.name} by {b.unit}: they do not compare",
            "record both with vLLM's step annotations, or both without",
        )
    rows = [_row(name, (0, getattr(a, name)), (0, getattr(b, name)), a.units, b.units) for name in WHOLE]
    nothing = (0.0, Values(0, 0, 0, 0))
    keys = list(a.buckets) + [key for key in b.buckets if key not in a.buckets]
    rows += [_row(k, a.buckets.get(k, nothing), b.buckets.get(k, nothing), a.units, b.units) for k in keys]
    changed = [
        (name, bucket, a.names.get((bucket, name), 0.0), b.names.get((bucket, name), 0.0))
        for bucket, name in {**a.names, **b.names}
    ]
    changed = [item for item in changed if abs(item[3] - item[2]) >= 1.0]
    changed.sort(key=lambda item: -abs(item[3] - item[2]))
    return Diff(a, b, _conditions(a, b), tuple(rows), tuple(changed[:8]))


def _row(key: str, a: tuple[float, Values], b: tuple[float, Values], units_a: int, units_b: int) -> Row:
    return Row(key, a[0], b[0], a[1].mean, b[1].mean, _judge(a, b, units_a, units_b))


def _judge(a: tuple[float, Values], b: tuple[float, Values], units_a: int, units_b: int) -> str:
    if a[0] != b[0]:
        return MOVED  # another number of calls is a change whatever the times are
    first, second = a[1].error(units_a), b[1].error(units_b)
    if first is None or second is None:
        return UNKNOWN
    change = abs(b[1].median - a[1].median)
    beyond = change > SIGMAS * sqrt(first * first + second * second)
    return MOVED if beyond and change > LEAST_CHANGE * max(a[1].median, b[1].median) else SAME


def _conditions(a: Side, b: Side) -> tuple[str, ...]:
    facts = (
        ("GPU", a.device, b.device),
        ("rank", a.rank, b.rank),
        ("number of ranks", a.world_size, b.world_size),
        (f"kind of {a.unit}", a.label, b.label),
        ("layers", _layers(a), _layers(b)),
    )
    return tuple(f"{name}: {one or 'not said'} against {two or 'not said'}" for name, one, two in facts if one != two)


def _layers(side: Side) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in side.layers.items())


def diff_json(found: Diff) -> dict[str, Any]:
    """The JSON of a comparison; us per unit."""
    return {
        "schema": "sm86.trace_diff",
        "version": 1,
        "unit": found.a.unit,
        "a": {"file": found.a.name, "units": found.a.units},
        "b": {"file": found.b.name, "units": found.b.units},
        "conditions_that_differ": list(found.conditions),
        "rows": [
            {
                "name": row.key,
                "calls_a": row.calls_a,
                "calls_b": row.calls_b,
                "a_us": row.a,
                "b_us": row.b,
                "judgement": row.judgement,
            }
            for row in found.rows
        ],
        "kernels": [{"name": n, "bucket": k, "a_us": x, "b_us": y} for n, k, x, y in found.names],
        "moved": found.moved,
    }
