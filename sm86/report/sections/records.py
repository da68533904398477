"""The list behind every number: records with their files and full conditions, and files that were not read. Pure."""

from __future__ import annotations

from typing import Any

from sm86.report.document import Block, Code, Column, Facts, Fold, Inline, Prose, Ref, Section, Table
from sm86.report.gather import Entry, Gathered
from sm86.report.marks import mark_of
from sm86.report.sections.parts import clipped, counts_of, marked, plain, readable, when
from sm86.report.sections.rig import overrides_of

MAX_UNREAD = 60


def records(gathered: Gathered) -> Section:
    """Every record with its file; every set of conditions in full."""
    entries = gathered.entries
    rows = tuple(_row(entry) for entry in entries)
    titles = [Column(""), Column("kind"), Column("envelope"), Column("time"), Column("took, s", True)]
    titles += [Column("verdicts"), Column("conditions"), Column("file")]
    table = Table(tuple(titles), rows)
    folds = tuple(_conditions(gathered, number) for number in range(1, len(gathered.conditions) + 1))
    return Section("records", "Records and conditions", 1, (table, *folds))


def _row(entry: Entry) -> tuple[Inline, ...]:
    record = entry.record
    return (
        (Ref(entry.number),),
        (clipped(record.kind, 40), *marked(mark_of(record.conditions))),
        (Code(clipped(record.envelope, 80)),),
        (when(record.started),),
        (f"{record.seconds:.1f}",),
        (counts_of(record.verdicts) if record.verdicts else "none",),
        (f"C{entry.conditions}",),
        (Code(clipped(entry.place, 160)),),
    )


def _conditions(gathered: Gathered, number: int) -> Fold:
    conditions = gathered.conditions[number - 1]
    given: list[tuple[str, Any]] = [
        ("engine", conditions.engine),
        ("mark", mark_of(conditions) or "none: an SM86 rig, or not known to be another"),
        ("image", conditions.image_id),
        ("hash of the locks", conditions.lock_hash),
        ("model", conditions.model),
        ("hash of the model", conditions.model_hash),
        ("revision", conditions.git_rev),
        ("vLLM", conditions.vllm_version),
        ("NVIDIA driver", conditions.driver),
    ]
    facts: list[tuple[str, Inline]] = [
        (name, (Code(clipped(value)),) if value else ("not recorded",)) for name, value in given
    ]
    facts.append(("overrides", overrides_of(conditions)))
    for index, gpu in enumerate(conditions.gpus[:16]):
        words = ", ".join(f"{readable(key)} {plain(value)}" for key, value in gpu.items())
        facts.append((f"GPU {index}", (clipped(words),)))
    facts += [(f"host: {readable(key)}", (plain(value),)) for key, value in conditions.host.items()]
    used = [entry for entry in gathered.entries if entry.conditions == number]
    title: list[Any] = [f"Conditions C{number} of"]
    for entry in used[:12]:
        title += [" ", Ref(entry.number)]
    if len(used) > 12:
        title.append(f" and {len(used) - 12} more")
    return Fold(tuple(title), (Facts(tuple(facts)),))


def unread(gathered: Gathered) -> Section | None:
    """Files that are not in the report and why; None where there is none."""
    if not gathered.unread:
        return None
    rows = tuple(
        ((Code(clipped(file.place, 160)),), (clipped(file.why),), ("damaged or foreign" if file.fault else "left out",))
        for file in gathered.unread[:MAX_UNREAD]
    )
    more = len(gathered.unread) - MAX_UNREAD
    blocks: list[Block] = [Prose(("Nothing of these files is in this report.",), "note")]
    titles = (Column("file"), Column("why"), Column(""))
    blocks.append(Table(titles, rows, f"{more} more files were not read" if more > 0 else ""))
    return Section("unread", "Files that were not read", 1, tuple(blocks))
