"""Two records beside each other, and two folders of them paired by kind and envelope. Pure over the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sm86.compare import numbers
from sm86.compare.conditions import Difference, differences
from sm86.compare.numbers import Change, changes
from sm86.errors import CouldNotRun
from sm86.record import Record
from sm86.record.left_out import in_words, reasons_left_out

GATES = ("window", "coherence: text", "coherence: log probabilities", "coherence: known answers")
"""Verdicts without which a benchmark is no measurement."""

QUIET = ("comparison",)
"""Verdicts whose text is about another number; their state is compared all the same."""


@dataclass(frozen=True, slots=True)
class Source:
    """A record and where it came from, as messages name it."""

    path: str
    record: Record


@dataclass(frozen=True, slots=True)
class Turned:
    """A verdict whose state is another one now; "absent" where a run has none of that name."""

    name: str
    before: str
    after: str
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two records of one kind and envelope. notes: what a reader of the numbers has to know."""

    before: Source
    after: Source
    changes: tuple[Change, ...]
    turned: tuple[Turned, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether a number moved beyond noise, or a verdict turned."""
        return bool(self.turned) or any(change.state == numbers.MOVED for change in self.changes)


@dataclass(frozen=True, slots=True)
class Result:
    """All pairs, and what one side has alone ("bench of sm86-262k"). notes: files that were passed over."""

    pairs: tuple[Pair, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        return any(pair.moved for pair in self.pairs)


def refusal(before: Source, after: Source) -> CouldNotRun | None:
    """Why the two are no pair; None where they are."""
    one, two = before.record, after.record
    if one.kind != two.kind:
        return CouldNotRun(
            f"{before.path} is a record of kind {one.kind}, {after.path} one of kind {two.kind}",
            "compare two of one kind",
        )
    if one.envelope != two.envelope:
        return CouldNotRun(
            f"{before.path} is of {one.envelope}, {after.path} of {two.envelope}: numbers of two things",
            "compare two of one envelope; a ladder's curve sets envelopes beside each other",
        )
    if one.conditions.mark != two.conditions.mark or one.conditions.engine != two.conditions.engine:
        names = [f"{s.conditions.engine} numbers{_marked(s.conditions.mark)}" for s in (one, two)]
        return CouldNotRun(
            f"{before.path} has {names[0]}, {after.path} {names[1]}: they are never compared",
            "compare two of one engine and one mark",
        )
    return None


def compare(before: Source, after: Source) -> Pair:
    """Raises CouldNotRun for two records that are no pair."""
    unlike = refusal(before, after)
    if unlike is not None:
        raise unlike
    one, two = before.record, after.record
    obstacle, notes = _obstacle(before, after)
    if one.started > two.started:
        notes.append("the first record is the newer one")
    if before.path == after.path:
        notes.append("both are the same file")
    for which, record in (("first", one), ("second", two)):
        if again := in_words(reasons_left_out(record)):
            notes.append(f"of the {which}, {again}")
    return Pair(
        before,
        after,
        changes(one.numbers, two.numbers, obstacle),
        _turned(one, two),
        differences(one, two),
        tuple(notes),
    )


def compare_all(before: Sequence[Source], after: Sequence[Source], notes: Sequence[str] = ()) -> Result:
    """The newest record of each kind and envelope on both sides. Raises CouldNotRun where the sides have none in
    common, with the reason where each has just one record."""
    ours, theirs = _newest(before), _newest(after)
    common = [key for key in ours if key in theirs]
    if not common:
        if len(ours) == len(theirs) == 1:
            reason = refusal(next(iter(ours.values())), next(iter(theirs.values())))
            assert reason is not None
            raise reason
        raise CouldNotRun(
            f"the two have no kind and envelope in common: {_keys(ours)} against {_keys(theirs)}",
            "compare runs of the same envelopes",
        )
    return Result(
        tuple(compare(ours[key], theirs[key]) for key in common),
        tuple(_named(key) for key in ours if key not in theirs),
        tuple(_named(key) for key in theirs if key not in ours),
        tuple(notes),
    )


def to_json(result: Result) -> dict[str, Any]:
    """Plain values."""
    return {
        "schema": "sm86.compare",
        "version": 1,
        "moved": result.moved,
        "pairs": [_pair_json(pair) for pair in result.pairs],
        "only_before": list(result.only_before),
        "only_after": list(result.only_after),
        "notes": list(result.notes),
    }


def _pair_json(pair: Pair) -> dict[str, Any]:
    record = pair.before.record
    return {
        "kind": record.kind,
        "envelope": record.envelope,
        "mark": record.conditions.mark,
        "before": pair.before.path,
        "after": pair.after.path,
        "moved": pair.moved,
        "numbers": [
            {
                "name": c.name,
                "unit": c.unit,
                "before": c.before,
                "after": c.after,
                "share": c.share,
                "noise": c.noise,
                "state": c.state,
                "why": c.why,
            }
            for c in pair.changes
        ],
        "verdicts": [{"name": t.name, "before": t.before, "after": t.after, "text": t.text} for t in pair.turned],
        "conditions": [
            {"name": d.name, "before": d.before or None, "after": d.after or None} for d in pair.differences
        ],
        "notes": list(pair.notes),
    }


def _obstacle(before: Source, after: Source) -> tuple[str, list[str]]:
    """Why no number of the two may be judged, and what is to be said."""
    if before.record.kind != "bench":
        return "", []
    bad = []
    for source in (before, after):
        states = {verdict.name: verdict.state for verdict in source.record.verdicts}
        wrong = [name for name in GATES if states.get(name, "not seen") not in ("pass", "not applicable")]
        if wrong:
            told = ", ".join(f"{name} ({states.get(name, 'absent')})" for name in wrong)
            bad.append(f"{source.path} is no measurement: {told}")
    if bad:
        return "one of the two is no measurement", bad
    return "", []


def _turned(before: Record, after: Record) -> tuple[Turned, ...]:
    ours, theirs = {v.name: v for v in before.verdicts}, {v.name: v for v in after.verdicts}
    found = []
    for name in dict.fromkeys((*ours, *theirs)):
        one, two = ours.get(name), theirs.get(name)
        was, now = one.state if one else "absent", two.state if two else "absent"
        if was != now:
            told = two or one
            assert told is not None
            found.append(Turned(name, was, now, "" if name in QUIET else told.text))
    return tuple(found)


def _newest(sources: Sequence[Source]) -> dict[tuple[str, str], Source]:
    found: dict[tuple[str, str], Source] = {}
    for source in sorted(sources, key=lambda one: (one.record.started, one.path)):
        found[(source.record.kind, source.record.envelope)] = source
    return dict(sorted(found.items(), key=lambda item: (item[0][1], item[0][0])))


def _named(key: tuple[str, str]) -> str:
    return f"{key[0]} of {key[1]}"


def _keys(found: dict[tuple[str, str], Source]) -> str:
    names = [_named(key) for key in found]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _marked(mark: str) -> str:
    return f" marked {mark}" if mark else ""
