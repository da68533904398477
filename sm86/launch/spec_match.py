"""Does a given argument list match the packaged spec of its envelope? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sm86.launch import arguments
from sm86.spec.argv import serve_argv
from sm86.spec.envelope import Envelope


def differences(given: Sequence[str], envelope: Envelope) -> list[dict[str, str]]:
    """Arguments that differ, each as {"argument", "spec", "given"}, "" for an absent one; empty: it matches.

    Where the server listens and where its checkpoint lies are the run's own business, and the order says nothing.
    """
    facts = arguments.facts_of(given)
    spec = serve_argv(envelope, facts.model, facts.host or "", facts.port)
    ours, theirs = _by_flag(spec), _by_flag(given)
    ours.setdefault("--port", str(facts.port))
    theirs.setdefault("--port", str(facts.port))
    if facts.host is None:
        ours.pop("--host")
    return [
        {"argument": flag, "spec": ours.get(flag, ""), "given": theirs.get(flag, "")}
        for flag in dict.fromkeys((*ours, *theirs))
        if ours.get(flag) != theirs.get(flag)
    ]


def _by_flag(argv: Sequence[str]) -> dict[str, str]:
    """Each flag's text; several of one flag are all kept, as the last alone would hide the others."""
    found: dict[str, str] = {}
    for item in arguments.items(argv):
        if item.flag == "--model":
            continue
        name = f"{item.flag}.{item.key}" if item.key else item.flag
        text = item.value if item.value is not None else "given"
        found[name] = f"{found[name]} {text}" if name in found else text
    return found
