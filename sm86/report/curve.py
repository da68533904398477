"""The measured curve of a ladder beside the published one: a table in plain words, and a plot. From its record."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm86.errors import CouldNotRun
from sm86.record import Record

NO_PLOT = "install the plot extra: pip install -e '.[plot]'"

MEASURED, PUBLISHED = "#1b6ca8", "#d1495b"


@dataclass(frozen=True, slots=True)
class Point:
    """One rung: tok/s of all sequences together, None where there is no number; low and high: over the repeats.

    published: None where nothing is published, and beside a number that the benchmark could not compare with it (of a
    CPU, of another rig). comparison: the benchmark's own word on the two.
    """

    label: str
    shape: str
    sequences: int
    context: int
    state: str
    value: float | None
    low: float | None
    high: float | None
    published: float | None
    comparison: str
    text: str


def points(record: Record) -> tuple[Point, ...]:
    """The rungs of a ladder's record, in their order. Raises CouldNotRun for a record of another kind."""
    if record.kind != "ladder":
        raise CouldNotRun(f"a record of kind {record.kind} has no curve", "give the record of a ladder")
    return tuple(_point(rung, record.conditions.mark) for rung in record.details["rungs"])


COMPARED = ("better", "within noise", "worse")


def _point(rung: Mapping[str, Any], mark: str) -> Point:
    repeats = rung["repeats_tok_s"]
    beside = not mark and (rung["tok_s"] is None or rung["comparison"] in COMPARED)
    return Point(
        label=str(rung["key"]),
        shape=f"{rung['sequences']} x {rung['context']}",
        sequences=int(rung["sequences"]),
        context=int(rung["context"]),
        state=str(rung["state"]),
        value=rung["tok_s"],
        low=min(repeats) if repeats else None,
        high=max(repeats) if repeats else None,
        published=rung["published_tok_s"] if beside else None,
        comparison=str(rung["comparison"]),
        text=str(rung["text"]),
    )


def table(record: Record) -> tuple[str, ...]:
    """The rungs as lines of text; every line with a measured speed carries the record's mark."""
    found = points(record)
    mark = f"  [{record.conditions.mark}]" if record.conditions.mark else ""
    rows = [("rung", "sequences x context", "measured tok/s", "published", "")]
    for point in found:
        published = "-" if point.published is None else f"{point.published:.1f}"
        rows.append((point.label, point.shape, _measured(point), published, _state(point, mark)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return tuple(
        f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


def _measured(point: Point) -> str:
    if point.value is None:
        return "-"
    if point.low is None or point.high is None or f"{point.low:.1f}" == f"{point.high:.1f}":
        return f"{point.value:.1f}"
    return f"{point.value:.1f} ({point.low:.1f} to {point.high:.1f})"


def _state(point: Point, mark: str) -> str:
    word = point.state
    if point.value is not None and point.comparison in (*COMPARED, "cannot be compared") and not mark:
        word += f", {point.comparison}"
    return word + (mark if point.value is not None else "")


def plot(record: Record, x: str = "sequences") -> bytes:
    """A PNG of tok/s over `x` ("sequences" or "context"), measured with its spread and published beside it.

    Raises CouldNotRun: matplotlib is not installed, or no rung has a number.
    """
    found = [point for point in points(record) if point.value is not None]
    if not found:
        raise CouldNotRun("no rung has a number, so there is no curve", "see why the first rung did not pass")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CouldNotRun("matplotlib is not installed, so nothing can be drawn", NO_PLOT) from None

    mark = record.conditions.mark
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    places = [getattr(point, x) for point in found]
    values = [point.value or 0.0 for point in found]
    spread = [
        [value - (point.low or value) for value, point in zip(values, found, strict=True)],
        [(point.high or value) - value for value, point in zip(values, found, strict=True)],
    ]
    name = f"measured ({mark} numbers)" if mark else "measured"
    axes.errorbar(places, values, yerr=spread, color=MEASURED, marker="o", capsize=4, label=name)
    known = [point for point in points(record) if point.published is not None]
    if known:
        axes.plot(
            [getattr(point, x) for point in known],
            [point.published or 0.0 for point in known],
            color=PUBLISHED,
            linestyle="--",
            marker="D",
            markerfacecolor="white",
            label="published (8x RTX 3090)",
        )
    for point, place, value in zip(found, places, values, strict=True):
        axes.annotate(
            f"{point.shape}\n{value:.1f}", (place, value), xytext=(8, -24), textcoords="offset points", fontsize=8
        )
    axes.set_xticks(sorted({*places, *(getattr(point, x) for point in known)}))
    axes.set_ylim(0, 1.15 * max([*values, *(point.high or 0 for point in found), *_of(known)]))
    axes.margins(x=0.12)
    axes.set_xlabel("sequences decoding together" if x == "sequences" else "context in tokens", fontsize=9)
    axes.set_ylabel("tok/s, all sequences together", fontsize=9)
    axes.set_title(f"{record.envelope}, {record.started:%Y-%m-%d}", loc="left", fontsize=11, fontweight="bold")
    axes.grid(axis="y", color="#e8ebef")
    axes.legend(fontsize=9, frameon=False, loc="lower right")
    figure.supxlabel(_conditions(record), fontsize=7, color="#666666")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
    return buffer.getvalue()


def _of(known: Sequence[Point]) -> list[float]:
    return [point.published for point in known if point.published is not None]


def _conditions(record: Record) -> str:
    at = record.conditions
    names = sorted({str(gpu.get("name", "GPU")) for gpu in at.gpus})
    where = "CPU" if at.engine == "cpu" else f"{len(at.gpus)} x {', '.join(names)}" if names else "GPUs unknown"
    words = [where, f"vLLM {at.vllm_version or 'unknown'}", f"revision {(at.git_rev or 'unknown')[:12]}"]
    return ", ".join(words)
