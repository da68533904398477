"""Which kind of failure ended a boot: the table of kinds applied to what is known. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sm86.boot.kinds import KINDS, Case, Kind
from sm86.boot.kinds.case import ENGINE_ERROR, MEND, RANK_WAITS, REFUSED, STAGE_OF_FRAME, STOPPED, is_consequence
from sm86.boot.scan import Line, Scanner

SHOWN_LINES = 6


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict on a failed boot. kind: a name from KINDS; lines: (number, text) of the log that show it;
    could_not_run: nothing was started that could be judged (a refusal, not a failure)."""

    kind: str
    what: str
    mend: str
    lines: tuple[tuple[int, str], ...] = ()
    could_not_run: bool = False


UNKNOWN = "unknown"

_NOTICES = {
    RANK_WAITS: (r"No available shared memory broadcast block found",),
    STOPPED: (r"\[shutdown\] .*(?:shutdown triggered|trigger received signal)",),
    MEND: (r"^mend: ",),
}


def make_scanner() -> Scanner:
    """A scanner that keeps what the table asks for."""
    patterns: dict[str, tuple[str, ...]] = {}
    for kind in KINDS:
        if kind.words:
            patterns[kind.name] = tuple(dict.fromkeys((*patterns.get(kind.name, ()), *kind.words)))
    return Scanner(patterns, _NOTICES, STAGE_OF_FRAME)


def classify(case: Case) -> Failure:
    """The first kind of the table that the case fits; "unknown" with the last lines where none does."""
    for kind in KINDS:
        lines = _shown(case, kind)
        if kind.words and not lines:
            continue
        if kind.sees(case, lines):
            return _failure(case, kind, lines)
    return Failure(
        UNKNOWN,
        f"the boot failed in phase {case.phases.current}: {case.state.words()}",
        f"see its last lines: invoke logs --envelope {case.envelope.name} --tail 100",
        _as_shown(case.scanner.tail(SHOWN_LINES)),
    )


def _shown(case: Case, kind: Kind) -> tuple[Line, ...]:
    if not kind.words:
        return ()
    pattern = re.compile("|".join(f"(?:{one})" for one in kind.words))
    lines = [line for line in case.scanner.matches(kind.name) if pattern.search(line.text)]
    if kind.stage:
        lines = [line for line in lines if case.stage_of(line) in kind.stage]
    if kind.name == ENGINE_ERROR:
        lines = [line for line in lines if not is_consequence(line)][-1:] or lines[-1:]
    return tuple(lines)


def _failure(case: Case, kind: Kind, lines: tuple[Line, ...]) -> Failure:
    found, mend = _cut(lines[0].text if lines else ""), None
    if kind.name == REFUSED:
        # the launcher's own two lines are better than any of ours; the last refusal is the one that ended it
        mends = case.scanner.matches(MEND)
        found, mend = lines[-1].text.removeprefix("sm86: "), mends[-1].text.removeprefix("mend: ")
        lines = (lines[-1], mends[-1])
    code = case.state.exit_code
    facts = {
        "phase": case.phases.current,
        "code": "unknown" if code is None else code,
        "signal": _signal_name(code),
        "restarts": case.state.restart_count,
        "cap": case.state.restart_cap or "no limit",
        "seconds": f"{case.expired.seconds:.0f}" if case.expired else "0",
        "found": found,
        "detail": _cut(case.state.error),
        "name": case.envelope.name,
        "health": case.health or "nothing",
    }
    shown = _as_shown(lines or case.scanner.tail(SHOWN_LINES))
    mend = mend or kind.mend.format(**facts)
    return Failure(kind.name, kind.what.format(**facts), mend, shown, kind.could_not_run)


def _as_shown(lines: tuple[Line, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((line.number, line.text) for line in lines[:SHOWN_LINES])


def _cut(text: str, length: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def _signal_name(code: int | None) -> str:
    import signal

    try:
        return signal.Signals((code or 0) - 128).name
    except ValueError:
        return "unknown"
