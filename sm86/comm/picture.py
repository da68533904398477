"""The matrix drawn: microseconds over the size, one line for each setting, the spread as a band."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from sm86.comm.matrix import BASELINE, FLASHINFER, HOST
from sm86.comm.numbers import Row
from sm86.comm.step import PREFILL_BYTES, size_words
from sm86.errors import CouldNotRun
from sm86.files import write_atomic

NO_PLOT = "install the plot extra: pip install 'sm86[plot]'"
_GREYS = ("#8d99a6", "#a8b2bc", "#6f7c8a", "#bcc5cd", "#57636f", "#cdd4da")
_OWN = {BASELINE: "#d1495b", HOST: "#1b6ca8", FLASHINFER: "#8ac926"}


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

    figure = Figure(figsize=(10, 6), dpi=130, layout="constrained")
    axes = figure.subplots()
    grey = 0
    for row in drawn:
        sizes = sorted(size for size in row.timings if size != PREFILL_BYTES)
        middle = [row.timings[size].median for size in sizes]
        colour = _OWN.get(row.setting.name) or _OWN.get(row.setting.path)
        if colour is None:
            colour, grey = _GREYS[grey % len(_GREYS)], grey + 1
        own = row.setting.name == BASELINE or row.setting.path in _OWN
        axes.plot(sizes, middle, marker="o", markersize=3.5, linewidth=2.2 if own else 1.1, color=colour)
        axes.fill_between(
            sizes, [row.timings[s].low for s in sizes], [row.timings[s].high for s in sizes], color=colour, alpha=0.15
        )
        axes.annotate(
            row.setting.name,
            (sizes[-1], middle[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
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
    axes.set_xlim(every[0] * 0.9, every[-1] * 2.2)
    axes.set_title(title + (f"\n{mark}: not a rig's numbers" if mark else ""), fontsize=10, loc="left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomic(path, buffer.getvalue())
