"""Charts as data: what is drawn, not how. Pure. Every chart carries the mark of its numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One value, with the range of its repeats and the published value beside it where they may be compared."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars of one unit, from zero."""

    title: str
    unit: str
    bars: tuple[Bar, ...]
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points in ascending x. published: drawn dashed and hollow, as it was not measured here."""

    name: str
    points: tuple[tuple[float, float], ...]
    published: bool = False
    dots: bool = True


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over one x axis; y begins at zero. band: a span of x with a word for it. whole: x are whole numbers."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    band: tuple[float, float, str] | None = None
    whole: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """One row of a stacked bar: parts in order, each with its name and value."""

    label: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Stacked bars of one unit; limit: a line that the parts must not pass, with its word."""

    title: str
    unit: str
    rows: tuple[Stack, ...]
    limit: tuple[float, str] | None = None
    mark: str = ""

    def part_names(self) -> tuple[str, ...]:
        """Names of parts in order of first appearance: the order of their colours."""
        return tuple(dict.fromkeys(name for row in self.rows for name, _ in row.parts))


Chart = Bars | Lines | Stacks


RATE = "tok/s"


def amount(value: float, unit: str = "") -> str:
    """A number with as many digits as it deserves: 120.1, 9.24, 0.0123. Rates of decode have one, as published."""
    if unit == RATE:
        return f"{value:,.1f}"
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def ticks(top: float, wanted: int = 5) -> tuple[float, ...]:
    """Round numbers from 0 to at least `top`."""
    if not top > 0:
        return (0.0, 1.0)
    rough = top / wanted
    power = 10.0 ** _exponent(rough)
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)
    count = 0
    marks = [0.0]
    while marks[-1] < top * 0.999:
        count += 1
        marks.append(step * count)
    return tuple(marks)


def _exponent(value: float) -> int:
    from math import floor, log10

    return floor(log10(value))
