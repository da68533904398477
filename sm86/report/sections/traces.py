"""Where the time of a decode step goes, from records of traces. Pure.

Reads the JSON answer of the trace reader: files with `steps` or `graphs`, each with its buckets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sm86.report.charts import Bar, Bars, amount
from sm86.report.document import Block, Column, Figure, Inline, Prose, Ref, Section, Strong, Table
from sm86.report.gather import Entry, Machine
from sm86.report.sections.parts import clipped, details_blocks, marked, numbers_table, plain, verdict_table, when

MAX_FILES = 8


def trace(machine: Machine, entry: Entry, key: str) -> Section:
    """The buckets of a trace's steps or graphs, a chart of the first file, and what was left out."""
    record = entry.record
    blocks: list[Block] = []
    if record.verdicts:
        blocks.append(verdict_table(record.verdicts))
    answer = record.details.get("trace") or record.details
    # a capture keeps one rank's file, the reader's answer has a list of them
    given = [answer] if "graphs" in answer or "steps" in answer else answer.get("files") or ()
    files = [file for file in given if isinstance(file, Mapping)]
    if record.numbers and not any(file.get("steps") or file.get("graphs") for file in files):
        # the table of the file has the same numbers, with their calls
        blocks.append(numbers_table(entry, record.numbers, machine.mark))
    for index, file in enumerate(files[:MAX_FILES]):
        blocks += _file(machine, entry, file, index, key)
    if len(files) > MAX_FILES:
        blocks.append(Prose((f"{len(files) - MAX_FILES} more files are in the record.",), "note"))
    if not files:
        blocks += details_blocks(record.details)
    title = f"Trace, {clipped(entry.envelope, 60)}, {when(record.started)}"
    return Section(key, title, 3, (*blocks, _source(entry)), machine.mark)


def _source(entry: Entry) -> Prose:
    return Prose(
        ("Times under the profiler, which slows a step: shares are firmer than times. ", Ref(entry.number)), "note"
    )


def _file(machine: Machine, entry: Entry, file: Mapping[str, Any], index: int, key: str) -> list[Block]:
    view = file.get("steps") or file.get("graphs")
    name = clipped(file.get("file", "trace"), 80)
    if not isinstance(view, Mapping):
        return [Prose((f"{name}: no step and no graph launch in it; nothing can be given per step.",), "missing")]
    unit = clipped(view.get("unit", "step"), 12)
    buckets = [b for b in view["buckets"].values() if b.get("calls")]
    span, busy = view["span_us"]["median"], view["busy_us"]["median"]
    words = (
        f"{name}: {view['units']} of {view['seen']} {unit}s averaged; per {unit} (median) span "
        f"{amount(span / 1000)} ms, busy {amount(busy / 1000)} ms."
    )
    layers = ", ".join(f"{count} {kind}" for kind, count in (view.get("layers") or {}).items())
    blocks: list[Block] = [Prose((words, f" Layers found: {layers}." if layers else "", *marked(machine.mark)))]
    idle = file.get("idle")
    if isinstance(idle, Mapping) and idle.get("text"):
        blocks.append(Prose((f"{_sentence(clipped(idle['text']))} ", Ref(entry.number)), "note"))
    if index == 0 and buckets:
        bars = tuple(Bar(clipped(b["title"], 40), b["per_unit_us"] / 1000) for b in buckets if b["share"] >= 0.0005)
        chart = Bars(f"Time of a {unit} by kind of kernel", "ms", bars, machine.mark)
        blocks.append(Figure(key, chart, (f"Sum over all streams, mean of the averaged {unit}s. ", Ref(entry.number))))
    rows: list[tuple[Inline, ...]] = [
        (
            (clipped(bucket["title"], 60),),
            (plain(float(bucket["calls_per_unit"])),),
            (Strong(amount(bucket["per_unit_us"] / 1000)), " ms", *marked(machine.mark)),
            (f"{100 * bucket['share']:.1f} %",),
            (_kernel((bucket.get("names") or [{"name": ""}])[0]["name"]),),
        )
        for bucket in buckets
    ]
    titles = (Column("kind of kernel"), Column(f"calls a {unit}", True), Column(f"time a {unit}", True))
    blocks.append(Table((*titles, Column("share", True), Column("mostly")), tuple(rows)))
    left = view.get("left_out") or {}
    said = [f"{count} {clipped(what, 30).replace('_', ' ')}" for what, count in left.items() if count]
    if said:
        blocks.append(Prose((f"Left out: {', '.join(said)}.",), "note"))
    return blocks


def _kernel(name: object) -> str:
    """A kernel's name without return type, template and call arguments: they fill a page and tell nothing apart."""
    text = clipped(name, 400).replace("(anonymous namespace)::", "").removeprefix("void ")
    return clipped(re.split(r"[<(]", text, maxsplit=1)[0].strip() or text, 70)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
