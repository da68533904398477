"""What the doctor found as a record, for the report."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sm86.doctor.as_json import report_to_json
from sm86.doctor.facts import Rig
from sm86.doctor.finding import Report
from sm86.record import Conditions, Record, Verdict
from sm86.spec import Envelope


def to_record(rig: Rig, report: Report, envelope: Envelope, started: datetime, seconds: float) -> Record:
    """The record of kind "doctor": a verdict for each finding in the doctor's own words (ok, warn, fail, unknown)."""
    gpus = tuple(
        {
            name: value
            for name, value in (
                ("index", gpu.index),
                ("uuid", gpu.uuid),
                ("name", gpu.name),
                ("compute_capability", None if gpu.capability is None else list(gpu.capability)),
                ("memory_mib", None if gpu.memory_total is None else gpu.memory_total >> 20),
                ("power_limit_w", gpu.power_limit),
                ("default_power_limit_w", gpu.power_limit_default),
            )
            if value is not None
        }
        for gpu in rig.gpus or ()
    )
    values = report_to_json(rig, report)
    return Record(
        kind="doctor",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=started,
        seconds=round(seconds, 3),
        conditions=Conditions(engine="cuda", mark=report.mark, gpus=gpus, host=_host(rig)),
        verdicts=tuple(Verdict(one.rule, one.state, f"{one.what}. {one.mend}".rstrip(". ")) for one in report.findings),
        details={"placement": values["placement"], "missed": values["missed"], "facts": values},
    )


def _host(rig: Rig) -> dict[str, Any]:
    """The machine as other records name it; the facts may be another machine's, from a file."""
    host = rig.host
    facts: dict[str, Any] = {
        "cpu": host.cpu,
        "cores": host.cores,
        "memory_mib": None if host.memory_total is None else host.memory_total >> 20,
        "kernel": host.kernel,
        "system": host.system,
    }
    return {name: value for name, value in facts.items() if value is not None}
