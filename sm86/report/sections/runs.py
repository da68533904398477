"""One envelope's run: how it booted, what its log proves, what was measured. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sm86.record.left_out import in_words, reasons_left_out
from sm86.report.charts import Line, Lines, Stack, Stacks
from sm86.report.document import Block, Figure, Fold, Inline, Listing, Prose, Ref, Section, Strong
from sm86.report.gather import Entry, Gathered, Machine
from sm86.report.sections.measured import GATES, is_good, part, passed, shape
from sm86.report.sections.parts import FAULTS, clipped, counts_of, numbers_table, verdict_table, when
from sm86.report.sections.telemetry import telemetry

MAX_EVIDENCE = 40


def runs(gathered: Gathered, machine: Machine) -> list[Section]:
    """A section for each envelope that booted, was verified or benchmarked; the newest record of each kind."""
    found: list[Section] = []
    for name in machine.envelopes():
        kinds = {kind: machine.latest(kind, name) for kind in ("boot", "verify", "bench", "demo")}
        if not any(kinds.values()):
            continue
        blocks: list[Block] = []
        for kind, show in (("boot", _boot), ("verify", _verify), ("bench", _bench), ("demo", _plain)):
            if (entry := kinds[kind]) is not None:
                blocks += _guarded(show, machine, entry)
        first = next(entry for entry in kinds.values() if entry)
        blocks.insert(0, Prose((_lede(gathered, first),)))
        title = f"{clipped(name, 80)}"
        found.append(Section(f"{machine.key}-run-{len(found) + 1}", title, 3, tuple(blocks), machine.mark))
    if found:
        found.insert(0, Section(f"{machine.key}-runs", "Runs", 2, (), machine.mark))
    return found


def _guarded(show: Callable[[Machine, Entry], list[Block]], machine: Machine, entry: Entry) -> list[Block]:
    """The blocks, or, where the record's details have another form, its numbers and verdicts with that said."""
    try:
        return show(machine, entry)
    except FAULTS:
        words = "Its details are not of the form that this version knows; its numbers and verdicts are. "
        return [Prose((words, Ref(entry.number)), "bad"), *_plain(machine, entry)]


def _lede(gathered: Gathered, entry: Entry) -> str:
    envelope = gathered.shipped.get(entry.envelope)
    if envelope is None:
        return "This version of the program ships no envelope of that name."
    changed = envelope.digest() != entry.record.envelope_digest
    tail = " The envelope has changed since these records." if changed else ""
    return f"{envelope.title}; {shape(gathered, entry)}.{tail}"


def _heading(title: str, entry: Entry, extra: str = "") -> Prose:
    middle = f" {extra}," if extra else ""
    return Prose(
        (Strong(title), f":{middle} {when(entry.record.started)}, {entry.record.seconds:.1f} s. ", Ref(entry.number))
    )


def _boot(machine: Machine, entry: Entry) -> list[Block]:
    record = entry.record
    blocks: list[Block] = [_heading("Boot", entry, "serves" if passed(record) else "did not serve")]
    phases = [number for number in record.numbers if number.name != "boot" and number.unit == "s"]
    if phases:
        parts = tuple((clipped(number.name, 30), number.value) for number in phases)
        stack = Stack("boot", parts)
        chart = Stacks("Time to serve", "s", (stack,), None, machine.mark)
        caption = ("Phases of the boot. ", Ref(entry.number))
        blocks.append(Figure(f"{machine.key}-boot-{entry.number}", chart, caption))
    failure = record.details.get("failure")
    if isinstance(failure, Mapping):
        blocks.append(Prose((f"It failed: {clipped(failure.get('what', 'no reason recorded'))}.",), "bad"))
        lines = failure.get("lines")
        if isinstance(lines, Sequence) and lines:
            blocks.append(Listing("\n".join(_log_line(line) for line in lines[:MAX_EVIDENCE])))
    if record.verdicts or record.numbers:
        title: Inline = (f"Phases: {counts_of(record.verdicts) or 'no verdict in the record'}",)
        folded = (numbers_table(entry, record.numbers, machine.mark), verdict_table(record.verdicts, "phase"))
        blocks.append(Fold(title, folded))
    return blocks


def _log_line(line: Any) -> str:
    if isinstance(line, Mapping):
        return f"{line.get('line', '?')}: {clipped(line.get('text', ''))}"
    return clipped(line)


def _verify(machine: Machine, entry: Entry) -> list[Block]:
    record = entry.record
    word = "every rule that applies passes" if passed(record) else "not every rule passes"
    blocks: list[Block] = [_heading("What the log proves", entry, word)]
    if record.numbers:
        blocks.append(numbers_table(entry, record.numbers, machine.mark))
    wrong = [v for v in record.verdicts if v.state not in ("pass", "not applicable")]
    if wrong:
        blocks.append(verdict_table(wrong, "rule"))
    if record.verdicts:
        title: Inline = (f"All rules: {counts_of(record.verdicts)}",)
        blocks.append(Fold(title, (verdict_table(record.verdicts, "rule"), *_evidence(record.details))))
    else:
        blocks.append(Prose(("The record holds no verdict.",), "missing"))
    return blocks


def _evidence(details: Mapping[str, Any]) -> list[Block]:
    lines = []
    for finding in details.get("findings") or ():
        if not isinstance(finding, Mapping):
            continue
        for line in finding.get("evidence") or ():
            lines.append(f"{clipped(finding.get('rule', ''), 24):<22}{_log_line(line)}")
    if not lines:
        return []
    more = len(lines) - MAX_EVIDENCE
    text = "\n".join(lines[:MAX_EVIDENCE]) + (f"\n{more} more lines are in the record" if more > 0 else "")
    return [Prose(("Lines of the log that show it:",), "note"), Listing(text)]


def _bench(machine: Machine, entry: Entry) -> list[Block]:
    record = entry.record
    word = "measured and coherent" if is_good(record) else "not a result"
    blocks: list[Block] = [_heading("Decode", entry, word)]
    if record.numbers:
        blocks.append(numbers_table(entry, record.numbers, machine.mark))
    if again := in_words(reasons_left_out(record)):
        blocks.append(Prose((f"{clipped(again)}.",), "note"))
    if (figure := _timeline(machine, entry)) is not None:
        blocks.append(figure)
    seen = record.details.get("telemetry")
    if isinstance(seen, Mapping):
        blocks += telemetry(machine, entry, seen)
    if record.verdicts:
        # as the benchmark says it: what is no gate warns, and the number stands
        told = [replace(v, state="warn") if v.state == "fail" and v.name not in GATES else v for v in record.verdicts]
        title: Inline = (f"Checks of the measurement: {counts_of(told)}",)
        shown = [v for v in told if v.name != "comparison" or not machine.mark]
        blocks.append(Fold(title, (verdict_table(shown), *_how(record.details))))
    return blocks


def _how(details: Mapping[str, Any]) -> list[Block]:
    parts = []
    for key, words in (
        ("sequences", "sequences {}"),
        ("wanted_prompt_tokens", "prompts of about {} tokens"),
        ("decode_tokens", "{} tokens decoded by each"),
    ):
        if isinstance(details.get(key), int):
            parts.append(words.format(details[key]))
    blocks: list[Block] = []
    if parts:
        blocks.append(Prose((f"Conditions: {', '.join(parts)}.",), "note"))
    if details.get("definition"):
        blocks.append(Prose((f"The number: {clipped(details['definition'])}.",), "note"))
    return blocks


def _timeline(machine: Machine, entry: Entry) -> Figure | None:
    """Tokens of every sequence over time in the repeat whose number is the median one, with its window."""
    repeats = [r for r in part(entry.record, "repeats") or () if isinstance(r, Mapping)]
    with_window = []
    for index, repeat in enumerate(repeats, 1):
        rate = (repeat.get("window") or {}).get("aggregate_tok_s")
        if isinstance(rate, (int, float)):
            with_window.append((float(rate), index, repeat))
    if not with_window:
        return None
    _, index, repeat = sorted(with_window, key=lambda item: item[:2])[len(with_window) // 2]
    lines = []
    for number, sequence in enumerate(repeat.get("sequences") or (), 1):
        points = tuple((float(x), float(y)) for x, y in sequence.get("timeline") or ())
        if points:
            lines.append(Line(f"sequence {number}", points, dots=False))
    window = repeat["window"]
    if not lines or "start_s" not in window or "end_s" not in window:
        return None
    band = (float(window["start_s"]), float(window["end_s"]), "counted window")
    chart = Lines("Tokens over time", "s after sending", "tokens", tuple(lines[:8]), band, False, machine.mark)
    caption = (f"Repeat {index} of {len(repeats)}, whose rate is the median. ", Ref(entry.number))
    return Figure(f"{machine.key}-tokens-{entry.number}", chart, caption)


def _plain(machine: Machine, entry: Entry) -> list[Block]:
    blocks: list[Block] = [_heading(entry.kind.capitalize(), entry)]
    if entry.record.numbers:
        blocks.append(numbers_table(entry, entry.record.numbers, machine.mark))
    if entry.record.verdicts:
        blocks.append(verdict_table(entry.record.verdicts))
    return blocks
