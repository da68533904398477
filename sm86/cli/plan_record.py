"""A memory plan as a record, for the report. It is computed: its numbers say so, and it names no machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sm86.record import Conditions, Number, Record, Verdict
from sm86.spec import Envelope

GIB = 2**30


def to_record(values: Mapping[str, Any], envelope: Envelope, started: datetime) -> Record:
    """The record of kind "plan" of one plan's JSON values. Sizes are known between two bounds; both are numbers."""
    numbers = [
        Number(f"{what} on each GPU, {bound}", round(values[key][side] / GIB, 3), "GiB", (), "computed")
        for what, key in (("needed", "used"), ("left", "left"))
        for bound, side in (("at least", "low"), ("at most", "high"))
    ]
    states = {"pass": "pass", "fail": "fail"}
    # what is uncertain between two bounds was not decided
    checks = [Verdict(one["name"], states.get(one["state"], "not seen"), one["text"]) for one in values["checks"]]
    return Record(
        kind="plan",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=started,
        seconds=0.0,
        conditions=Conditions(engine="cuda", mark=str(values["rig"]["mark"]), model=envelope.model.repository),
        numbers=tuple(numbers),
        verdicts=tuple(checks),
        details={"name": values["rig"]["title"], "plan": dict(values)},
    )
