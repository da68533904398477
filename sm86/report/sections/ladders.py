"""A ladder from its record: its rungs in order, where it stopped and why, its curve. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.report.charts import RATE, Line, Lines, amount
from sm86.report.document import Block, Code, Column, Figure, Inline, Prose, Ref, Section, State, Strong, Table
from sm86.report.gather import Entry, Machine
from sm86.report.sections.measured import COMPARED
from sm86.report.sections.parts import MAX_ROWS, clipped, counts_of, marked, span_of, when, without_empty

STATES = {"passed": "pass", "failed": "fail", "inert": "not applicable"}


def ladder(machine: Machine, entry: Entry, key: str) -> Section:
    """Rungs with their numbers; a published number only beside one that the benchmark could compare."""
    details, mark = entry.record.details, machine.mark
    rungs = [rung for rung in details["rungs"] if isinstance(rung, Mapping)]
    if not rungs:
        raise ValueError("a ladder without rungs")
    whole = "complete" if details.get("complete") else "not complete"
    counted = f": {counts_of(entry.record.verdicts)}" if entry.record.verdicts else ""
    words = f"{when(entry.record.started)}, {whole}{counted}. "
    blocks: list[Block] = [Prose((words, *marked(mark), " ", Ref(entry.number)))]
    stop = details.get("stopped_by")
    if isinstance(stop, Mapping):
        said = [str(stop[name]) for name in ("kind", "what", "text", "mend") if stop.get(name)]
        blocks.append(Prose(("It stopped at ", Code(clipped(stop["rung"], 60)), ": ", clipped("; ".join(said))), "bad"))
    beside = not mark and any(_known(rung) is not None for rung in rungs)
    blocks.append(_table(rungs, beside, mark))
    if (figure := _curve(rungs, beside, mark, key, entry)) is not None:
        blocks.append(figure)
    blocks += _matrix(details, mark)
    if details.get("conclusion"):
        blocks.append(Prose((f"{clipped(details['conclusion'])}.", *marked(mark))))
    return Section(key, clipped(str(details.get("ladder", entry.envelope)), 80), 3, tuple(blocks), mark)


def _known(rung: Mapping[str, Any]) -> float | None:
    published = rung.get("published_tok_s")
    return float(published) if published is not None and rung.get("comparison") in COMPARED else None


def _table(rungs: list[Mapping[str, Any]], beside: bool, mark: str) -> Table:
    titles = [Column("rung"), Column("shape"), Column("state"), Column("all sequences, tok/s", True), Column("repeats")]
    titles += [Column("published", True), Column("against it")] if beside else []
    rows = []
    for rung in rungs[:MAX_ROWS]:
        tok_s = rung.get("tok_s")
        value: Inline = (Strong(amount(float(tok_s), RATE)), *marked(mark)) if tok_s is not None else ("",)
        row: list[Inline] = [
            (Code(clipped(rung["key"], 60)),),
            (f"{rung['sequences']} x {rung['context']:,}",),
            (State(STATES.get(str(rung["state"]), "not seen")),),
            value,
            (span_of([float(x) for x in rung.get("repeats_tok_s") or ()], RATE),),
        ]
        if beside:
            known = _known(rung)
            row += [(amount(known, RATE),), (clipped(rung["comparison"], 40),)] if known is not None else [("",), ("",)]
        row.append((clipped(rung.get("text", "")),))
        rows.append(tuple(row))
    return without_empty(Table((*titles, Column("why")), tuple(rows)))


def _curve(rungs: list[Mapping[str, Any]], beside: bool, mark: str, key: str, entry: Entry) -> Figure | None:
    measured = [r for r in rungs if r.get("tok_s") is not None and r["state"] == "passed" and not r.get("overrides")]
    name, label = ("sequences", "sequences") if len({r["sequences"] for r in measured}) > 1 else ("context", "tokens")
    points = {float(r[name]): float(r["tok_s"]) for r in measured}
    if len(points) < 2 or len(points) != len(measured):
        return None
    lines = [Line("all sequences", tuple(sorted(points.items())))]
    known = {float(r[name]): value for r in measured if (value := _known(r)) is not None}
    if beside and known:
        lines.append(Line("published", tuple(sorted(known.items())), published=True))
    chart = Lines(f"Decode over {name}", label, "tok/s", tuple(lines), None, name == "sequences", mark)
    return Figure(key, chart, ("Rungs that passed. ", Ref(entry.number)))


def _matrix(details: Mapping[str, Any], mark: str) -> list[Block]:
    found = [one for one in details.get("matrix") or () if isinstance(one, Mapping)]
    if not found:
        return []
    keys = list(dict.fromkeys(key for one in found for key in one))
    columns = tuple(
        Column(key.replace("_", " "), all(isinstance(o.get(key), (int, float)) for o in found)) for key in keys
    )
    rows = tuple(
        tuple((amount(float(o[k])) if isinstance(o.get(k), (int, float)) else clipped(o.get(k, "")),) for k in keys)
        for o in found[:MAX_ROWS]
    )
    return [Prose(("Each setting against the server as it is:", *marked(mark)), "note"), Table(columns, rows)]
