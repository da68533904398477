"""Gathered records -> the document. Pure."""

from __future__ import annotations

from datetime import datetime

from sm86.report.charts import amount
from sm86.report.document import Block, Document, Inline, Prose, Ref, Section, Tile, Tiles
from sm86.report.gather import Entry, Gathered, Machine
from sm86.report.marks import numbers_called
from sm86.report.publish import summary
from sm86.report.sections.measured import aggregate, curve, envelopes, is_good, passed, shape
from sm86.report.sections.others import PARTS, others
from sm86.report.sections.parts import marked, when
from sm86.report.sections.records import records, unread
from sm86.report.sections.rig import model, rig, software
from sm86.report.sections.runs import runs

TITLE = "DeepSeek-V4 on SM86: what was measured"


def document(gathered: Gathered, made: datetime, title: str = TITLE) -> Document:
    """The whole report. made: when, UTC."""
    entries = gathered.entries
    count = "1 record" if len(entries) == 1 else f"{len(entries)} records"
    span = f"{when(entries[0].record.started)} to {when(entries[-1].record.started)}" if entries else ""
    subtitle = f"{count}, {span}. Made {when(made)}."
    sections = [_glance(gathered), summary(gathered)]
    for machine in gathered.machines:
        sections += _machine(gathered, machine)
    sections.append(records(gathered))
    if (left := unread(gathered)) is not None:
        sections.append(left)
    return Document(title, subtitle, tuple(sections))


def _glance(gathered: Gathered) -> Section:
    tiles = []
    for machine in gathered.machines:
        for name in machine.envelopes():
            entry = machine.latest("bench", name)
            number = aggregate(entry.record) if entry else None
            if entry is None or number is None or not is_good(entry.record):
                continue
            note: Inline = (shape(gathered, entry), ", ", Ref(entry.number))
            tiles.append(Tile(name, amount(number.value, number.unit), number.unit, note, machine.mark))
    tiles += _proofs(gathered)
    blocks: list[Block] = []
    if tiles:
        blocks.append(Tiles(tuple(tiles[:12])))
    if len(gathered.machines) > 1:
        words = f"These records are of {len(gathered.machines)} machines; each has its own part, and none is compared "
        blocks.append(Prose((words + "with another.",), "note"))
    faults = [file for file in gathered.unread if file.fault]
    if faults:
        what = "1 file was not read" if len(faults) == 1 else f"{len(faults)} files were not read"
        blocks.append(Prose((f"{what}; see the end.",), "bad"))
    return Section("glance", "At a glance", 1, tuple(blocks))


def _proofs(gathered: Gathered) -> list[Tile]:
    """How many logs prove their envelope, counted apart for rigs and for each kind of other machine."""
    by_mark: dict[str, list[Entry]] = {}
    for machine in gathered.machines:
        found = [entry for name in machine.envelopes() if (entry := machine.latest("verify", name))]
        if found:
            by_mark.setdefault(machine.mark, []).extend(found)
    tiles = []
    for mark, verified in by_mark.items():
        right = sum(passed(entry.record) for entry in verified)
        refs: list[str | Ref] = []
        for entry in verified[:8]:
            refs += [" ", Ref(entry.number)]
        tiles.append(Tile("logs that prove their envelope", f"{right} of {len(verified)}", "", tuple(refs), mark))
    return tiles


def _machine(gathered: Gathered, machine: Machine) -> list[Section]:
    head: list[Block] = []
    if machine.mark:
        text = f"The numbers of this part are {numbers_called(machine.mark)}. None is compared with a published one."
        head.append(Prose((text, *marked(machine.mark)), "note"))
    sections = [Section(machine.key, machine.name, 1, tuple(head), machine.mark)]
    sections += [envelopes(gathered, machine)]
    if (line := curve(gathered, machine)) is not None:
        sections.append(line)
    sections += [rig(machine), software(gathered, machine), model(gathered, machine)]
    sections += runs(gathered, machine)
    sections += others(gathered, machine)
    if (left := _not_here(machine)) is not None:
        sections.append(left)
    return sections


def _not_here(machine: Machine) -> Section | None:
    """Parts of a full report that no record of this machine fills."""
    names = {"boot": "a boot", "verify": "a verified log", "bench": "a benchmark"}
    names |= {kind: title.lower() for kind, title, _ in PARTS}
    missing = [words for kind, words in names.items() if not machine.of(kind)]
    if not missing:
        return None
    text = f"No record here holds: {', '.join(missing)}. Nothing stands in this report in their place."
    return Section(f"{machine.key}-missing", "Not measured", 2, (Prose((text,), "missing"),), machine.mark)
