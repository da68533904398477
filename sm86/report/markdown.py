"""A document as GitHub Markdown. Pure. Every text is escaped: a name from a record cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sm86.report.document import (
    Block,
    Code,
    Document,
    Facts,
    Figure,
    Fold,
    Inline,
    Listing,
    Mark,
    Prose,
    Quote,
    Ref,
    Section,
    State,
    Strong,
    Table,
    Tile,
    Tiles,
)

RECORDS = "#records-and-conditions"
"""Anchor that the heading of the list of records gets."""

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#&$!@:{}])")
_LEADING = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=])")


def markdown(document: Document, pictures: Mapping[str, str] | None = None) -> str:
    """The text. pictures: file of each figure's picture by the figure's name; a figure without one is its caption."""
    parts = [f"# {words(document.title)}", words(document.subtitle)]
    for section in document.sections:
        parts.append(_heading(section))
        parts += [text for block in section.blocks if (text := _block(block, pictures or {}))]
    return "\n\n".join(parts) + "\n"


def words(text: str) -> str:
    """Plain text, escaped so that it shows as it is."""
    line = _SPECIAL.sub(r"\\\1", _one_line(text))
    # a colon makes a bare address a link; only there it has a meaning
    line = re.sub(r"\\:(?!//)", ":", line)
    return _LEADING.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", line)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))


def code(text: str) -> str:
    """A code span that holds any text, backticks included."""
    line = _one_line(text) or " "
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def spans(inline: Inline) -> str:
    """One line of text with its marks."""
    return "".join(_span(span) for span in inline).strip()


def _span(span: object) -> str:
    if isinstance(span, str):
        # the blanks at both ends separate it from its neighbours
        lead = " " if span[:1] == " " else ""
        tail = " " if span[-1:] == " " and span.strip() else ""
        return f"{lead}{words(span)}{tail}"
    if isinstance(span, Code):
        return code(span.text)
    if isinstance(span, Ref):
        return f"[R{span.number}]({RECORDS})"
    if isinstance(span, Strong):
        return f"**{words(span.text)}**"
    assert isinstance(span, (State, Mark))
    return f"**{words(span.text)}**" if isinstance(span, Mark) or span.text == "fail" else words(span.text)


def _heading(section: Section) -> str:
    mark = f" ({words(section.mark)})" if section.mark else ""
    return f"{'#' * (section.level + 1)} {words(section.title)}{mark}"


def _block(block: Block, pictures: Mapping[str, str]) -> str:
    if isinstance(block, Prose):
        text = spans(block.spans)
        return f"> {text}" if block.tone in ("missing", "bad") else text
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Facts):
        return "\n".join(f"* {words(name)}: {spans(value)}" for name, value in block.rows)
    if isinstance(block, Quote):
        return "\n>\n".join(f"> {spans(paragraph)}" for paragraph in block.paragraphs)
    if isinstance(block, Listing):
        longest = max((len(run) for run in re.findall(r"`+", block.text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}text\n{block.text}\n{fence}"
    if isinstance(block, Figure):
        caption = spans(block.caption)
        file = pictures.get(block.name)
        return f"![{words(block.chart.title)}]({file})\n\n{caption}" if file else caption
    if isinstance(block, Tiles):
        return "\n".join(_tile(tile) for tile in block.tiles)
    assert isinstance(block, Fold)
    inner = "\n\n".join(text for one in block.blocks if (text := _block(one, pictures)))
    return f"{spans(block.title)}\n\n{inner}"


def _tile(tile: Tile) -> str:
    mark = f" **{words(tile.mark)}**" if tile.mark else ""
    value = f"**{words(tile.value)}**" + (f" {words(tile.unit)}" if tile.unit else "")
    return f"* {words(tile.label)}: {value}{mark}, {spans(tile.note)}"


def _table(table: Table) -> str:
    head = " | ".join(words(column.title) for column in table.columns)
    rule = " | ".join("---:" if column.number else "---" for column in table.columns)
    # in a table a bar ends the cell even inside a code span
    rows = [" | ".join(_cell(spans(cell)) for cell in row) for row in table.rows]
    text = "\n".join(f"| {line} |" for line in (head, rule, *rows))
    return f"{text}\n\n{words(table.left_out)}" if table.left_out else text


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)
