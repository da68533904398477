"""An analysed trace as a record, for the report and for what wants to know a step's collectives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.record import Conditions, Number, Record
from sm86.spec import Envelope

ALL_REDUCE = "tp_all_reduce"

UNKNOWN = "conditions unknown"
"""The mark of a trace that does not name its GPU: it may be of any machine."""


def to_record(answer: Mapping[str, Any], devices: Sequence[str | None], path: Path, envelope: Envelope) -> Record:
    """The record of kind "trace" of an answer of the trace reader.

    devices: each file's GPU as the trace names it. What a trace does not say (image, revision, driver) stays unknown;
    its time is the file's own. Raises CouldNotRun where the trace has neither steps nor graphs.
    """
    views = [file.get("steps") or file.get("graphs") for file in answer["files"]]
    first = views[0]
    if first is None:
        raise CouldNotRun(
            f"{path} has neither steps nor graphs, so there is nothing to record", "trace a server that decodes"
        )
    name = next((device for device in devices if device), None)
    ranks = max([file.get("world_size") or 1 for file in answer["files"]])
    gpus = tuple({"index": index, "name": name} for index in range(ranks)) if name else ()
    unit = first["unit"]
    numbers = [
        Number(f"{what} of a {unit}", round(first[f"{what}_us"]["median"] / 1000, 6), "ms", (), "under the profiler")
        for what in ("span", "busy", "sum")
    ]
    calls = first["buckets"].get(ALL_REDUCE, {}).get("calls_per_unit")
    return Record(
        kind="trace",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=datetime.fromtimestamp(_time_of(path), UTC),
        seconds=0.0,
        conditions=Conditions(engine="cuda", mark="" if gpus else UNKNOWN, gpus=gpus),
        numbers=tuple(numbers),
        details={"trace": dict(answer), "all_reduce_calls_per_step": calls},
    )


def _time_of(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror or error}", "check the path") from None
