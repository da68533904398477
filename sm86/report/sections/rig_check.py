"""What the doctor found: what is wrong first, the rest and the facts behind it folded. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sm86.report.document import Block, Fold, Prose, Ref, Section
from sm86.report.gather import Entry, Machine
from sm86.report.sections.parts import clipped, counts_of, details_blocks, numbers_table, verdict_table, when

IN_ORDER = ("ok", "pass", "not applicable")

REPEATED = ("findings", "counts", "schema", "version", "envelope", "redacted")
"""Of the doctor's own answer: the verdicts say the same."""


def rig_check(machine: Machine, entry: Entry, key: str) -> Section:
    """Findings as the doctor judged them; its facts as they were read."""
    record = entry.record
    blocks: list[Block] = [
        Prose((f"{when(record.started)}, {record.seconds:.1f} s: {counts_of(record.verdicts)}. ", Ref(entry.number)))
    ]
    wrong = sorted(
        (verdict for verdict in record.verdicts if verdict.state not in IN_ORDER), key=lambda v: v.state != "fail"
    )
    right = [verdict for verdict in record.verdicts if verdict.state in IN_ORDER]
    if wrong:
        blocks.append(verdict_table(wrong))
    if right:
        blocks.append(Fold((f"In order: {len(right)}",), (verdict_table(right),)))
    if record.numbers:
        blocks.append(numbers_table(entry, record.numbers, machine.mark))
    answer = record.details.get("facts")
    rest = {name: value for name, value in record.details.items() if name != "facts"}
    read: tuple[Block, ...] = details_blocks(rest)
    if isinstance(answer, Mapping):
        facts = answer.get("facts")
        read += details_blocks({name: value for name, value in answer.items() if name not in (*REPEATED, "facts")})
        read += details_blocks(facts if isinstance(facts, Mapping) else {"facts": facts})
    if read:
        blocks.append(Fold(("What was read",), read))
    return Section(key, clipped(entry.envelope, 80), 3, tuple(blocks), machine.mark)
