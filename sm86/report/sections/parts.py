"""What every section is built from: tables of numbers and verdicts, and plain JSON values of any shape. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sm86.record import Number, Verdict
from sm86.report.charts import amount
from sm86.report.document import Block, Code, Column, Facts, Fold, Inline, Mark, Prose, Ref, State, Strong, Table
from sm86.report.gather import Entry

MAX_ROWS = 60
MAX_FACTS = 60
MAX_TEXT = 400
MAX_DEPTH = 4

FAULTS = (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError)
"""What a builder meets in a record whose details have another form than it knows."""

UNITS = {"mib": "MiB", "gib": "GiB", "s": "s", "ms": "ms", "us": "us", "w": "W", "mhz": "MHz", "c": "°C"}


def clipped(text: object, most: int = MAX_TEXT) -> str:
    """One line of at most `most` characters, without control characters."""
    line = " ".join(str(text).split())
    line = "".join(char if char.isprintable() else "\ufffd" for char in line)
    return line if len(line) <= most else line[: most - 1] + "…"


def when(moment: datetime) -> str:
    """A time as the report writes it: UTC to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def marked(mark: str) -> Inline:
    """The mark as spans to put after a number; nothing for a rig."""
    return (" ", Mark(mark)) if mark else ()


def numbers_table(entry: Entry, numbers: Sequence[Number], mark: str) -> Table:
    """Numbers with the range of their repeats, their mark and their record."""
    rows = []
    for number in numbers[:MAX_ROWS]:
        note = _unmarked(number.note, mark)
        rows.append(
            (
                (clipped(number.name),),
                (Strong(amount(number.value, number.unit)), f" {clipped(number.unit, 20)}", *marked(mark)),
                (span_of(number.repeats, number.unit),),
                (clipped(note),),
                (Ref(entry.number),),
            )
        )
    columns = (Column("number"), Column("value", True), Column("repeats"), Column("note"), Column("record"))
    return without_empty(Table(columns, tuple(rows), _left_out(len(numbers), "numbers")))


def _unmarked(note: str, mark: str) -> str:
    """The note without the mark that leads it: the value beside it has that already."""
    for lead in (f"{mark} number", mark) if mark else ():
        rest = note.removeprefix(lead)
        # "CPU" does not lead "CPU, emulated", which is another mark
        if rest != note and (not rest or rest[0] in " ;:"):
            return rest.lstrip(" ;:")
    return note


def without_empty(table: Table) -> Table:
    """The table without columns in which no row has anything."""
    kept = [i for i in range(len(table.columns)) if any(row[i] not in ((), ("",)) for row in table.rows)]
    return Table(
        tuple(table.columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in table.rows), table.left_out
    )


def span_of(repeats: Sequence[float], unit: str = "") -> str:
    """The range of repeats in words; empty for fewer than two."""
    if len(repeats) < 2:
        return ""
    return f"{amount(min(repeats), unit)} to {amount(max(repeats), unit)} in {len(repeats)}"


def verdict_table(verdicts: Sequence[Verdict], title: str = "check") -> Table:
    """One verdict a row."""
    rows = tuple(((State(v.state),), (Code(clipped(v.name)),), (clipped(v.text),)) for v in verdicts[:MAX_ROWS])
    columns = (Column("state"), Column(title), Column("why"))
    return Table(columns, rows, _left_out(len(verdicts), "verdicts"))


def counts_of(verdicts: Sequence[Verdict]) -> str:
    """How many of each state: "12 pass, 1 not applicable"."""
    states = dict.fromkeys(v.state for v in verdicts)
    usual: tuple[str, ...] = ("pass", "fail", "not seen", "not applicable")
    order = [state for state in usual if state in states]
    order += [state for state in states if state not in order]
    return ", ".join(f"{sum(v.state == state for v in verdicts)} {state}" for state in order)


def details_blocks(details: Mapping[str, Any], leave: Sequence[str] = ()) -> tuple[Block, ...]:
    """Plain JSON values of a shape that nobody promised: single values as facts, lists of objects as tables.

    Bounded in depth, rows and text; what a limit cuts off is said.
    """
    facts: list[tuple[str, Inline]] = []
    blocks: list[Block] = []
    _walk({key: value for key, value in details.items() if key not in leave}, "", facts, blocks, 1)
    shown: list[Block] = []
    if facts:
        shown.append(Facts(tuple(facts[:MAX_FACTS])))
    if len(facts) > MAX_FACTS:
        shown.append(Prose((f"{len(facts) - MAX_FACTS} more values are in the record.",), "note"))
    return (*shown, *blocks[:MAX_FACTS])


def _walk(
    values: Mapping[str, Any], path: str, facts: list[tuple[str, Inline]], blocks: list[Block], depth: int
) -> None:
    for key, value in values.items():
        name = f"{path}{' / ' if path else ''}{readable(key)}"
        if value is None or value == [] or value == {} or value == "":
            continue
        if isinstance(value, Mapping):
            if depth >= MAX_DEPTH:
                facts.append((name, (f"{len(value)} values, in the record",)))
            else:
                _walk(value, name, facts, blocks, depth + 1)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            _list(name, value, facts, blocks)
        else:
            facts.append((name, (plain(value),)))


def _list(name: str, values: Sequence[Any], facts: list[tuple[str, Inline]], blocks: list[Block]) -> None:
    if all(isinstance(value, Mapping) for value in values):
        keys = list(dict.fromkeys(key for value in values[:MAX_ROWS] for key in value))[:10]
        flat = [key for key in keys if all(not _deep(value.get(key)) for value in values[:MAX_ROWS])]
        if flat:
            numeric = {key: all(isinstance(v.get(key), (int, float, type(None))) for v in values) for key in flat}
            columns = tuple(Column(readable(key), numeric[key]) for key in flat)
            rows = tuple(tuple((plain(value.get(key)),) for key in flat) for value in values[:MAX_ROWS])
            blocks.append(Fold((name,), (Table(columns, rows, _left_out(len(values), "rows")),)))
            return
    if all(not _deep(value) for value in values):
        words = ", ".join(plain(value) for value in values[:24])
        facts.append((name, (clipped(words + (f" and {len(values) - 24} more" if len(values) > 24 else "")),)))
    else:
        facts.append((name, (f"{len(values)} entries, in the record",)))


def _deep(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple))


def readable(key: object) -> str:
    """A JSON name as words, with its unit behind a comma: "memory, MiB"."""
    *first, last = str(key).split("_")
    words = " ".join((*first, last)) if not first or last not in UNITS else f"{' '.join(first)}, {UNITS[last]}"
    return clipped(words, 60)


def plain(value: Any) -> str:
    """A single JSON value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(v, int) for v in value):
        # a version, such as a compute capability or the driver's CUDA
        return ".".join(map(str, value))
    if isinstance(value, (int, float)):
        return amount(value) if isinstance(value, float) else f"{value}"
    return clipped(value)


def _left_out(count: int, what: str) -> str:
    return f"{count - MAX_ROWS} more {what} are in the record" if count > MAX_ROWS else ""
