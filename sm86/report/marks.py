"""How a record's numbers must be called, and which machine they are of. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sm86.record import Conditions, Record

OTHER_GPU = "other GPU"
CPU = "CPU"
UNKNOWN = "conditions unknown"

_SM86 = re.compile(r"RTX 30[5-9]0|RTX A\d{4}|\bA(?:2|10|10G|16|40)\b")
"""Names of the cards with compute capability 8.6, for records without the capability itself."""


def mark_of(conditions: Conditions) -> str:
    """The record's own mark; a CPU engine and a GPU that is no SM86 are marked whatever the record says."""
    if conditions.engine == "cpu":
        return conditions.mark if CPU in conditions.mark else CPU
    if conditions.mark:
        return conditions.mark
    if any(not is_sm86(gpu) for gpu in conditions.gpus):
        return OTHER_GPU
    return ""


def numbers_called(mark: str) -> str:
    """The mark in a sentence: "CPU numbers", "numbers of another GPU than an SM86"."""
    return "numbers of another GPU than an SM86" if mark == OTHER_GPU else f"{mark} numbers"


def is_sm86(gpu: Mapping[str, Any]) -> bool:
    """False only where the capability or the name says that it is another one."""
    capability, name = gpu.get("compute_capability"), gpu.get("name")
    if capability:
        text = ".".join(str(part) for part in capability) if isinstance(capability, (list, tuple)) else str(capability)
        return text == "8.6"
    return not name or bool(_SM86.search(str(name)))


def uuids_of(record: Record) -> frozenset[str]:
    """UUIDs of the GPUs that the record names."""
    return frozenset(str(gpu["uuid"]) for gpu in record.conditions.gpus if gpu.get("uuid"))


def identity(record: Record) -> tuple[str, ...] | None:
    """What names the machine where there are no UUIDs: the GPUs' names, or a CPU machine's size; None where nothing."""
    names = sorted(str(gpu["name"]) for gpu in record.conditions.gpus if gpu.get("name"))
    if names:
        return tuple(names)
    return host_of(record) if record.conditions.engine == "cpu" else None


def host_of(record: Record) -> tuple[str, ...] | None:
    """The host's CPU and size; None where the record does not say."""
    host = record.conditions.host
    return (str(host["cpu"]), str(host.get("cores")), str(host.get("memory_mib"))) if host.get("cpu") else None


def machine_name(records: Sequence[Record]) -> str:
    """A machine's name for a heading: "8 x RTX 3090", "AMD EPYC, 2 cores"."""
    for record in records:
        names = [str(gpu["name"]) for gpu in record.conditions.gpus if gpu.get("name")]
        if names:
            return " and ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    for record in records:
        host = record.conditions.host
        if record.conditions.engine == "cpu" and host.get("cpu"):
            cores = host.get("cores")
            return f"{host['cpu']}, {cores} cores" if cores else str(host["cpu"])
    count = max((len(record.conditions.gpus) for record in records), default=0)
    if count:
        return "1 GPU without a name" if count == 1 else f"{count} GPUs without names"
    if any(record.conditions.engine == "cpu" for record in records):
        return "a CPU that was not recorded"
    cpu = next((str(record.conditions.host["cpu"]) for record in records if record.conditions.host.get("cpu")), None)
    return f"{cpu}, no GPU recorded" if cpu else "GPUs that were not recorded"
