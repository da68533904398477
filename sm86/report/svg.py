"""A chart as inline SVG. Pure.

Colours and fonts are classes that the page's style sheet fills, so that one drawing serves light, dark and paper. A
drawing is made for one width in CSS pixels and scaled little: on a narrow screen another one is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sm86.report.charts import Bar, Bars, Chart, Lines, Stacks, amount, ticks

WIDE, NARROW = 760, 340
CHAR = 7.1
"""Usual width of a character of the labels, CSS pixels."""

COLOURS = 8


def svg(chart: Chart, width: int = WIDE) -> str:
    """The drawing; its texts are escaped."""
    if isinstance(chart, Bars):
        return _bars(chart, width)
    return _lines(chart, width) if isinstance(chart, Lines) else _stacks(chart, width)


class _Sheet:
    """Elements of one drawing."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "label", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{kind}"/>')

    def box(self, x: float, y: float, wide: float, high: float, kind: str, title: str = "", round_: float = 0) -> None:
        hint = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(wide, 0))}" height="{_n(high)}" rx="{_n(round_)}" '
            f'class="{kind}">{hint}</rect>'
        )

    def dot(self, x: float, y: float, kind: str, title: str, radius: float = 4) -> None:
        self.parts.append(
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{kind}"><title>{escape(title)}</title></circle>'
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        joined = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(f'<polyline points="{joined}" class="{kind}"/>')

    def done(self, height: float, chart: Chart) -> str:
        title = chart.title + (f" ({chart.mark})" if chart.mark else "")
        return (
            f'<svg viewBox="0 0 {self.width} {_n(height)}" role="img" aria-label="{escape(title)}" '
            f'style="max-width:{self.width}px">{"".join(self.parts)}</svg>'
        )


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _head(sheet: _Sheet, chart: Chart, axis: str) -> float:
    """Title, unit and mark at the top; the height they take."""
    sheet.text(0, 14, chart.title, "title")
    words = axis + (f" · {chart.mark} numbers" if chart.mark else "")
    sheet.text(0, 31, words, "unit")
    return 44


def _bars(chart: Bars, width: int) -> str:
    sheet = _Sheet(width)
    top = _head(sheet, chart, chart.unit)
    narrow = width < WIDE
    label = 0.0 if narrow else min(max((len(b.label) for b in chart.bars), default=0) * CHAR + 12, width * 0.36)
    most = max((max(b.value, b.high or 0, b.published or 0) for b in chart.bars), default=1) or 1
    said = max((len(_said(b, chart.unit)) for b in chart.bars), default=0) * CHAR + 18
    room = width - label - said
    row, thick = (44.0, 16.0) if narrow else (30.0, 18.0)
    for index, bar in enumerate(chart.bars):
        y = top + index * row
        if narrow:
            sheet.text(0, y + 11, _fit(bar.label, width), "label")
            y += 17
        else:
            sheet.text(label - 10, y + thick / 2 + 4, _fit(bar.label, label - 10), "label", "end")
        end = room * bar.value / most
        reach = end
        sheet.box(label, y, end, thick, "c1", f"{bar.label}: {amount(bar.value, chart.unit)} {chart.unit}", 2)
        if bar.low is not None and bar.high is not None:
            a, b, middle = label + room * bar.low / most, label + room * bar.high / most, y + thick / 2
            for x1, y1, x2, y2 in (
                (a, middle, b, middle),
                (a, middle - 4, a, middle + 4),
                (b, middle - 4, b, middle + 4),
            ):
                sheet.line(x1, y1, x2, y2, "whisker")
            reach = max(reach, b - label)
        if bar.published is not None:
            x = room * bar.published / most
            sheet.box(
                label + x - 2.5, y - 3, 5, thick + 6, "published", f"published: {amount(bar.published, chart.unit)}", 1
            )
            reach = max(reach, x + 3)
        sheet.text(label + reach + 7, y + thick / 2 + 4, _said(bar, chart.unit), "value")
    height = top + len(chart.bars) * row + 2
    if not narrow:
        sheet.line(label, top - 4, label, height - 4, "axis")
    return sheet.done(height, chart)


def _said(bar: Bar, unit: str) -> str:
    return amount(bar.value, unit) + (
        f" (published {amount(bar.published, unit)})" if bar.published is not None else ""
    )


def _fit(text: str, room: float) -> str:
    most = max(int(room / CHAR), 4)
    return text if len(text) <= most else text[: most - 1] + "…"


def _lines(chart: Lines, width: int) -> str:
    sheet = _Sheet(width)
    top = _head(sheet, chart, chart.y_label) + _legend(sheet, [line.name for line in chart.lines], width, 44)
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points]
    marks = ticks(max(ys, default=1), 4)
    left, right, high = max(len(amount(m)) for m in marks) * CHAR + 12, width - 10.0, 200.0
    bottom = top + high
    # whole numbers (sequences) begin before the first one; measured time begins at zero
    low_x, high_x = (min(xs) - 0.4, max(xs) + 0.4) if chart.whole else (0.0, max(xs, default=1) or 1)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * (x - low_x) / (high_x - low_x), bottom - high * y / marks[-1]

    if chart.band is not None:
        start, end, word = chart.band
        x1, x2 = at(start, 0)[0], at(min(end, high_x), 0)[0]
        sheet.box(x1, top, x2 - x1, high, "band")
        sheet.text(x1 + 6, top + 14, word, "unit")
    for mark in marks:
        y = at(low_x, mark)[1]
        sheet.line(left, y, right, y, "axis" if mark == 0 else "grid")
        sheet.text(left - 7, y + 4, amount(mark), "tick", "end")
    x_marks = sorted(set(xs)) if chart.whole else [m for m in ticks(high_x, 4 if width < WIDE else 7) if m <= high_x]
    for mark in x_marks:
        sheet.text(at(mark, 0)[0], bottom + 17, amount(mark), "tick", "middle")
    sheet.text((left + right) / 2, bottom + 35, chart.x_label, "unit", "middle")
    for index, line in enumerate(chart.lines):
        colour = f"l{index % COLOURS + 1}"
        points = [at(x, y) for x, y in line.points]
        sheet.path(points, f"{colour} dashed" if line.published else colour)
        if line.dots:
            for (x, y), (real_x, real_y) in zip(points, line.points, strict=True):
                kind = f"d{index % COLOURS + 1}" + (" hollow" if line.published else "")
                sheet.dot(
                    x, y, kind, f"{line.name}, {amount(real_x)} {chart.x_label}: {amount(real_y)} {chart.y_label}"
                )
    return sheet.done(bottom + 42, chart)


def _legend(sheet: _Sheet, names: Sequence[str], width: int, y: float) -> float:
    """Names with their colours from `y` on, in as many lines as they need; the height they take."""
    x, rows = 0.0, 1
    for index, name in enumerate(names):
        wide = len(name) * CHAR + 32
        if x and x + wide > width:
            x, rows = 0.0, rows + 1
        level = y + (rows - 1) * 19
        sheet.box(x, level, 11, 11, f"c{index % COLOURS + 1}", "", 2)
        sheet.text(x + 17, level + 10, _fit(name, width - 20), "label")
        x += wide
    return rows * 19 + 8.0


def _stacks(chart: Stacks, width: int) -> str:
    sheet = _Sheet(width)
    names = chart.part_names()
    top = _head(sheet, chart, chart.unit)
    top += _legend(sheet, names, width, top)
    narrow = width < WIDE
    one = len(chart.rows) == 1
    label = 0.0 if narrow or one else min(max(len(r.label) for r in chart.rows) * CHAR + 12, width * 0.36)
    totals = [sum(value for _, value in row.parts) for row in chart.rows]
    most = max([*totals, chart.limit[0] if chart.limit else 0]) or 1
    room = width - label - max(len(amount(t)) + len(chart.unit) for t in totals) * CHAR - 18
    row_high = 30.0 if not narrow or one else 46.0
    for index, (row, total) in enumerate(zip(chart.rows, totals, strict=True)):
        y = top + index * row_high
        if narrow and not one:
            sheet.text(0, y + 11, _fit(row.label, width), "label")
            y += 17
        elif not one:
            sheet.text(label - 10, y + 15, _fit(row.label, label - 10), "label", "end")
        x = label
        for name, value in row.parts:
            wide = room * value / most
            sheet.box(x, y, max(wide - 1, 0.5), 20, f"c{names.index(name) % COLOURS + 1}",
                      f"{name}: {amount(value)} {chart.unit}")  # fmt: skip
            if wide > len(amount(value)) * CHAR + 8:
                sheet.text(x + wide / 2, y + 14.5, amount(value), "inside", "middle")
            x += wide
        said = f"{amount(total)} {chart.unit}"
        if chart.limit is not None and x < (line := label + room * chart.limit[0] / most) < x + len(said) * CHAR + 12:
            x = line  # the words would stand across the line
        sheet.text(x + 7, y + 14.5, said, "value")
    height = top + len(chart.rows) * row_high
    if chart.limit is not None:
        x = label + room * chart.limit[0] / most
        sheet.line(x, top - 4, x, height, "limit")
        sheet.text(x, height + 14, chart.limit[1], "unit", "end" if x > width / 2 else "start")
        height += 20
    return sheet.done(height + 2, chart)
