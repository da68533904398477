"""What a report is made of, whatever it becomes: sections, tables, sentences, charts. Pure data, no markup.

All words are plain text. Markdown and HTML each escape them; nothing in a record can become markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from sm86.report.charts import Chart


@dataclass(frozen=True, slots=True)
class Code:
    """Text of a machine: a name, a command, a hash."""

    text: str


@dataclass(frozen=True, slots=True)
class Strong:
    """The number that a line is about."""

    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A record by its number in this report (1 for R1)."""

    number: int


@dataclass(frozen=True, slots=True)
class State:
    """A verdict's state: pass, fail, not seen, not applicable, or another word as the record has it."""

    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """How a number must be called: "CPU", "emulated", "other GPU"."""

    text: str


Span = str | Code | Strong | Ref | State | Mark
Inline = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column; `number`: its cells stand right."""

    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns. `left_out`: what a limit cut off, in words."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Inline, ...], ...]
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one a line."""

    rows: tuple[tuple[str, Inline], ...]


@dataclass(frozen=True, slots=True)
class Prose:
    """One paragraph. tone: "plain", "note", "missing" (something was not measured) or "bad"."""

    spans: Inline
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class Quote:
    """Words to publish elsewhere as they stand."""

    paragraphs: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines of a terminal or a log."""

    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and what it shows. `name`: of its file, unique in the report."""

    name: str
    chart: Chart
    caption: Inline


@dataclass(frozen=True, slots=True)
class Tile:
    """One number at a glance."""

    label: str
    value: str
    unit: str
    note: Inline
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page may fold away; they are printed all the same."""

    title: Inline
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """key: its anchor, unique in the report; level 1 to 3; mark: how its numbers must be called."""

    key: str
    title: str
    level: int
    blocks: tuple[Block, ...]
    mark: str = ""


Block = Table | Facts | Prose | Quote | Listing | Figure | Tiles | Fold


@dataclass(frozen=True, slots=True)
class Document:
    """The whole report. `subtitle` says what it was made from."""

    title: str
    subtitle: str
    sections: tuple[Section, ...] = field(default=())

    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in order, folded ones included."""
        return tuple(block for section in self.sections for block in _flat(section.blocks) if isinstance(block, Figure))


def _flat(blocks: tuple[Block, ...]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from _flat(block.blocks)


def map_text(value: Any, change: Any) -> Any:
    """The same value with `change(text)` in place of every text in it, however deep."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_text(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_text(getattr(value, f.name), change) for f in fields(value)})
    return value
