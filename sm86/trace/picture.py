"""One step drawn like a flame graph: the unit, its layers, their sublayers, and the kernels of each stream."""

from __future__ import annotations

import io
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.trace.analysis import Example, FileResult
from sm86.trace.kernels import Bucket

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
NO_PLOT = "install the plot extra: pip install 'sm86[plot]'"


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
    rows: list[str] = ["layer", "sublayer", *(f"stream {stream}" for stream in streams)]
    boxes: list[tuple[float, float, int, str]] = []
    labels: list[tuple[float, float, int, str]] = []
    for level, spans in enumerate((_layer_spans(example), _sublayer_spans(example))):
        for low, high, text, colour in spans:
            x, width = (low - begin) / 1000, (high - low) / 1000
            boxes.append((x, width, level, colour))
            labels.append((x, width, level, text))
    for index, stream in enumerate(example.streams):
        bucket = example.placement.buckets[index]
        x, width = (unit.starts[index] - begin) / 1000, unit.durations[index] / 1000
        boxes.append((x, width, 2 + streams.index(stream), COLOURS[bucket]))

    whole = unit.span / 1000
    figure = Figure(figsize=(22, 1.9 + 0.62 * len(rows)), dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.add_collection(
        PolyCollection(
            [[(x, -y - 0.42), (x + w, -y - 0.42), (x + w, -y + 0.42), (x, -y + 0.42)] for x, w, y, _ in boxes],
            facecolors=[colour for _, _, _, colour in boxes],
            edgecolors="white",
            linewidths=[0.5 if y < 2 else 0.12 for _, _, y, _ in boxes],
        )
    )
    for x, width, level, text in labels:
        if text and width > whole * 0.0085 * max(1, len(text) / 3):
            axes.text(x + width / 2, -level, text, ha="center", va="center", fontsize=7, color="#222222")
    axes.set_xlim(0, whole)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_yticks([-index for index in range(len(rows))], rows)
    axes.set_xlabel("microseconds since the first GPU event")
    axes.set_title(title, loc="left", fontsize=12)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
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
    figure.subplots_adjust(left=0.055, right=0.99, top=0.9, bottom=(0.62 + 0.24 * lines) / figure.get_figheight())
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


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
