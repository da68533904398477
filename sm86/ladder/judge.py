"""From the records of a rung to its judgement: passed, or the cause why not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.ladder import cause as c
from sm86.ladder.cause import Cause
from sm86.ladder.rungs import Rung
from sm86.record import Record

FINDINGS = ("git-revision",)
"""Rules whose failing says nothing about the server: the rung goes on, and the finding stays beside its number."""

_ORDER = ("out-of-memory", "context-served", "dispatch", "graphs-captured", "capture-shape", "block-override", "ready")
"""Of several failed rules the first of these names the cause; the others often follow from it."""

_KINDS = {
    "out-of-memory": c.MEMORY,
    "context-served": c.CONTEXT,
    "dispatch": c.GRAPH,
    "graphs-captured": c.CAPTURE,
    "capture-shape": c.CAPTURE,
}

_NEEDS_DECODE = "dispatch"

COHERENCE = ("coherence: text", "coherence: log probabilities", "coherence: known answers")
WINDOW = "window"
COMPARISON = "comparison"
TELEMETRY = "telemetry"


def of_boot(record: Record, rung: Rung) -> Cause | None:
    """Why the server does not serve, from its boot record; None where it does."""
    failure = record.details.get("failure")
    if not failure:
        return None
    kind, what = str(failure["kind"]), str(failure["what"])
    lines = tuple(f"{line['line']}: {line['text']}" for line in failure.get("lines", ()))
    known = f" (known: {rung.envelope.caveat})" if rung.envelope.caveat else ""
    if kind == "KV pool too small":
        return Cause(c.CONTEXT, f"{what}{known}", str(failure["mend"]), lines)
    if "OOM" in kind or "memory" in kind:
        return Cause(c.MEMORY, f"{kind}: {what}{known}", str(failure["mend"]), lines)
    return Cause(c.BOOT, f"{kind}: {what}{known}", str(failure["mend"]), lines)


def of_verify(record: Record, rung: Rung, decoded: bool = True) -> Cause | None:
    """Why the log does not prove the envelope, from its verify record; None where it does.

    A rule of FINDINGS alone is no cause: see `findings_of`. decoded: False before the first request, when a log cannot
    yet show what only decoding writes into it.
    """
    bad = {name: finding for name, finding in _findings(record).items() if finding["state"] in ("fail", "not seen")}
    if not decoded and bad.get(_NEEDS_DECODE, {}).get("state") == "not seen":
        del bad[_NEEDS_DECODE]
    for rule in FINDINGS:
        bad.pop(rule, None)
    if not bad:
        return None
    # what the log contradicts comes before what it does not show
    failed = {name for name, finding in bad.items() if finding["state"] == "fail"} or set(bad)
    name = next(rule for rule in (*_ORDER, *bad) if rule in failed)
    finding = bad[name]
    kind = _KINDS.get(name, c.UNLIKE) if finding["state"] == "fail" else c.UNLIKE
    seen = "" if finding["state"] == "fail" else "not seen: "
    mend = finding["mend"]
    if kind == c.CAPTURE:
        mend = _diagnose(rung)
    return Cause(kind, f"{name}: {seen}{finding['text']}", mend, finding["lines"])


def findings_of(record: Record) -> tuple[str, ...]:
    """What a verify or bench record says beside the judgement, and a reader of its number has to know."""
    if record.kind == "verify":
        states = ("fail", "not seen")
        found = _findings(record)
        return tuple(f"{n}: {found[n]['text']}" for n in FINDINGS if n in found and found[n]["state"] in states)
    return tuple(f"{v.name}: {v.text}" for v in record.verdicts if v.name == TELEMETRY and v.state == "fail")


def effects_of(record: Record, rung: Rung) -> tuple[str, ...]:
    """Overrides that were said to be effective before the start, and that the launcher does not say so of after it: the
    rig may not be what was assumed."""
    real = record.conditions.overrides
    return tuple(
        f"override {one.name}={one.value}: said to be effective, the launcher's manifest does not say so"
        for one in rung.effects
        if one.is_effective and one.name not in real
    )


def of_bench(record: Record, rung: Rung) -> Cause | None:
    """Why the measurement is no result, or slower than published; None where it is one and is not."""
    verdicts = {verdict.name: verdict for verdict in record.verdicts}
    for name in COHERENCE:
        if name in verdicts and verdicts[name].state == "fail":
            return Cause(c.INCOHERENT, f"{name}: {verdicts[name].text}", _INCOHERENT_MEND)
    window = verdicts.get(WINDOW)
    if window is None or window.state != "pass":
        text = window.text if window else "the record has no verdict on it"
        return Cause(c.WINDOW, text, "give more decode tokens (--decode-tokens), or leave the machine to the server")
    shown = {name: verdicts[name].state for name in COHERENCE if name in verdicts}
    needed = (COHERENCE[0], COHERENCE[2]) if rung.envelope.writes_text else (COHERENCE[1],)
    if "pass" not in [shown.get(name) for name in needed] or "not seen" in shown.values():
        told = "; ".join(f"{name}: {verdicts[name].text}" for name in shown if shown[name] != "pass")
        return Cause(c.INCOHERENT, f"coherence was not shown: {told or 'no verdict'}", _INCOHERENT_MEND)
    comparison = verdicts.get(COMPARISON)
    # a rung with settings of its own is compared with the rung without them, not with the published run
    if comparison is not None and comparison.state == "fail":
        limits = findings_of(record)
        because = f"; {'; '.join(limits)}" if limits else "; telemetry shows no limit" if _has_telemetry(record) else ""
        return Cause(c.SLOW, f"{comparison.text}{because}", _slow_mend(rung, bool(limits)))
    return None


def compared(record: Record) -> str:
    """The benchmark's word on its number and the published one ("within noise", "cannot be compared" ...)."""
    found = record.details.get("comparison")
    return str(found.get("verdict", "")) if isinstance(found, Mapping) else ""


def of_fault(what: str, mend: str, after: Record | None, rung: Rung, said: tuple[str, ...] = ()) -> Cause:
    """The cause where the server failed in the middle. after: its log verified once more, None where that cannot be;
    said: the server's words and what telemetry saw."""
    found = of_verify(after, rung) if after is not None else None
    if found is not None and found.kind in (c.MEMORY, c.GRAPH, c.CONTEXT):
        return Cause(found.kind, f"{what}; its log: {found.text}", found.mend, (*said, *found.evidence))
    # stopping a container takes its log with it
    kept = f"once it is stopped, the newest *-server.log in results/{rung.envelope.name}/ is that log"
    return Cause(c.SERVER, what, f"{mend}; {kept}", said)


def _findings(record: Record) -> dict[str, dict[str, Any]]:
    """Rule to state, text, mend and lines, from the findings of a verify record."""
    mends: dict[str, Mapping[str, Any]] = {str(f["rule"]): f for f in record.details.get("findings", ())}
    found = {}
    for verdict in record.verdicts:
        more = mends.get(verdict.name, {})
        lines = tuple(f"{line['line']}: {line['text']}" for line in more.get("evidence", ()))
        found[verdict.name] = {
            "state": verdict.state,
            "text": verdict.text,
            "mend": str(more.get("mend") or "see the verify record"),
            "lines": lines,
        }
    return found


def _has_telemetry(record: Record) -> bool:
    return any(verdict.name == TELEMETRY and verdict.state == "pass" for verdict in record.verdicts)


_INCOHERENT_MEND = (
    "a number of text that is not coherent is none: look at the bench record's texts, "
    "then serve the same envelope without graphs to see whether graphs are the difference"
)


def _slow_mend(rung: Rung, limited: bool) -> str:
    if limited:
        return "mend what limits the GPUs first, then run this rung again"
    return f"fix launch and configuration before touching kernels: {_diagnose(rung)}"


def _diagnose(rung: Rung) -> str:
    option = "CUDAGRAPH_DISPATCH_DEBUG=1"
    return (
        f"start it once with dispatch diagnostics (invoke up --envelope {rung.envelope.name} --override {option}), "
        "decode some tokens and verify its log"
    )
