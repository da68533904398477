"""Plans, comm matrices, ladders, probes, rig checks, and kinds that this version does not know: each by what its record
holds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sm86.record import Number
from sm86.report.charts import Bar, Bars
from sm86.report.document import Block, Code, Figure, Prose, Ref, Section
from sm86.report.gather import Entry, Gathered, Machine
from sm86.report.sections.comm import comm
from sm86.report.sections.ladders import ladder
from sm86.report.sections.parts import (
    FAULTS,
    clipped,
    counts_of,
    details_blocks,
    marked,
    numbers_table,
    span_of,
    verdict_table,
    when,
)
from sm86.report.sections.plans import plan
from sm86.report.sections.rig_check import rig_check
from sm86.report.sections.traces import trace

PARTS = (
    ("plan", "Memory plan", "Computed before the start, not measured."),
    ("trace", "Trace buckets", ""),
    ("comm", "Communication", ""),
    ("ladder", "Ladders", ""),
    ("probe", "Probes", ""),
    ("doctor", "Rig check", ""),
)
SHOWN_APART = ("boot", "verify", "bench", "demo")

BUILDERS = {"plan": plan, "trace": trace, "comm": comm, "ladder": ladder, "doctor": rig_check}


def others(gathered: Gathered, machine: Machine) -> list[Section]:
    """Sections of every kind beyond boot, verify and bench, the newest of each envelope first."""
    found: list[Section] = []
    for kind, title, lede in PARTS:
        entries = list(reversed(machine.of(kind)))
        if entries:
            found += _part(machine, kind, title, lede, entries)
    known = {kind for kind, _, _ in PARTS} | set(SHOWN_APART)
    for kind in dict.fromkeys(entry.kind for entry in machine.entries):
        if kind not in known:
            words = "This version of the program does not know this kind of record; it is shown as it is."
            entries = list(reversed(machine.of(kind)))
            found += _part(machine, kind, f"Records of kind {clipped(kind, 40)}", words, entries)
    return found


def _part(machine: Machine, kind: str, title: str, lede: str, entries: Sequence[Entry]) -> list[Section]:
    key = f"{machine.key}-{_anchor(kind)}"
    blocks: list[Block] = [Prose((lede,), "note")] if lede else []
    newest: dict[str, Entry] = {}
    for entry in entries:
        # several matrices or ladders of one envelope are told apart by what they are of
        newest.setdefault(f"{entry.envelope}/{entry.record.details.get('name', '')}", entry)
    older = [entry for entry in entries if entry not in newest.values()]
    if older:
        spans: list[Code | Ref | str] = ["Older ones, in the list of records:"]
        for entry in older[:24]:
            spans += [" ", Ref(entry.number)]
        blocks.append(Prose(tuple(spans), "note"))
    sections = [Section(key, title, 2, tuple(blocks), machine.mark)]
    for number, entry in enumerate(sorted(newest.values(), key=lambda e: e.number), 1):
        sections.append(guarded(BUILDERS.get(kind, _generic), machine, entry, f"{key}-{number}"))
    return sections


def guarded(build: Callable[[Machine, Entry, str], Section], machine: Machine, entry: Entry, key: str) -> Section:
    """The section, or, where the record's details have another form, its numbers and verdicts with that said."""
    try:
        return build(machine, entry, key)
    except FAULTS:
        section = _generic(machine, entry, key)
        words = "Its details are not of the form that this version knows; they are shown as they are. "
        note = Prose((words, Ref(entry.number)), "bad")
        return Section(section.key, section.title, section.level, (note, *section.blocks), section.mark)


def _generic(machine: Machine, entry: Entry, key: str) -> Section:
    record = entry.record
    blocks: list[Block] = [Prose((f"{when(record.started)}, {record.seconds:.1f} s. ", Ref(entry.number)))]
    if record.verdicts:
        blocks.append(Prose((f"Verdicts: {counts_of(record.verdicts)}.",)))
        blocks.append(verdict_table(record.verdicts))
    if record.numbers:
        blocks.append(numbers_table(entry, record.numbers, machine.mark))
        blocks += _charts(machine, entry, key)
    blocks += details_blocks(record.details)
    if not record.verdicts and not record.numbers and not record.details:
        blocks.append(Prose(("The record is empty.",), "missing"))
    return Section(key, clipped(entry.envelope, 80), 3, tuple(blocks), machine.mark)


def _charts(machine: Machine, entry: Entry, key: str) -> list[Block]:
    """Bars for numbers of one unit that may be read beside one another: at least three, none negative."""
    by_unit: dict[str, list[Number]] = {}
    for number in entry.record.numbers:
        by_unit.setdefault(number.unit, []).append(number)
    blocks: list[Block] = []
    for unit, numbers in by_unit.items():
        if len(numbers) < 3 or len(numbers) > 24 or any(number.value < 0 for number in numbers):
            continue
        bars = tuple(_bar(number) for number in numbers)
        chart = Bars(clipped(entry.envelope, 60), clipped(unit, 20), bars, machine.mark)
        some = any(span_of(number.repeats) for number in numbers)
        words = f"Numbers in {clipped(unit, 20)}" + ("; whiskers span the repeats. " if some else ". ")
        blocks.append(Figure(f"{key}-{len(blocks) + 1}", chart, (words, *marked(machine.mark), " ", Ref(entry.number))))
    return blocks


def _bar(number: Number) -> Bar:
    several = len(number.repeats) > 1
    low, high = (min(number.repeats), max(number.repeats)) if several else (None, None)
    return Bar(clipped(number.name, 40), number.value, low, high)


def _anchor(kind: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in kind.lower())[:40] or "kind"
