"""A report and its facts as one JSON value: what `--json` prints and what a bundle holds. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sm86.doctor.facts import Rig
from sm86.doctor.facts_json import to_json
from sm86.doctor.finding import Report


def report_to_json(rig: Rig, report: Report, redacted: bool = False) -> dict[str, Any]:
    """Schema `sm86.rig`: the facts first, which is what is read back; then what was concluded from them."""
    return {
        **to_json(rig),
        "redacted": redacted,
        "mark": report.mark,
        "envelope": report.envelope,
        "counts": report.counts(),
        "not_applicable": report.not_applicable,
        "findings": [asdict(finding) for finding in report.findings],
        "placement": asdict(report.placement) if report.placement else None,
        "missed": list(report.missed),
    }
