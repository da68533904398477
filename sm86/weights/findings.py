"""What a rule found of a checkpoint: its state, one sentence, what to do, and the names that show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sm86.errors import EXIT_FINDING, EXIT_OK

PASS, FAIL, NOT_SEEN, NOT_APPLICABLE = "pass", "fail", "not seen", "not applicable"

SHOWN = 6
"""Names shown of many; JSON has them all the same, with their count in the text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's judgement. mend: what to do, for "fail" and "not seen" only; evidence: names or values, shortened."""

    rule: str
    state: str
    text: str
    mend: str = ""
    evidence: tuple[str, ...] = ()


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when every rule that applies passes, else 1: what applies and was not seen is no pass."""
    good = findings and all(finding.state in (PASS, NOT_APPLICABLE) for finding in findings)
    return EXIT_OK if good else EXIT_FINDING


def some(names: Iterable[str]) -> tuple[str, ...]:
    """The first names in order, and how many more there are."""
    ordered = sorted(names)
    rest = len(ordered) - SHOWN
    shown = tuple(shown_name(name) for name in ordered[:SHOWN])
    return (*shown, f"... and {rest:,} more") if rest > 0 else shown


def shown_name(name: str, most: int = 120) -> str:
    """A name from a file, without control characters and of bearable length."""
    clean = "".join(sign if sign.isprintable() else "?" for sign in name[: most + 1])
    return clean if len(clean) <= most else clean[:most] + "..."
