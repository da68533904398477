"""The comm matrix from its record: a row for each setting, a column for each size. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.report.charts import Line, Lines, amount
from sm86.report.document import Block, Code, Column, Figure, Fold, Inline, Prose, Ref, Section, State, Table
from sm86.report.gather import Entry, Machine
from sm86.report.marks import mark_of
from sm86.report.sections.parts import MAX_ROWS, clipped, details_blocks, marked, numbers_table, when

MAX_SIZES = 6
MAX_LINES = 6
STATES = {"measured": "pass", "not available": "not applicable"}


def comm(machine: Machine, entry: Entry, key: str) -> Section:
    """Times of every setting at the sizes of decode, what really ran, and what the measurement says to set."""
    # CPU processes that stand for ranks say more of themselves than the machine's mark does
    details, mark = entry.record.details, mark_of(entry.record.conditions) or machine.mark
    rows = [row for row in details["rows"] if isinstance(row, Mapping)]
    if not rows:
        raise ValueError("a matrix without rows")
    sizes = sorted({int(size) for row in rows for size in row["us"]})
    # the largest sizes are of prefill; they are in the record
    shown = sizes[:MAX_SIZES]
    head = f"{when(entry.record.started)}, {details.get('ranks', '?')} ranks; one all-reduce, in microseconds"
    blocks: list[Block] = [
        Prose((f"{head}, median of the repeats with their range. ", *marked(mark), " ", _ref(entry)))
    ]
    titles = [Column("setting"), Column("state"), *(Column(kib(size), True) for size in shown), Column("what ran")]
    blocks.append(Table(tuple(titles), tuple(_row(row, shown) for row in rows[:MAX_ROWS])))
    if (figure := _figure(rows, shown, mark, key, entry)) is not None:
        blocks.append(figure)
    blocks += _words(details)
    blocks.append(Fold(("Every number",), (numbers_table(entry, entry.record.numbers, mark),)))
    facts = details.get("facts")
    if isinstance(facts, Mapping) and facts:
        blocks.append(Fold(("Facts of the ranks",), details_blocks(facts)))
    return Section(key, clipped(entry.envelope, 80), 3, tuple(blocks), mark)


def _ref(entry: Entry) -> Ref:
    return Ref(entry.number)


def kib(size: int) -> str:
    """A size in bytes as KiB."""
    return f"{size / 1024:g} KiB"


def _row(row: Mapping[str, Any], sizes: list[int]) -> tuple[Inline, ...]:
    state = str(row["state"])
    cells: list[Inline] = [(Code(clipped(row["setting"], 60)),), (State(STATES.get(state, "fail")),)]
    for size in sizes:
        timing = row["us"].get(str(size))
        if timing is None:
            cells.append(("",))
            continue
        spread = f" ({amount(timing['low'])} to {amount(timing['high'])})" if timing["low"] != timing["high"] else ""
        cells.append((f"{amount(timing['median'])}{spread}",))
    ways = list(dict.fromkeys(way for found in row.get("ran", {}).values() for way in found))
    words = ", ".join(ways) if state == "measured" else f"{state}: {row.get('why', '')}"
    return (*cells, (clipped(words, 160),))


def _figure(rows: list[Any], sizes: list[int], mark: str, key: str, entry: Entry) -> Figure | None:
    lines = []
    for row in rows:
        points = tuple((s / 1024, float(row["us"][str(s)]["median"])) for s in sizes if str(s) in row["us"])
        if len(points) > 1:
            lines.append(Line(clipped(row["setting"], 36), points))
    if not lines:
        return None
    # the setting left alone comes first in the matrix and stays; of the others the fastest
    first, others = lines[0], sorted(lines[1:], key=lambda line: sum(y for _, y in line.points))
    chosen = (first, *others[: MAX_LINES - 1])
    more = len(lines) - len(chosen)
    caption = "Median time of one all-reduce." + (
        f" {more} slower settings are in the table only. " if more > 0 else " "
    )
    chart = Lines("All-reduce by size", "KiB", "us", chosen, None, False, mark)
    return Figure(key, chart, (caption, _ref(entry)))


def _words(details: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    advice = details.get("recommendation") or {}
    if advice:
        setting = clipped(advice.get("setting", ""), 60)
        blocks.append(
            Prose(("To use: ", Code(setting), ". ", clipped("; ".join(map(str, advice.get("reasons") or ())))))
        )
    for gain in (details.get("gains") or ())[:8]:
        text = (
            f": a step of {gain['calls']} all-reduces at {kib(int(gain['size']))} would change by "
            f"{amount(-gain['ms'])} ms ({amount(-gain['most_ms'])} to {amount(-gain['least_ms'])})."
        )
        blocks.append(Prose((Code(clipped(gain["setting"], 60)), text), "note"))
    return blocks
