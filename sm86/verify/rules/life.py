"""Rules on the server's life: started once, and ready."""

from __future__ import annotations

from sm86.verify import events as ev
from sm86.verify.boots import Start
from sm86.verify.case import MEND_CUT, Case, failed, not_seen, passed
from sm86.verify.findings import Finding


def single_boot(case: Case) -> Finding:
    """The log holds one start of the server, and it began with the launcher's manifest or the server's first line."""
    if case.boots > 1:
        lines = [start.event for start in case.starts]
        return failed(
            f"the log holds {case.boots} starts of the server{_why(case.starts)}; the last one was judged",
            "find out why it restarted, then verify a log of one start (stop it, `invoke up`, verify again)",
            [*lines, *(start.trouble.event for start in case.starts if start.trouble is not None)],
        )
    if case.boot.stage < 0:
        return not_seen("no beginning of a start is in the log", MEND_CUT)
    return passed("one start", [case.boot.start])


def _why(starts: tuple[Start, ...]) -> str:
    ended = [start.trouble for start in starts[:-1] if start.trouble is not None]
    if not ended:
        return ""
    first = ended[0].event
    what = "memory ran out" if isinstance(first, ev.OutOfMemory) else "the engine died"
    return f" ({what} on line {first.line})"


_CAUSE = {
    "start": "the engine could not start",
    "worker": "a worker died",
    "engine": "the engine died",
    "server": "the API server could not start",
}


def ready(case: Case) -> Finding:
    """The server answered, and nothing died after that unless somebody asked for the end."""
    boot = case.boot
    refused = boot.last(ev.LauncherRefused)
    if refused is not None:
        return failed(
            f"the launcher refused to start the server: {refused.what}", "do what the line below it says", [refused]
        )
    complete, latest = boot.last(ev.StartupComplete), boot.latest
    deaths = [trouble.event for trouble in boot.troubles if isinstance(trouble.event, ev.EngineDead)]
    kills = [t.event for t in boot.troubles if isinstance(t.event, ev.OutOfMemory) and t.event.kind == "killed"]
    mend = "mend what the log names as the cause, then start it again"
    if deaths or kills:
        death = min([*deaths, *kills], key=lambda event: event.line)
        what = _CAUSE[death.cause] if isinstance(death, ev.EngineDead) else "a process was killed"
        when = "after it was ready" if complete is not None and complete.line < death.line else "before it was ready"
        cause = next((error for error in boot.all(ev.ErrorRaised) if error.line >= death.line), None)
        reason = f": {cause.exception.rpartition('.')[2]}" if cause is not None else ""
        return failed(f"{what} {when}{reason}", mend, [complete, death, cause])
    if complete is not None:
        return passed("the server's start-up is complete, and nothing died after it", [complete])
    if isinstance(latest, ev.ErrorRaised | ev.OutOfMemory | ev.ContextRefused | ev.KvTooSmall):
        # an error before any engine exists ends the server without a further word
        return failed("the log ends with an error, before the server was ready", mend, [latest])
    return not_seen(f"the log ends in the phase {boot.phase}, before the server was ready", MEND_CUT, [latest])
