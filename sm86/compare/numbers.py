"""Which numbers moved between two runs, and which differ within noise. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sm86.record import Number

NOISE_FLOOR = 0.02
"""Below 2 % of the first value a difference is noise whatever the repeats say: the measurements are held to no more."""

MOVED, WITHIN, NOT_JUDGED, ONE_SIDED = "moved", "within noise", "not judged", "in one only"


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both runs. before, after: medians in `unit`, None where a run lacks it; noise: in `unit`, None
    where neither has repeats; state: one of the four words above; why: a sentence where it is not judged."""

    name: str
    unit: str
    before: float | None
    after: float | None
    noise: float | None
    state: str
    why: str = ""

    @property
    def share(self) -> float | None:
        """The difference as a share of the first value; None where there is none or it is 0."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return (self.after - self.before) / abs(self.before)


def changes(before: tuple[Number, ...], after: tuple[Number, ...], obstacle: str = "") -> tuple[Change, ...]:
    """Every number of either run, in the order of the first. obstacle: why none may be judged, empty where all may."""
    ours, theirs = {n.name: n for n in before}, {n.name: n for n in after}
    return tuple(_change(ours.get(name), theirs.get(name), obstacle) for name in dict.fromkeys((*ours, *theirs)))


def _change(before: Number | None, after: Number | None, obstacle: str) -> Change:
    known = before or after
    assert known is not None
    if before is None or after is None:
        return Change(
            known.name,
            known.unit,
            before.value if before else None,
            after.value if after else None,
            None,
            ONE_SIDED,
        )
    if before.unit != after.unit:
        why = f"one is in {before.unit}, the other in {after.unit}"
        return Change(before.name, before.unit, before.value, after.value, None, NOT_JUDGED, why)
    repeated = [number.spread for number in (before, after) if len(number.repeats) > 1]
    if not repeated:
        why = obstacle or "one value each, so nothing says what is noise"
        return Change(before.name, before.unit, before.value, after.value, None, NOT_JUDGED, why)
    noise = max(*repeated, NOISE_FLOOR * abs(before.value))
    if obstacle:
        return Change(before.name, before.unit, before.value, after.value, noise, NOT_JUDGED, obstacle)
    state = MOVED if abs(after.value - before.value) > noise else WITHIN
    one = "" if len(repeated) == 2 else "only one of the two has repeats"
    return Change(before.name, before.unit, before.value, after.value, noise, state, one)
