"""What a rule of the doctor found: its state, what was seen, why it matters here, how to mend it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sm86.doctor.placement import Placement
from sm86.errors import EXIT_FINDING, EXIT_OK

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"
STATES = (FAIL, WARN, UNKNOWN, OK)
"""Worst first, as they are shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's judgement. what: one sentence; why and mend: for all but "ok"; a rule that does not apply to a machine
    (a rule about GPUs where there are none) has no finding. "unknown" is never a pass: it says what was not seen."""

    rule: str
    state: str
    what: str
    why: str = ""
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one rig, in the order of the rules, and where its ranks belong. envelope: the one it was
    judged for; mark: not empty where the facts were not gathered on a machine; not_applicable: rules that do not apply
    to this machine."""

    findings: tuple[Finding, ...]
    placement: Placement | None
    envelope: str
    mark: str = ""
    missed: tuple[str, ...] = ()
    not_applicable: int = 0

    @property
    def exit_code(self) -> int:
        """1 where something is wrong. What is unknown is said, and does not count as wrong."""
        return EXIT_FINDING if self.counts()[FAIL] else EXIT_OK

    def counts(self) -> dict[str, int]:
        return {state: sum(finding.state == state for finding in self.findings) for state in STATES}


def ok(rule: str, what: str) -> Finding:
    return Finding(rule, OK, what)


def warn(rule: str, what: str, why: str, mend: str) -> Finding:
    return Finding(rule, WARN, what, why, mend)


def fail(rule: str, what: str, why: str, mend: str) -> Finding:
    return Finding(rule, FAIL, what, why, mend)


def unknown(rule: str, what: str, why: str, mend: str) -> Finding:
    return Finding(rule, UNKNOWN, what, why, mend)
