"""The record's schema and its JSON form. Pure.

A number is a result only with its record: the conditions stand beside it, and a number from a CPU or
an emulation carries that mark in `Conditions.mark` so that every place that shows it can say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sm86.errors import CouldNotRun

SCHEMA = "sm86.record"
VERSION = 1

KINDS = ("boot", "verify", "bench", "demo", "comm", "ladder", "probe", "trace", "plan", "doctor")
STATES = ("pass", "fail", "not seen", "not applicable")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a number depends on. A fact that could not be had is None, never a guess.

    engine: "cuda" or "cpu"; mark: "" for a real rig, else how its numbers must be called ("CPU", "emulated",
    "other GPU"); gpus: one mapping per GPU (uuid, name, clocks in MHz, power limit in W); overrides: per-run settings.
    """

    engine: str
    mark: str
    image_id: str | None = None
    lock_hash: str | None = None
    model: str | None = None
    model_hash: str | None = None
    git_rev: str | None = None
    vllm_version: str | None = None
    driver: str | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Number:
    """A measured number: median of `repeats` values, with all of them and their unit."""

    name: str
    value: float
    unit: str
    repeats: tuple[float, ...] = ()
    note: str = ""

    @property
    def spread(self) -> float:
        """Largest minus smallest repeat; 0 for fewer than two."""
        return max(self.repeats) - min(self.repeats) if len(self.repeats) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement: its name, one of STATES, and the sentence that says why."""

    name: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one kind on one envelope. `details` holds what only that kind knows; plain JSON values."""

    kind: str
    envelope: str
    envelope_digest: str
    started: datetime
    seconds: float
    conditions: Conditions
    numbers: tuple[Number, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for json.dumps; `from_json` gives the same record back."""
        values = asdict(self)
        values["started"] = self.started.isoformat().replace("+00:00", "Z")
        for number, own in zip(values["numbers"], self.numbers, strict=True):
            number["spread"] = own.spread
        return {"schema": SCHEMA, "version": VERSION, **values}


def from_json(values: Any, where: str) -> Record:
    """The record of such JSON. Raises CouldNotRun for another schema, a newer version or missing parts."""
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise CouldNotRun(f"{where} is not an sm86 record", "give a file from results/")
    if values.get("version") != VERSION:
        raise CouldNotRun(
            f"{where} is a record of version {values.get('version')!r}; this program reads version {VERSION}",
            "use the program version that wrote it, or run the measurement again",
        )
    try:
        conditions = values["conditions"]
        return Record(
            kind=values["kind"],
            envelope=values["envelope"],
            envelope_digest=values["envelope_digest"],
            started=datetime.fromisoformat(values["started"].replace("Z", "+00:00")),
            seconds=values["seconds"],
            conditions=Conditions(**{**conditions, "gpus": tuple(conditions["gpus"])}),
            numbers=tuple(
                Number(n["name"], n["value"], n["unit"], tuple(n["repeats"]), n["note"]) for n in values["numbers"]
            ),
            verdicts=tuple(Verdict(**verdict) for verdict in values["verdicts"]),
            details=values["details"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CouldNotRun(f"{where} is damaged: {error!r}", "run the measurement again") from None
