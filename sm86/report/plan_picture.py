"""Memory plans as stacked bars, a PNG: one bar per envelope, what is certain solid, what is estimated hatched."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.fit.memory_plan import MemoryPlan
from sm86.plan.memory import KINDS
from sm86.plan.units import GIB

COLOURS = {
    "weights": "#4c6e91",
    "KV pool": "#2a9d8f",
    "tables and buffers": "#8ac926",
    "activations": "#f2b880",
    "graphs": "#e07b39",
    "collectives": "#d1495b",
    "CUDA": "#7b5ea7",
    "allocator": "#b8b8b8",
}
NO_PLOT = "install the plot extra: pip install -e '.[plot]'"


def draw(plans: Sequence[MemoryPlan], path: Path) -> None:
    """Write the bars of one or more plans of the same rig to `path`.

    Raises CouldNotRun when the name does not end in .png, when matplotlib is not installed, or when `path` cannot be
    written.
    """
    require_png(path)
    write_atomic(path, _png(plans))


def require_png(path: Path) -> None:
    """Raise CouldNotRun for a name that is no PNG's."""
    if path.suffix.lower() != ".png":
        raise CouldNotRun(f"{path} does not end in .png", "give a file name that ends in .png")


def _png(plans: Sequence[MemoryPlan]) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise CouldNotRun("matplotlib is not installed, so nothing can be drawn", NO_PLOT) from None

    figure = Figure(figsize=(13, 2.6 + 0.62 * len(plans)), dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(1, 1, 1)
    least = min(dict(plan.by_kind())[KINDS[0]].low for plan in plans) / GIB
    widest = max(max(plan.used.high, plan.gpu.total) for plan in plans) / GIB
    for row, plan in enumerate(plans):
        left = 0.0
        for kind, size in plan.by_kind():
            low, high = size.low / GIB, size.high / GIB
            axes.barh(-row, low, left=left, height=0.62, color=COLOURS[kind], edgecolor="white", linewidth=0.6)
            left += low
            if high > low:
                axes.barh(
                    -row,
                    high - low,
                    left=left,
                    height=0.62,
                    color=COLOURS[kind],
                    alpha=0.35,
                    edgecolor=COLOURS[kind],
                    linewidth=0.6,
                    hatch="////",
                )
                left += high - low
        words = f"{plan.verdict}: {_gib(plan.left.low)} to {_gib(plan.left.high)} GiB left"
        axes.text(max(left, plan.gpu.free / GIB) + 0.08, -row, words, va="center", fontsize=9, color="#333333")
        axes.plot([plan.gpu.free / GIB] * 2, [-row - 0.42, -row + 0.42], color="black", linewidth=2)
    start = max(0.0, min(least - 1.5, least * 0.9)) if least > 6 else 0.0
    axes.set_xlim(start, widest + (widest - start) * 0.34)
    axes.set_ylim(-len(plans) + 0.4, 0.6)
    axes.set_yticks([-row for row in range(len(plans))], [_label(plan) for plan in plans])
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    cut = f" (axis begins at {start:.1f})" if start else ""
    axes.set_xlabel(f"GiB of one GPU{cut}; black: free on the tightest GPU; hatched: between the ends of an estimate")
    rig = plans[0].rig
    mark = f" [{rig.mark}]" if rig.mark else ""
    axes.set_title(f"Memory per GPU on {rig.title}{mark}, planned, not measured", loc="left", fontsize=12)
    figure.legend(
        handles=[Patch(facecolor=COLOURS[kind], label=kind) for kind in KINDS],
        loc="lower center",
        ncols=len(KINDS),
        frameon=False,
        fontsize=9,
    )
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.14, right=0.99, top=1 - 0.5 / height, bottom=1.15 / height)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _label(plan: MemoryPlan) -> str:
    return f"{plan.name}\n{plan.server.sequences} x {plan.server.context:,}"


def _gib(number: int) -> str:
    return f"{number / GIB:.2f}"
