"""A memory plan from its record: what lies in each GPU's memory, what is left, what had to hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.report.charts import Stack, Stacks
from sm86.report.document import Block, Column, Figure, Fold, Inline, Prose, Ref, Section, Table
from sm86.report.gather import Entry, Machine
from sm86.report.sections.parts import clipped, numbers_table, verdict_table, when

GIB = 2**30
UNSURE = "between the bounds"


def plan(machine: Machine, entry: Entry, key: str) -> Section:
    """The parts by kind with both bounds, a stacked bar against the GPU's memory, the checks."""
    values = entry.record.details["plan"]
    server, total = values["server"], values["gpu"]["total"]
    head = (
        f"{when(entry.record.started)}, computed for {clipped(values['rig']['title'], 80)}: {server['sequences']} x "
        f"{server['context']:,} tokens, {server['blocks']:,} KV blocks. Verdict: {clipped(values['verdict'])}. "
    )
    blocks: list[Block] = [Prose((head, Ref(entry.number)))]
    sizes: dict[str, list[int]] = {}
    for part in values["parts"]:
        low, high = sizes.setdefault(str(part["kind"]), [0, 0])
        sizes[str(part["kind"])] = [low + part["low"], high + part["high"]]
    unsure = sum(high - low for low, high in sizes.values())
    parts = [(clipped(kind, 30), low / GIB) for kind, (low, _) in sizes.items() if low]
    parts += [(UNSURE, unsure / GIB)] if unsure else []
    chart = Stacks(
        f"Memory of {clipped(values['gpu']['label'], 30)}",
        "GiB",
        (Stack("planned", tuple(parts)),),
        (total / GIB, "all of it"),
        machine.mark,
    )
    caption = ("Every kind at its lower bound, then what may come on top. Computed, not measured. ", Ref(entry.number))
    blocks += [Figure(key, chart, caption), _kinds(sizes, total)]
    blocks.append(verdict_table(entry.record.verdicts))
    numbers = numbers_table(entry, entry.record.numbers, machine.mark)
    blocks.append(Fold((f"All {len(values['parts'])} parts, and the sums",), (_parts(values["parts"]), numbers)))
    return Section(key, clipped(entry.envelope, 80), 3, tuple(blocks), machine.mark)


def _between(low: float, high: float) -> str:
    first, last = f"{low / GIB:.2f}", f"{high / GIB:.2f}"
    return first if first == last else f"{first} to {last}"


def _kinds(sizes: Mapping[str, list[int]], total: int) -> Table:
    rows: list[tuple[Inline, ...]] = [((clipped(k, 40),), (_between(low, high),)) for k, (low, high) in sizes.items()]
    low, high = (sum(values[i] for values in sizes.values()) for i in (0, 1))
    rows += [(("together",), (_between(low, high),)), (("of",), (f"{total / GIB:.2f}",))]
    return Table((Column("kind"), Column("GiB on each GPU", True)), tuple(rows))


def _parts(parts: list[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            (clipped(part["name"], 60),),
            (clipped(part["kind"], 30),),
            (_between(part["low"], part["high"]),),
            (clipped(part["source"], 160),),
        )
        for part in parts
    )
    return Table((Column("part"), Column("kind"), Column("GiB", True), Column("from")), rows)
