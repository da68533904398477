"""Climbing: rung after rung through boot, verify, bench and down, until one fails or all have passed.

What has effects is done by `Hands`, and every step is kept before it begins; the order and the judgement are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from sm86.errors import CheckFailed, Sm86Error
from sm86.ladder import judge
from sm86.ladder import state as s
from sm86.ladder.cause import UNLIKE, Cause
from sm86.ladder.rungs import Rung
from sm86.ladder.state import Outcome, State
from sm86.record import Record

BOOT, VERIFY, BENCH, PROVE, DOWN = "boot", "verify", "bench", "verify again", "down"
STEPS = (BOOT, VERIFY, BENCH, PROVE, DOWN)
"""The log is verified before the benchmark, which would be pointless on another server, and after it, because what
happens while decoding stands in it only then."""


class Hands(Protocol):
    """What a rung needs done. Every method may raise Sm86Error; `down` is called whatever happened before."""

    def boot(self, rung: Rung) -> Record:
        """Start it and wait; the record says whether it serves."""
        ...

    def verify(self, rung: Rung) -> Record: ...

    def bench(self, rung: Rung, verified: bool) -> Record:
        """Raises CheckFailed when the server fails in the middle."""
        ...

    def down(self, rung: Rung) -> None:
        """Keep its log, end it; nothing where nothing runs."""
        ...

    def save(self, record: Record) -> str:
        """The record's path."""
        ...

    def now(self) -> tuple[str, float]:
        """UTC as text, and seconds of a clock that only goes on."""
        ...


Keep = Callable[[State], None]
Tell = Callable[[Rung, str], None]


@dataclass(slots=True)
class _Run:
    """A rung on its way up: its outcome so far."""

    rung: Rung
    outcome: Outcome


def climb(state: State, rungs: Sequence[Rung], hands: Hands, keep: Keep, tell: Tell) -> State:
    """Go on from the first rung that has not passed; the state after the last step, already kept.

    It ends when a rung fails or all have passed. An interruption or a fault of another kind passes through after the
    server has been brought down; the state then says that the rung was running, and it is begun again next time.
    """
    for rung in rungs:
        done = state.outcomes.get(rung.key)
        if done is not None and done.state in (s.PASSED, s.INERT):
            continue
        if not rung.boots:
            why = "; ".join(f"{effect.name}={effect.value}: {effect.why}" for effect in rung.effects)
            state = state.with_outcome(Outcome(rung.key, s.INERT, text=why, started=hands.now()[0]))
            keep(state)
            tell(rung, s.INERT)
            continue
        state = _one(state, rung, hands, keep, tell)
        if state.outcomes[rung.key].state == s.FAILED:
            break
    return state


def _one(state: State, rung: Rung, hands: Hands, keep: Keep, tell: Tell) -> State:
    began, clock = hands.now()
    run = _Run(rung, Outcome(rung.key, s.RUNNING, BOOT, started=began))

    def step(name: str) -> None:
        nonlocal state
        run.outcome = replace(run.outcome, step=name)
        state = state.with_outcome(run.outcome)
        keep(state)
        tell(rung, name)

    def fail(cause: Cause) -> None:
        run.outcome = replace(run.outcome, state=s.FAILED, cause=cause, text=cause.words())

    def saved(record: Record) -> None:
        run.outcome = replace(run.outcome, records=(*run.outcome.records, hands.save(record)))

    try:
        step(BOOT)
        booted = hands.boot(rung)
        saved(booted)
        cause = judge.of_boot(booted, rung)
        if cause is None:
            run.outcome = replace(run.outcome, findings=judge.effects_of(booted, rung))
            first, cause = _conditions(state, booted)
            state = replace(state, conditions=first)
        if cause is None:
            step(VERIFY)
            verified = hands.verify(rung)
            cause = judge.of_verify(verified, rung, decoded=False)
            if cause is not None:
                saved(verified)
        if cause is None:
            cause = _bench(run, hands, step, saved, not judge.findings_of(verified))
        if cause is not None:
            fail(cause)
        else:
            run.outcome = replace(run.outcome, state=s.PASSED)
        step(DOWN)
    except BaseException:
        # whatever came: no server of this rung stays, and the rung is begun again next time
        hands.down(rung)
        words = f"ended in the step {run.outcome.step}"
        with suppress(Sm86Error):
            keep(state.with_outcome(replace(run.outcome, state=s.RUNNING, step="", text=words)))
        raise
    hands.down(rung)
    run.outcome = replace(run.outcome, step="", seconds=round(hands.now()[1] - clock, 1))
    state = state.with_outcome(run.outcome)
    keep(state)
    tell(rung, run.outcome.state)
    return state


def _bench(
    run: _Run, hands: Hands, step: Callable[[str], None], saved: Callable[[Record], None], verified: bool
) -> Cause | None:
    rung = run.rung
    step(BENCH)
    try:
        measured = hands.bench(rung, verified)
    except CheckFailed as fault:
        return judge.of_fault(fault.what, fault.mend, _again(hands, rung, saved), rung, fault.evidence)
    saved(measured)
    step(PROVE)
    after = hands.verify(rung)
    saved(after)
    rates = {number.name: number for number in measured.numbers}
    aggregate = rates.get("decode aggregate")
    said = next((v.text for v in measured.verdicts if v.name == judge.COMPARISON), "")
    run.outcome = replace(
        run.outcome,
        tok_s=aggregate.repeats if aggregate else (),
        each_tok_s=tuple(n.value for name, n in rates.items() if name.startswith("decode sequence ")),
        comparison=judge.compared(measured),
        findings=(*run.outcome.findings, *judge.findings_of(after), *judge.findings_of(measured)),
    )
    if run.outcome.tok_s:
        run.outcome = replace(run.outcome, text=f"{median(run.outcome.tok_s):.1f} tok/s; {said}")
    # a graph that was missed while decoding explains a slow or incoherent result, and comes first
    return judge.of_verify(after, rung) or judge.of_bench(measured, rung)


def _again(hands: Hands, rung: Rung, saved: Callable[[Record], None]) -> Record | None:
    """The log of a server that failed in the middle, judged once more; None where it cannot be."""
    try:
        record = hands.verify(rung)
    except Sm86Error:
        return None
    saved(record)
    return record


def _conditions(state: State, booted: Record) -> tuple[Mapping[str, object], Cause | None]:
    """The ladder's conditions, and a cause where this server is of another image, revision or rig than those before."""
    now = s.conditions_json(booted.conditions)
    if state.conditions is None:
        return now, None
    found = s.unlike(state.conditions, now)
    if not found:
        return state.conditions, None
    text = f"this server is not of the same kind as those of the rungs before: {'; '.join(found)}"
    return state.conditions, Cause(UNLIKE, text, s.START_ANEW)
