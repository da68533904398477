"""A chart as a PNG, for Markdown and for posting. Draws with matplotlib where it is installed, writes no file."""

from __future__ import annotations

import io
from typing import Any

from sm86.report.charts import Bars, Chart, Lines, Stacks, amount

COLOURS = ("#2f6fd0", "#d9772b", "#1d9a78", "#a6519b", "#b99312", "#6a5fcf", "#71808f", "#c2484a")
DPI = 160


def available() -> bool:
    """Whether pictures can be drawn here."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def png(chart: Chart) -> bytes:
    """The picture, with the mark of its numbers in it: a picture is posted without its page."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = len(chart.bars) if isinstance(chart, Bars) else len(chart.rows) if isinstance(chart, Stacks) else 0
    figure = Figure(figsize=(8, 3.6 if isinstance(chart, Lines) else 1.3 + 0.36 * max(rows, 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    # a dollar would begin a formula
    axes.set_title(_text(chart.title), loc="left", fontsize=11, fontweight="bold")
    if chart.mark:
        axes.set_title(f"{_text(chart.mark)} numbers", loc="right", fontsize=9, color="#7a4b00", fontweight="bold")
    if isinstance(chart, Bars):
        _bars(axes, chart)
    elif isinstance(chart, Lines):
        _lines(axes, chart)
    else:
        _stacks(axes, chart)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _text(text: str) -> str:
    return text.replace("$", r"\$")


def _bars(axes: Any, chart: Bars) -> None:
    places = range(len(chart.bars))
    axes.barh(places, [bar.value for bar in chart.bars], height=0.62, color=COLOURS[0])
    for place, bar in zip(places, chart.bars, strict=True):
        reach = bar.value
        if bar.low is not None and bar.high is not None:
            spread = [[max(bar.value - bar.low, 0)], [max(bar.high - bar.value, 0)]]
            axes.errorbar(bar.value, place, xerr=spread, color="#1b2028", capsize=3, linewidth=1.2)
            reach = max(reach, bar.high)
        said = amount(bar.value, chart.unit)
        if bar.published is not None:
            axes.plot(bar.published, place, marker="D", markersize=7, color="white", markeredgecolor="#1b2028")
            reach, said = max(reach, bar.published), f"{said} (published {amount(bar.published, chart.unit)})"
        axes.annotate(said, (reach, place), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(places, [_text(bar.label) for bar in chart.bars], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    axes.set_xlabel(_text(chart.unit), fontsize=9)


def _lines(axes: Any, chart: Lines) -> None:
    if chart.band is not None:
        axes.axvspan(chart.band[0], chart.band[1], color=COLOURS[0], alpha=0.09, label=_text(chart.band[2]))
    for index, line in enumerate(chart.lines):
        colour = COLOURS[index % len(COLOURS)]
        face = "white" if line.published else colour
        axes.plot(
            [x for x, _ in line.points],
            [y for _, y in line.points],
            color=colour,
            linestyle="--" if line.published else "-",
            marker="o" if line.dots else "",
            markerfacecolor=face,
            label=_text(line.name),
        )
    axes.set_ylim(bottom=0)
    if chart.whole:
        axes.set_xticks(sorted({x for line in chart.lines for x, _ in line.points}))
    axes.set_xlabel(_text(chart.x_label), fontsize=9)
    axes.set_ylabel(_text(chart.y_label), fontsize=9)
    axes.grid(axis="y", color="#e8ebef")
    axes.legend(fontsize=9, frameon=False)


def _stacks(axes: Any, chart: Stacks) -> None:
    names = chart.part_names()
    for place, row in enumerate(chart.rows):
        left = 0.0
        for name, value in row.parts:
            axes.barh(place, value, left=left, height=0.6, color=COLOURS[names.index(name) % len(COLOURS)])
            left += value
        said = f"{amount(left)} {chart.unit}"
        if chart.limit is not None and left < chart.limit[0] < left * 1.15:
            left = chart.limit[0]  # the words would stand across the line
        axes.annotate(_text(said), (left, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
    if chart.limit is not None:
        axes.axvline(chart.limit[0], color=COLOURS[7], linestyle="--", linewidth=1.5)
    axes.set_yticks(range(len(chart.rows)), [_text(row.label) for row in chart.rows], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel(_text(chart.unit), fontsize=9)
    from matplotlib.patches import Patch

    patches = [Patch(color=COLOURS[i % len(COLOURS)], label=_text(name)) for i, name in enumerate(names)]
    axes.figure.legend(handles=patches, loc="outside lower center", ncols=min(len(names), 6), fontsize=8, frameon=False)
