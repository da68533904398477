"""The matrix drawn: microseconds over the size, one line for each setting, the spread as a band."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm86.comm.matrix import BASELINE, FLASHINFER, GLOO, HOST
from sm86.comm.numbers import Row
from sm86.comm.step import PREFILL_BYTES, size_words
from sm86.errors import CouldNotRun
from sm86.files import write_atomic

NO_PLOT = "install the plot extra: pip install -e '.[plot]'"
BASELINE_COLOUR = "#d1495b"
_PATHS = {HOST: "#1b6ca8", FLASHINFER: "#5a9e0f", GLOO: "#7b5ea7"}
_GROUPS = (("nccl-ring", "#c9803f"), ("nccl-tree", "#2a9d8f"), ("nccl-p2p", "#8a6fb0"), ("nccl", "#9aa5b1"))
"""Settings of one kind share a colour; the label tells them apart."""

LABEL_POINTS = 9.0


def require_png(path: Path) -> None:
    """Raise CouldNotRun before anything is measured, where the picture could not be drawn."""
    import importlib.util

    if path.suffix.lower() != ".png":
        raise CouldNotRun(f"{path} does not end in .png", "give a file name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise CouldNotRun("matplotlib is not installed, so nothing can be drawn", NO_PLOT)


def draw(rows: Sequence[Row], title: str, mark: str, path: Path) -> None:
    """Write a PNG. Raises CouldNotRun: nothing was measured, no matplotlib, unwritable."""
    require_png(path)
    drawn = [row for row in rows if row.measured and any(size != PREFILL_BYTES for size in row.timings)]
    if not drawn:
        raise CouldNotRun("nothing was measured, so nothing can be drawn", "see the reason in each row")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 6.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    for row in drawn:
        sizes = sorted(size for size in row.timings if size != PREFILL_BYTES)
        middle = [row.timings[size].median for size in sizes]
        colour, wide = _colour(row), row.setting.name == BASELINE or row.setting.path in _PATHS
        axes.plot(sizes, middle, marker="o", markersize=3.5, linewidth=2.2 if wide else 1.1, color=colour)
        axes.fill_between(
            sizes, [row.timings[s].low for s in sizes], [row.timings[s].high for s in sizes], color=colour, alpha=0.15
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    every = sorted({size for row in drawn for size in row.timings if size != PREFILL_BYTES})
    axes.set_xticks(every, [size_words(size) for size in every], fontsize=8)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("one all-reduce, bf16")
    axes.set_ylabel("us, the slowest rank")
    axes.grid(alpha=0.25)
    axes.set_xlim(every[0] * 0.9, every[-1] * 2.4)
    _label(axes, drawn, figure.dpi)
    axes.set_title(title + (f"\n{mark}: not a rig's numbers" if mark else ""), fontsize=10, loc="left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _colour(row: Row) -> str:
    if row.setting.name == BASELINE:
        return BASELINE_COLOUR
    own = _PATHS.get(row.setting.path)
    return own or next(colour for start, colour in _GROUPS if row.setting.name.startswith(start))


def _label(axes: Any, rows: Sequence[Row], dpi: float) -> None:
    """Names at the lines' right ends, moved apart where they would lie on one another."""
    ends = []
    for row in rows:
        last = max(size for size in row.timings if size != PREFILL_BYTES)
        ends.append((row.timings[last].median, last, row))
    ends.sort(key=lambda end: end[0])
    wanted = [float(axes.transData.transform((size, value))[1]) * 72 / dpi for value, size, _ in ends]
    for (value, size, row), own, place in zip(ends, wanted, _apart(wanted, axes.bbox.y1 * 72 / dpi - 6), strict=True):
        axes.annotate(
            row.setting.name,
            (size, value),
            xytext=(8, place - own),
            textcoords="offset points",
            fontsize=7.5,
            va="center",
            color=_colour(row),
        )


def _apart(wanted: Sequence[float], top: float) -> list[float]:
    """Places in points for labels that want to be at `wanted` (rising), LABEL_POINTS apart and not above `top`."""
    places: list[float] = []
    for own in wanted:
        places.append(max(own, places[-1] + LABEL_POINTS) if places else own)
    for at in reversed(range(len(places))):
        places[at] = min(places[at], top)
        top = places[at] - LABEL_POINTS
    return places
