"""A ladder's end in numbers: one row a rung, the comm matrix against its baseline, and the record. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from sm86.ladder import matrix
from sm86.ladder import state as s
from sm86.ladder.cause import Cause
from sm86.ladder.rungs import COMM, Rung
from sm86.ladder.state import Outcome, State
from sm86.record import Conditions, Number, Record, Verdict

NOT_RUN = "not run"

NOISE_FLOOR = 0.02
"""Below 2 % a difference is noise whatever the repeats say: the benchmark itself is held to no more."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rung with what is known of it; outcome None: it was not reached."""

    rung: Rung
    outcome: Outcome | None

    @property
    def state(self) -> str:
        return self.outcome.state if self.outcome is not None else NOT_RUN

    @property
    def tok_s(self) -> float | None:
        """Median of the repeats; None where there is no number."""
        return median(self.outcome.tok_s) if self.outcome is not None and self.outcome.tok_s else None


@dataclass(frozen=True, slots=True)
class Against:
    """A setting of the matrix against the baseline: medians over all rounds in tok/s, the share by which they differ,
    what counts as noise in tok/s, and the word: "faster", "slower" or "within noise"."""

    title: str
    tok_s: float
    baseline_tok_s: float
    share: float
    noise_tok_s: float
    word: str


def rows(state: State, rungs: Sequence[Rung]) -> tuple[Row, ...]:
    return tuple(Row(rung, state.outcomes.get(rung.key)) for rung in rungs)


def is_complete(state: State) -> bool:
    return state.next_key is None


def stopped_by(state: State) -> tuple[str, Cause] | None:
    """The rung that failed and why; None where none did."""
    for key, outcome in state.outcomes.items():
        if outcome.state == s.FAILED and outcome.cause is not None:
            return key, outcome.cause
    return None


def matrix_rows(found: Sequence[Row]) -> tuple[Against, ...]:
    """Every setting that was measured, against the baseline; empty where the baseline or all settings have no number.

    The values of all rounds count together: noise is the larger of the two spreads over boots and repeats, at least
    NOISE_FLOOR of the baseline.
    """
    values: dict[str, list[float]] = {}
    for row in found:
        if not row.rung.gate and row.outcome is not None and row.outcome.state == s.PASSED:
            values.setdefault(row.rung.title, []).extend(row.outcome.tok_s)
    base = values.pop(matrix.BASELINE, [])
    if not base:
        return ()
    out = []
    for title, measured in values.items():
        if not measured:
            continue
        noise = max(_spread(base), _spread(measured), NOISE_FLOOR * median(base))
        difference = median(measured) - median(base)
        word = "within noise" if abs(difference) <= noise else "faster" if difference > 0 else "slower"
        out.append(Against(title, median(measured), median(base), difference / median(base), noise, word))
    return tuple(out)


def conclusion(found: Sequence[Row]) -> str:
    """What the comm matrix says, in one sentence."""
    if any(row.state in (NOT_RUN, s.FAILED, s.RUNNING) for row in found):
        return "the matrix is not complete, so it says nothing yet"
    against = matrix_rows(found)
    if not against:
        return "every setting is inert here, so there is nothing to compare: the server runs as it is"
    best = max(against, key=lambda one: one.share)
    if best.word != "faster":
        return matrix.NO_LEVER
    return (
        f"{best.title} is faster than the server as it is: {best.tok_s:.1f} against {best.baseline_tok_s:.1f} tok/s "
        f"({100 * best.share:+.1f} %, noise {best.noise_tok_s:.1f} tok/s); check its text before it becomes a default"
    )


def to_record(
    ladder: str, state: State, rungs: Sequence[Rung], conditions: Conditions, started: datetime, seconds: float
) -> Record:
    """The record of kind "ladder": a number and a verdict for each rung, and `details["rungs"]` with all of it.

    Its envelope is "ladder-<name>"; its digest is over those of the rungs.
    """
    found = rows(state, rungs)
    mark = f"{conditions.mark} number" if conditions.mark else ""
    numbers = [
        Number(f"decode aggregate {row.rung.key}", round(row.tok_s, 4), "tok/s", row.outcome.tok_s, mark)
        for row in found
        if row.tok_s is not None and row.outcome is not None and row.outcome.state == s.PASSED
    ]
    stop = stopped_by(state)
    return Record(
        kind="ladder",
        envelope=f"ladder-{ladder}",
        envelope_digest=_digest(state),
        started=started,
        seconds=round(seconds, 3),
        conditions=conditions,
        numbers=tuple(numbers),
        verdicts=tuple(_verdict(row) for row in found),
        details={
            "ladder": ladder,
            "runs_on": state.identity.engine,
            "began": state.started,
            "complete": is_complete(state),
            "stopped_by": None if stop is None else {"rung": stop[0], **stop[1].to_json()},
            "conclusion": conclusion(found) if ladder == COMM else None,
            "matrix": [_against(one) for one in matrix_rows(found)] if ladder == COMM else [],
            "rungs": [_rung(row) for row in found],
        },
    )


def _verdict(row: Row) -> Verdict:
    words = {s.PASSED: "pass", s.FAILED: "fail", s.INERT: "not applicable"}
    text = row.outcome.text if row.outcome is not None else "a rung before it did not pass"
    return Verdict(row.rung.key, words.get(row.state, "not seen"), text)


def _rung(row: Row) -> dict[str, Any]:
    rung, outcome = row.rung, row.outcome
    published = rung.envelope.published
    return {
        "key": rung.key,
        "title": rung.title,
        "envelope": rung.envelope.name,
        "envelope_digest": rung.envelope.digest(),
        "status": rung.envelope.status,
        "sequences": rung.envelope.serve.sequences,
        "context": rung.envelope.serve.context,
        "gate": rung.gate,
        "round": rung.round,
        "overrides": dict(rung.overrides),
        "effects": [{"name": one.name, "value": one.value, "state": one.state, "why": one.why} for one in rung.effects],
        "state": row.state,
        "text": outcome.text if outcome else "",
        "cause": outcome.cause.to_json() if outcome and outcome.cause else None,
        "findings": list(outcome.findings) if outcome else [],
        "tok_s": row.tok_s,
        "repeats_tok_s": list(outcome.tok_s) if outcome else [],
        "each_tok_s": list(outcome.each_tok_s) if outcome else [],
        "comparison": outcome.comparison if outcome else "",
        "published_tok_s": published.aggregate_tok_s if published else None,
        "published_each_tok_s": list(published.per_sequence_tok_s) if published else [],
        "published_source": published.source if published else None,
        "records": list(outcome.records) if outcome else [],
        "seconds": outcome.seconds if outcome else 0.0,
    }


def _against(one: Against) -> dict[str, Any]:
    return {
        "title": one.title,
        "tok_s": round(one.tok_s, 4),
        "baseline_tok_s": round(one.baseline_tok_s, 4),
        "share": round(one.share, 5),
        "noise_tok_s": round(one.noise_tok_s, 4),
        "word": one.word,
    }


def _digest(state: State) -> str:
    return hashlib.sha256(json.dumps(state.identity.rungs, sort_keys=True).encode()).hexdigest()[:16]


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)
