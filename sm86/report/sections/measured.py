"""Envelopes: measured against published, and the curve over sequences. Pure.

A published number stands beside a measured one only where the benchmark itself could compare the two: same rig, same
lengths, verified log, coherent text. Marked numbers stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.record import Number, Record
from sm86.record.left_out import reasons_left_out
from sm86.report.charts import RATE, Bar, Bars, Line, Lines, amount
from sm86.report.document import Block, Code, Column, Figure, Inline, Prose, Ref, Section, State, Strong, Table
from sm86.report.gather import Entry, Gathered, Machine
from sm86.report.marks import numbers_called
from sm86.report.sections.parts import clipped, marked, span_of, when

AGGREGATE = "decode aggregate"
SEQUENCE = "decode sequence "
GATES = ("window", "coherence: text", "coherence: log probabilities", "coherence: known answers")
"""Without these a benchmark is no coherent measurement; the benchmark's own rule."""

COMPARED = ("better", "within noise", "worse")


def aggregate(record: Record) -> Number | None:
    """The benchmark's number, where it has one."""
    return next((number for number in record.numbers if number.name == AGGREGATE), None)


def each(record: Record) -> tuple[Number, ...]:
    """The number of each sequence."""
    return tuple(number for number in record.numbers if number.name.startswith(SEQUENCE))


def is_good(record: Record) -> bool:
    """Measured and coherent: a number is there, every gate passes or does not apply, and text or answers pass."""
    states = {verdict.name: verdict.state for verdict in record.verdicts}
    shown = "pass" in (states.get(GATES[1]), states.get(GATES[3]))
    gates = all(states.get(gate) in ("pass", "not applicable") for gate in GATES)
    return aggregate(record) is not None and shown and gates


def coherence(record: Record) -> str:
    """What the checks of the text say, whether or not a number was measured: a state of a check."""
    states = {verdict.name: verdict.state for verdict in record.verdicts}
    found = [states.get(gate, "not seen") for gate in GATES[1:]]
    if "fail" in found:
        return "fail"
    # numbers instead of NaN are no proof of a text: that is in the text itself or in known answers
    shown = (found[0], found[2])
    return "pass" if "pass" in shown else "not seen" if "not seen" in shown else "not applicable"


def part(record: Record, *path: str) -> Any:
    """A value deep in the record's details; None where the record has none there."""
    value: Any = record.details
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def compared(machine: Machine, entry: Entry) -> str:
    """better, within noise or worse; "" where it was not or could not be compared."""
    verdict = part(entry.record, "comparison", "verdict")
    return verdict if not machine.mark and verdict in COMPARED else ""


def published(machine: Machine, entry: Entry) -> Mapping[str, Any] | None:
    """The published number that this one may stand beside; None where the two may not be compared."""
    found = part(entry.record, "published")
    return found if compared(machine, entry) and isinstance(found, Mapping) else None


def envelopes(gathered: Gathered, machine: Machine) -> Section:
    """One row for each envelope that was benchmarked: the newest measurement."""
    newest = [entry for name in machine.envelopes() if (entry := machine.latest("bench", name))]
    blocks: list[Block] = []
    if not newest:
        text = "No benchmark is among these records, so there is no number of decode speed."
        blocks.append(Prose((text,), "missing"))
    else:
        beside = any(published(machine, entry) for entry in newest)
        blocks.append(_table(gathered, machine, newest, beside))
        if (figure := _bars(machine, newest)) is not None:
            blocks.append(figure)
        blocks += _without(newest)
        blocks += _reasons(machine, newest)
    ran = dict.fromkeys(e.envelope for e in machine.entries if e.kind in ("boot", "verify", "demo"))
    without = [name for name in ran if name not in {entry.envelope for entry in newest}]
    if without and newest:
        names: list[Any] = ["Not benchmarked in these records: "]
        for index, name in enumerate(without):
            names += [", "] if index else []
            names.append(Code(clipped(name, 80)))
        blocks.append(Prose((*names, "."), "missing"))
    blocks += _earlier(machine, newest)
    title = "Envelopes: measured against published" if not machine.mark else "Envelopes: measured"
    return Section(f"{machine.key}-envelopes", title, 2, tuple(blocks), machine.mark)


def _table(gathered: Gathered, machine: Machine, newest: list[Entry], beside: bool) -> Table:
    titles = [Column("envelope"), Column("sequences x tokens", True), Column("measured, tok/s", True)]
    titles += [Column("repeats", True), Column("each sequence")]
    titles += [Column("published", True), Column("against it")] if beside else []
    titles += [Column("coherent"), Column("log"), Column("record")]
    rows = []
    for entry in newest:
        record, number = entry.record, aggregate(entry.record)
        known = published(machine, entry)
        value: Inline = (Strong(amount(number.value, RATE)), *marked(machine.mark)) if number else ("no number",)
        row: list[Inline] = [
            (Code(clipped(entry.envelope, 80)),),
            (shape(gathered, entry).removesuffix(" tokens"),),
            value,
            (_repeats(record, number),),
            (" / ".join(amount(one.value, RATE) for one in each(record)) or "",),
        ]
        if beside:
            row.append((amount(known["aggregate_tok_s"], RATE),) if known else ("not comparable",))
            row.append((compared(machine, entry),))
        row.append((State(coherence(record)),))
        row += [_log(machine, entry), (Ref(entry.number),)]
        rows.append(tuple(row))
    return Table(tuple(titles), tuple(rows))


def _repeats(record: Record, number: Number | None) -> str:
    again = len(reasons_left_out(record))
    told = (span_of(number.repeats, RATE) if number else "", f"{again} left out" if again else "")
    return "; ".join(text for text in told if text)


def shape(gathered: Gathered, entry: Entry) -> str:
    """ "4 x 81920 tokens", from the record or, for other kinds, from the shipped envelope."""
    sequences, context = part(entry.record, "sequences"), part(entry.record, "context")
    if isinstance(sequences, int) and isinstance(context, int):
        return f"{sequences} x {context:,} tokens"
    envelope = gathered.shipped.get(entry.envelope)
    return f"{envelope.serve.sequences} x {envelope.serve.context:,} tokens" if envelope else "not known"


def verified(machine: Machine, entry: Entry) -> Entry | None:
    """The newest verification of the same server: same envelope, digest, revision and image as far as both tell."""

    def fits(other: Entry) -> bool:
        mine, its = entry.record.conditions, other.record.conditions
        pairs = ((mine.git_rev, its.git_rev), (mine.image_id, its.image_id), (mine.model_hash, its.model_hash))
        same = all(a == b for a, b in pairs if a and b)
        return same and other.record.envelope_digest == entry.record.envelope_digest

    found = [other for other in machine.of("verify", entry.envelope) if fits(other)]
    return found[-1] if found else None


def _log(machine: Machine, entry: Entry) -> Inline:
    found = verified(machine, entry)
    if found is None:
        return ("not verified",)
    return (State("pass" if passed(found.record) else "fail"), " ", Ref(found.number))


def passed(record: Record) -> bool:
    """Every verdict that applies passes, and at least one does."""
    states = [verdict.state for verdict in record.verdicts if verdict.state != "not applicable"]
    return bool(states) and all(state == "pass" for state in states)


def _bars(machine: Machine, newest: list[Entry]) -> Figure | None:
    bars = []
    for entry in newest:
        number = aggregate(entry.record)
        if number is None or not is_good(entry.record):
            continue
        known = published(machine, entry)
        several = len(number.repeats) > 1
        bars.append(
            Bar(
                clipped(entry.envelope, 40),
                number.value,
                min(number.repeats) if several else None,
                max(number.repeats) if several else None,
                float(known["aggregate_tok_s"]) if known else None,
            )
        )
    if not bars:
        return None
    caption = "Decode of all sequences together; the whisker spans the repeats."
    if any(bar.published for bar in bars):
        caption += " The hollow mark is the published number."
    chart = Bars("Decode, all sequences together", "tok/s", tuple(bars), machine.mark)
    return Figure(f"{machine.key}-decode", chart, (caption,))


def _without(newest: list[Entry]) -> list[Block]:
    """Why a benchmark gave no number."""
    blocks: list[Block] = []
    for entry in newest:
        why = next((v.text for v in entry.record.verdicts if v.name == GATES[0] and v.state == "fail"), "")
        if why and aggregate(entry.record) is None:
            words = clipped(why.removeprefix("no number: "))
            said = (Code(clipped(entry.envelope, 80)), " ", Ref(entry.number), f": no number, as {words}.")
            blocks.append(Prose(said, "bad"))
    return blocks


def _reasons(machine: Machine, newest: list[Entry]) -> list[Block]:
    """Why a number stands alone, and what the benchmark notes of a comparison; the same words once for all."""
    if machine.mark:
        text = f"These are {numbers_called(machine.mark)}. They are compared with nothing that was published."
        return [Prose((text,), "note")]
    said: dict[str, list[Entry]] = {}
    for entry in newest:
        reasons, notes = part(entry.record, "comparison", "reasons"), part(entry.record, "comparison", "notes")
        if compared(machine, entry):
            words = clipped("; ".join(map(str, notes or ())))
        else:
            words = clipped("; ".join(map(str, reasons or ())))
            words = f"not compared with a published number, as {words}" if words else ""
        if words:
            said.setdefault(words, []).append(entry)
    blocks: list[Block] = []
    for words, entries in said.items():
        spans: list[Any] = []
        for entry in entries:
            spans += [", "] if spans else []
            spans += [Code(clipped(entry.envelope, 80)), " ", Ref(entry.number)]
        blocks.append(Prose((*spans, f": {words}."), "note"))
    return blocks


def _earlier(machine: Machine, newest: list[Entry]) -> list[Block]:
    rows = []
    for last in newest:
        for entry in reversed(machine.of("bench", last.envelope)[:-1]):
            number = aggregate(entry.record)
            value: Inline = (
                (amount(number.value, RATE), f" {RATE}", *marked(machine.mark)) if number else ("no number",)
            )
            good = "coherent" if is_good(entry.record) else "not a result"
            rows.append(((Code(last.envelope),), (when(entry.record.started),), value, (good,), (Ref(entry.number),)))
    if not rows:
        return []
    titles = (Column("envelope"), Column("time"), Column("all sequences", True), Column("a measurement"))
    left = f"{len(rows) - 40} more are in the list of records" if len(rows) > 40 else ""
    intro = Prose(
        ("Earlier benchmarks; the table above shows the newest of each envelope, whatever came out:",), "note"
    )
    return [intro, Table((*titles, Column("record")), tuple(rows[:40]), left)]


def curve(gathered: Gathered, machine: Machine) -> Section | None:
    """Decode over the number of sequences, from the newest benchmark of each envelope; None below two points."""
    points: list[tuple[float, float]] = []
    single: list[tuple[float, float]] = []
    known: list[tuple[float, float]] = []
    refs: list[Any] = []
    for name in machine.envelopes():
        entry = machine.latest("bench", name)
        sequences = part(entry.record, "sequences") if entry else None
        if entry is None or not isinstance(sequences, int) or sequences < 1 or not is_good(entry.record):
            continue
        number = aggregate(entry.record)
        assert number is not None
        points.append((sequences, number.value))
        single.append((sequences, number.value / sequences))
        refs += [" ", Ref(entry.number)]
        if (beside := published(machine, entry)) is not None:
            known.append((sequences, float(beside["aggregate_tok_s"])))
    # an envelope more of the same number of sequences would make the line turn back
    counts = [x for x, _ in points]
    if len(set(counts)) < 2 or len(set(counts)) != len(counts):
        return None
    lines = [Line("all sequences", tuple(sorted(points))), Line("each sequence", tuple(sorted(single)))]
    if known:
        lines.insert(1, Line("published, all sequences", tuple(sorted(known)), published=True))
    chart = Lines("Decode over sequences", "sequences", "tok/s", tuple(lines), None, True, machine.mark)
    caption: Inline = ("Aggregate decode by number of sequences. Records:", *refs)
    figure = Figure(f"{machine.key}-curve", chart, caption)
    return Section(f"{machine.key}-curve", "Curve", 2, (figure,), machine.mark)
