"""The rounds of a benchmark that were left out and measured again, as its record tells them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sm86.record.schema import Record

NO_REASON = "no reason is on record"
SHORTER = "it was shorter than those that count"


def reasons_left_out(record: Record) -> tuple[str, ...]:
    """Why each of them had no window, in their order; empty where there was none, or the record knows none."""
    rounds = record.details.get("left_out")
    if not isinstance(rounds, Sequence) or isinstance(rounds, str):
        return ()
    return tuple(_reason(one) for one in rounds)


def in_words(reasons: Sequence[str]) -> str:
    """ "2 rounds were left out and measured again: ...; ..."; empty for none."""
    if not reasons:
        return ""
    count = "1 round was" if len(reasons) == 1 else f"{len(reasons)} rounds were"
    return f"{count} left out and measured again: {'; '.join(dict.fromkeys(reasons))}"


def _reason(one: object) -> str:
    window = one.get("window") if isinstance(one, Mapping) else None
    if isinstance(window, Mapping) and window and "refused" not in window:
        return SHORTER
    reason = window.get("refused") if isinstance(window, Mapping) else None
    return reason if isinstance(reason, str) and reason.strip() else NO_REASON
