"""What a rule found: its state, one sentence, what to do, and the log lines that show it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sm86.errors import EXIT_FINDING, EXIT_OK
from sm86.verify import events as ev

PASS, FAIL, NOT_SEEN, NOT_APPLICABLE = "pass", "fail", "not seen", "not applicable"

EVIDENCE_LINES = 6
EVIDENCE_LENGTH = 220

_SECRET = re.compile(
    r"""(?ix)
    (["']?\b[\w-]*(?:api[_-]?key|token|password|secret)\b["']?\s*[=:]\s*\[?\s*)  # the name of a secret
    (?!(?:none|null|true|false)\b)(["'][^"']+["']|[^\s,'"\]\[}{]{6,})            # and its value
    |(\b(?:hf_|sk-|nvapi-|ghp_)[A-Za-z0-9_-]{8,})                                # or a value that betrays itself
    """
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the log: physical line number, from 1, and its text, shortened and without secrets."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's judgement. `text`: one sentence; `mend`: what to do, for "fail" and "not seen" only."""

    rule: str
    state: str
    text: str
    mend: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All findings for one log, in the envelope's order of rules.

    boots: starts of the server seen in the log; the last one is judged. manifest: the launcher's claims by key;
    plugin: what the backend plugin reported, by key.
    """

    envelope: str
    envelope_digest: str
    findings: tuple[Finding, ...]
    boots: int
    lines: int
    manifest: dict[str, object]
    plugin: dict[str, object]
    engine_version: str | None

    @property
    def passed(self) -> bool:
        """Every rule that applies passes, and at least one does."""
        applicable = [finding for finding in self.findings if finding.state != NOT_APPLICABLE]
        return bool(applicable) and all(finding.state == PASS for finding in applicable)

    @property
    def exit_code(self) -> int:
        return EXIT_OK if self.passed else EXIT_FINDING

    def counts(self) -> dict[str, int]:
        """How many findings are in each state."""
        return {
            state: sum(finding.state == state for finding in self.findings)
            for state in (PASS, FAIL, NOT_SEEN, NOT_APPLICABLE)
        }


def evidence(events: Iterable[ev.Event | None], *focus: str) -> tuple[Evidence, ...]:
    """Lines to show for these events, in the log's order, each once; at most EVIDENCE_LINES of them.

    focus: words of which the first one found in a long line is kept in sight.
    """
    found: dict[int, Evidence] = {}
    for event in sorted((one for one in events if one is not None), key=lambda one: one.line):
        if event.line not in found and len(found) < EVIDENCE_LINES:
            found[event.line] = Evidence(event.line, shown(event, focus))
    return tuple(found.values())


def shown(event: ev.Event, focus: tuple[str, ...] = ()) -> str:
    """An event's message as a person sees it: one line, with the process that wrote it, without secrets."""
    text = _excerpt(without_secrets(" ".join(event.text.split())), focus)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return f"({event.source.name}) {text}" if event.source else text


def without_secrets(text: str) -> str:
    """The text with values of keys and tokens masked."""

    return _SECRET.sub(lambda found: f"{found[1] or ''}***", text)


def _excerpt(text: str, focus: tuple[str, ...]) -> str:
    if len(text) <= EVIDENCE_LENGTH:
        return text
    at = next((text.find(word) for word in focus if word in text), 0)
    start = max(0, min(at - 40, len(text) - EVIDENCE_LENGTH))
    start = 0 if at < EVIDENCE_LENGTH - 80 else start
    cut = text[start : start + EVIDENCE_LENGTH]
    return ("… " if start else "") + cut + (" …" if start + EVIDENCE_LENGTH < len(text) else "")
