"""One judgement of the image check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OK, FAIL, EXPECTED, NOT_SEEN = "pass", "fail", "expected", "not seen"


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement: state is "pass", "fail", "not seen", or "expected": a deviation that the build record explains."""

    rule: str
    state: str
    text: str
    mend: str = ""


def error_of(value: Any) -> str | None:
    """What the probe says instead of a fact that it could not have."""
    return value.get("error") if isinstance(value, dict) and "error" in value else None
