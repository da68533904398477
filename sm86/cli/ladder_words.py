"""A ladder in words: what it would do, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sm86.ladder import state as s
from sm86.ladder import summary
from sm86.ladder.rungs import COMM, Rung
from sm86.ladder.state import State
from sm86.record import Record

PLAN_SCHEMA = "sm86.ladder-plan"
VERSION = 1


def dry_run_words(ladder: str, rungs: Sequence[Rung], previous: State | None) -> tuple[str, ...]:
    """The rungs in order, what their settings would do, and how far an earlier run is."""
    said = [f"ladder {ladder}: nothing was started; it would boot, verify, benchmark and stop, in this order"]
    for number, rung in enumerate(rungs, 1):
        published = rung.envelope.published
        beside = f", published {published.aggregate_tok_s} tok/s" if published and not rung.overrides else ""
        status = f", {rung.envelope.status}" if rung.envelope.status not in ("published", "embedded") else ""
        what = f"{rung.envelope.name}, {rung.shape}{status}{beside}"
        if rung.key != rung.envelope.name:
            what = f"{rung.title}: {what}"
        said.append(f"  {number}. {rung.key:<32}{what}{_done(rung, previous)}")
        if not rung.boots:
            said.append("     inert here, so it is not started: it would measure the server as it is once more")
        said += [f"     {one.name}={one.value} is {one.state}: {one.why}" for one in rung.effects]
        if rung.envelope.caveat:
            said.append(f"     known: {rung.envelope.caveat}")
    if previous is not None:
        where = previous.next_key
        said.append(
            f"an earlier run of {previous.started} "
            + ("is complete" if where is None else f"stands at rung {where}: --resume goes on, --restart begins anew")
        )
    return tuple(said)


def dry_run_json(ladder: str, rungs: Sequence[Rung], previous: State | None) -> dict[str, Any]:
    return {
        "schema": PLAN_SCHEMA,
        "version": VERSION,
        "ladder": ladder,
        "rungs": [
            {
                "key": rung.key,
                "title": rung.title,
                "envelope": rung.envelope.name,
                "envelope_digest": rung.envelope.digest(),
                "sequences": rung.envelope.serve.sequences,
                "context": rung.envelope.serve.context,
                "published_tok_s": rung.envelope.published.aggregate_tok_s if rung.envelope.published else None,
                "overrides": dict(rung.overrides),
                "effects": [
                    {"name": one.name, "value": one.value, "state": one.state, "why": one.why} for one in rung.effects
                ],
                "boots": rung.boots,
                "gate": rung.gate,
                "state": previous.outcomes[rung.key].state if previous and rung.key in previous.outcomes else "not run",
            }
            for rung in rungs
        ],
        "next": previous.next_key if previous is not None else rungs[0].key,
    }


def _done(rung: Rung, previous: State | None) -> str:
    outcome = previous.outcomes.get(rung.key) if previous is not None else None
    return f"  [{outcome.state}]" if outcome is not None else ""


def end_words(record: Record, state: State, rungs: Sequence[Rung]) -> tuple[str, ...]:
    """The table, what stands beside the numbers, and where and why it stopped."""
    from sm86.report.curve import table

    ladder = str(record.details["ladder"])
    mark = f"  [{record.conditions.mark}]" if record.conditions.mark else ""
    said = [f"ladder {ladder} on {record.details['runs_on']}{mark}", *table(record)]
    found = summary.rows(state, rungs)
    for row in found:
        if row.state == s.INERT and row.outcome is not None:
            said.append(f"  {row.rung.key} is inert, not started: {row.outcome.text}")
        for finding in row.outcome.findings if row.outcome else ():
            said.append(f"  {row.rung.key}, finding: {finding}")
    if ladder == COMM:
        for one in summary.matrix_rows(found):
            said.append(
                f"  {one.title}: {one.word}, {one.tok_s:.1f} against {one.baseline_tok_s:.1f} tok/s "
                f"({100 * one.share:+.1f} %, noise {one.noise_tok_s:.1f} tok/s){mark}"
            )
        said.append(summary.conclusion(found))
    stop = summary.stopped_by(state)
    if stop is not None:
        key, cause = stop
        said.append(f"stopped at {key}. Next root cause: {cause.words()}")
        said += [f"  | {line}" for line in cause.evidence]
        said.append(f"mend: {cause.mend}")
        said.append(f"invoke ladder.{ladder} --resume tries this rung again, with the same options")
    else:
        counted = sum(row.state == s.PASSED for row in found)
        said.append(f"complete: {counted} of {len(found)} rungs passed" + _inert(found))
    return tuple(said)


def _inert(found: Sequence[summary.Row]) -> str:
    count = sum(row.state == s.INERT for row in found)
    return f", {count} inert" if count else ""
