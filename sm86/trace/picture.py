"""One step drawn like a flame graph: the unit, its layers, their sublayers, and the kernels of each stream."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.trace.analysis import Example, FileResult
from sm86.trace.kernels import Bucket
from sm86.trace.layers import CSA

COLOURS = {
    Bucket.ALL_REDUCE: "#d1495b",
    Bucket.ALL_GATHER: "#8d1f3c",
    Bucket.MOE_ROUTING: "#f2b880",
    Bucket.MOE_EXPERTS: "#e07b39",
    Bucket.LINEAR: "#9aa5b1",
    Bucket.INDEXER: "#1b6ca8",
    Bucket.CSA: "#3fa7d6",
    Bucket.HCA: "#2a9d8f",
    Bucket.SWA: "#8ac926",
    Bucket.MHC: "#7b5ea7",
    Bucket.COMPRESSOR: "#59788e",
    Bucket.KV_INSERT: "#c3a6d8",
    Bucket.SAMPLING: "#b5838d",
    Bucket.ATTENTION: "#4cc9a0",
    Bucket.OTHER: "#d9d9d9",
}
LAYER_COLOURS = {"CSA": "#cfe8f7", "HCA": "#cdeae6", "SWA": "#e3f3c4"}
NO_PLOT = "install the plot extra: pip install -e '.[plot]'"


def draw(result: FileResult, path: Path) -> None:
    """Write a PNG of one typical step (or graph) of `result` to `path`.

    Raises CouldNotRun when there is none, when matplotlib is not installed, or when `path` cannot be written.
    """
    view = result.main
    example = view.example if view else None
    if view is None or example is None:
        raise CouldNotRun(f"{result.path.name} has neither a step nor a graph to draw", "leave --png out")
    if path.suffix.lower() != ".png":
        raise CouldNotRun(f"{path} does not end in .png", "give a file name that ends in .png")
    write_atomic(path, _png(example, _title(result, view.unit, example)))


def _title(result: FileResult, unit: str, example: Example) -> str:
    rank = "" if result.rank is None else f", rank {result.rank}"
    view = result.main
    median = f" (median {view.span.median / 1e6:.3f})" if view else ""
    return (
        f"{result.device or 'GPU without a name'}{rank}: one {unit} of {len(example.names)} GPU events, "
        f"span {example.unit.span / 1e6:.3f} ms{median}"
    )


def _png(example: Example, title: str) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise CouldNotRun("matplotlib is not installed, so nothing can be drawn", NO_PLOT) from None

    unit = example.unit
    begin = min(unit.starts)
    streams = list(dict.fromkeys(example.streams))
    rows = ["layer", "sublayer", *(f"stream {stream}" for stream in streams)]
    boxes = [
        _Box((low - begin) / 1000, (high - low) / 1000, level, colour, text)
        for level, spans in enumerate((_layer_spans(example), _sublayer_spans(example)))
        for low, high, text, colour in spans
    ]
    for index, stream in enumerate(example.streams):
        colour = COLOURS[example.placement.buckets[index]]
        x, width = (unit.starts[index] - begin) / 1000, unit.durations[index] / 1000
        boxes.append(_Box(x, width, 2 + streams.index(stream), colour, example.names[index]))

    windows = [(0.0, unit.span / 1000), *_close_up(example, begin)]
    figure = Figure(figsize=(22, 1.6 + len(windows) * (0.75 + 0.62 * len(rows))), dpi=110)
    FigureCanvasAgg(figure)
    for number, (low, high) in enumerate(windows):
        axes = figure.add_subplot(len(windows), 1, number + 1)
        shown = [box for box in boxes if box.x < high and box.x + box.width > low]
        axes.add_collection(
            PolyCollection(
                [box.corners() for box in shown],
                facecolors=[box.colour for box in shown],
                edgecolors="white",
                linewidths=[0.5 if box.level < 2 else 0.12 for box in shown],
            )
        )
        for box in shown:
            # about 105 letters of this size fit into a tenth of the width
            fits = int(box.width / (high - low) * 300)
            text = box.text if len(box.text) <= fits else box.text[: fits - 1] + "…" if fits > 4 and number else ""
            if text and low <= box.x and box.x + box.width <= high * 1.0001:
                axes.text(
                    box.x + box.width / 2, -box.level, text, ha="center", va="center", fontsize=7, color="#222222"
                )
        axes.set_xlim(low, high)
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.set_yticks([-index for index in range(len(rows))], rows)
        axes.set_title(title if number == 0 else "two layers of it", loc="left", fontsize=12)
        axes.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        if number == len(windows) - 1:
            axes.set_xlabel("microseconds since the first GPU event")
    totals: dict[Bucket, int] = {}
    for bucket, duration in zip(example.placement.buckets, unit.durations, strict=True):
        totals[bucket] = totals.get(bucket, 0) + duration
    figure.legend(
        handles=[
            Patch(facecolor=COLOURS[bucket], label=f"{bucket.title} {time / unit.sum:.1%}")
            for bucket, time in sorted(totals.items(), key=lambda item: -item[1])
        ],
        loc="lower center",
        ncols=min(7, len(totals)),
        frameon=False,
        fontsize=9,
    )
    lines = (len(totals) + 6) // 7
    height = figure.get_figheight()
    bottom = (0.62 + 0.24 * lines) / height
    figure.subplots_adjust(left=0.055, right=0.99, top=1 - 0.45 / height, bottom=bottom, hspace=0.3)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle: where it starts and how wide it is in us, its row, colour and words."""

    x: float
    width: float
    level: int
    colour: str
    text: str

    def corners(self) -> list[tuple[float, float]]:
        low, high = -self.level - 0.42, -self.level + 0.42
        return [(self.x, low), (self.x + self.width, low), (self.x + self.width, high), (self.x, high)]


def _close_up(example: Example, begin: int) -> list[tuple[float, float]]:
    """The window of a CSA layer and the one behind it, from the middle of the step; none without layers."""
    kinds = example.placement.kinds
    if len(kinds) < 4:
        return []
    spans = _spans(example, example.placement.layers)
    middle = len(kinds) // 2
    first = next((layer for layer in range(middle, len(kinds) - 1) if kinds[layer] == CSA), middle)
    return [((spans[first][0] - begin) / 1000, (spans[first + 1][1] - begin) / 1000)]


def _layer_spans(example: Example) -> list[tuple[int, int, str, str]]:
    """(start, end, words, colour) of each layer in ns; what lies outside of layers is left white."""
    kinds = example.placement.kinds
    spans = _spans(example, example.placement.layers)
    return [
        (low, high, f"{kinds[layer]} {layer}", LAYER_COLOURS.get(kinds[layer], "#eeeeee"))
        for layer, (low, high) in spans.items()
        if layer >= 0
    ]


def _sublayer_spans(example: Example) -> list[tuple[int, int, str, str]]:
    placement = example.placement
    out = []
    seen: set[int] = set()
    for sublayer, (low, high) in sorted(_spans(example, placement.sublayers).items()):
        layer = next(layer for layer, at in zip(placement.layers, placement.sublayers, strict=True) if at == sublayer)
        if layer < 0:
            out.append((low, high, "start" if sublayer == 0 else "end", "#f4f4f4"))
        elif layer in seen:
            out.append((low, high, "MoE", "#fbe3cd"))
        else:
            seen.add(layer)
            out.append((low, high, "attn", LAYER_COLOURS.get(placement.kinds[layer], "#eeeeee")))
    return out


def _spans(example: Example, groups: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    unit = example.unit
    for group, start, duration in zip(groups, unit.starts, unit.durations, strict=True):
        low, high = spans.get(group, (start, start))
        spans[group] = (min(low, start), max(high, start + duration))
    return spans
