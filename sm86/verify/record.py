"""A report as a record of kind "verify": the verdicts with the conditions that the manifest names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sm86.record import Conditions, Record, Verdict
from sm86.spec import Envelope
from sm86.verify.case import text_of
from sm86.verify.findings import Report, without_secrets


def report_to_record(report: Report, envelope: Envelope, started: datetime, seconds: float) -> Record:
    """started: UTC, when verification began; seconds: how long it took.

    A condition that the manifest does not name is None. `details` holds the findings with their log lines.
    """
    claims = report.manifest

    def claim(key: str) -> str | None:
        value = claims.get(key)
        return None if value in (None, "", "none", "unknown") else without_secrets(text_of(value))  # type: ignore[arg-type]

    conditions = Conditions(
        engine=envelope.engine,
        mark=_mark(report, envelope),
        image_id=claim("image_id"),
        lock_hash=claim("lock_hash"),
        model=claim("model"),
        model_hash=claim("model_hash"),
        git_rev=claim("git_rev"),
        vllm_version=report.engine_version or claim("vllm_version"),
        driver=claim("driver"),
        gpus=_gpus(claims.get("gpus")),
        overrides=_overrides(claims),
    )
    return Record(
        kind="verify",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=started,
        seconds=seconds,
        conditions=conditions,
        verdicts=tuple(Verdict(finding.rule, finding.state, finding.text) for finding in report.findings),
        details={
            "passed": report.passed,
            "boots": report.boots,
            "lines": report.lines,
            "findings": [asdict(finding) for finding in report.findings],
        },
    )


def _mark(report: Report, envelope: Envelope) -> str:
    if not envelope.uses_gpu:
        return "CPU"
    # the plugin says so when it was made to run on GPUs that are no SM86: real GPUs, and nothing is emulated
    return "other GPU" if report.plugin.get("forced") in (True, "true") else ""


def _gpus(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list):
        return ()
    return tuple(item if isinstance(item, dict) else {"uuid": str(item)} for item in value)


def _overrides(claims: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for key, value in claims.items():
        if key.startswith("override."):
            given = value.get("value") if isinstance(value, dict) else value
            found[key.removeprefix("override.")] = text_of(given)  # type: ignore[arg-type]
    return found
