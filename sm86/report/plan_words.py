"""Console and small words that the planner's tables share. Nothing is computed here."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Literal

from sm86.plan.memory import mib
from sm86.plan.units import Bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 120
LEAST_WIDTH = 80
"""Narrower terminals wrap the lines themselves: a number that is cut short is worse."""

WIDE = 112
"""Columns from which on a table may show more."""

STYLES = {
    "fits": "green",
    "pass": "green",
    "uncertain": "yellow",
    "not seen": "yellow",
    "does not fit": "bold red",
    "fail": "bold red",
    "not applicable": "dim",
}


def console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for `file` (stdout): as wide as the terminal (or COLUMNS), but at least LEAST_WIDTH; PIPED_WIDTH where
    there is neither."""
    from rich.console import Console

    made = Console(file=file, highlight=False, markup=False, emoji=False, width=width)
    if width is None and not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(file=file, highlight=False, markup=False, emoji=False, width=PIPED_WIDTH)
    if width is None and made.width < LEAST_WIDTH:
        made = Console(file=file, highlight=False, markup=False, emoji=False, width=LEAST_WIDTH)
    return made


def table(*columns: str) -> Table:
    """A table without lines; a column whose name begins with ">" is right-justified, with "<" it may wrap."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for column in columns:
        wraps = column.startswith("<")
        justify: Literal["right", "left"] = "right" if column.startswith(">") else "left"
        # what must not wrap must not be cut in silence either
        overflow: Literal["fold", "ellipsis"] = "fold" if wraps else "ellipsis"
        made.add_column(column.lstrip("<>"), justify=justify, no_wrap=not wraps, overflow=overflow)
    return made


def span(size: Bytes) -> str:
    """MiB: one number, or both ends."""
    low, high = mib(size.low), mib(size.high)
    return low if low == high else f"{low} to {high}"


def bar(out: Console, low: int, high: int, most: int, width: int) -> str:
    """A bar of `low` out of `most`, and what `high` may add as a lighter piece; ">" where it would go on beyond it."""
    dark, light = ("█", "░") if (out.encoding or "").lower().startswith("utf") else ("#", ".")
    sure, end = (round(width * size / most) if most else 0 for size in (low, high))
    drawn = dark * min(sure, width) + light * (min(end, width) - min(sure, width))
    return drawn if end <= width else f"{drawn}>"
