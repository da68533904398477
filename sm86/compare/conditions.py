"""What differs in the conditions of two runs, and what they have in common that matters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm86.record import Conditions, Record
from sm86.record.left_out import reasons_left_out

WORDS = {
    "image_id": "image",
    "lock_hash": "lock",
    "model": "model",
    "model_hash": "model's hash",
    "git_rev": "revision",
    "vllm_version": "vLLM",
    "driver": "driver",
}

DETAILS = {
    "definition": "definition of the rate",
    "sequences": "sequences",
    "context": "context",
    "wanted_prompt_tokens": "prompt tokens",
    "decode_tokens": "decode tokens",
    "runs_on": "runs on",
    "ladder": "ladder",
}
"""Plain values in a record's details that shape its numbers."""

GPU_FACTS = ("uuid", "power_limit_w", "max_sm_clock_mhz", "memory_mib")
"""Not the clocks: they are read once, at an unknown load, and telemetry says better what they were."""

SEEN = {
    "sm_clock_mhz": ("SM clock", "MHz"),
    "power_w": ("power", "W"),
    "temperature_c": ("temperature", "°C"),
    "rx_mb_s": ("PCIe received", "MB/s"),
}
SEEN_SHARE = 0.05
"""Medians of telemetry that differ by less are the same."""

Pairing = tuple[str, Any, Any]
"""Name, and the value on either side."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One condition as text, "" where a run does not say. unknown: one of the two does not say."""

    name: str
    before: str
    after: str

    @property
    def unknown(self) -> bool:
        return not self.before or not self.after


def differences(before: Record, after: Record) -> tuple[Difference, ...]:
    """What differs, specs first, then software, machine, settings and what telemetry saw."""
    found: list[Pairing] = [("envelope's spec", before.envelope_digest, after.envelope_digest)]
    ours, theirs = before.conditions, after.conditions
    found += [(words, getattr(ours, name), getattr(theirs, name)) for name, words in WORDS.items()]
    found += _gpus(ours, theirs)
    found += _mapping("override", ours.overrides, theirs.overrides, absent="not set")
    found += _mapping("host's", ours.host, theirs.host)
    found += [(words, before.details.get(name), after.details.get(name)) for name, words in DETAILS.items()]
    found += _left_out_rounds(before, after)
    found += _seen(before, after)
    return tuple(Difference(name, _text(one), _text(other)) for name, one, other in found if _text(one) != _text(other))


def _gpus(ours: Conditions, theirs: Conditions) -> list[Pairing]:
    if not ours.gpus and not theirs.gpus:
        return []
    found: list[Pairing] = [("GPUs", _count(ours), _count(theirs))]
    if len(ours.gpus) != len(theirs.gpus):
        return found
    for name in GPU_FACTS:
        one, two = ([gpu.get(name) for gpu in side.gpus] for side in (ours, theirs))
        if one != two:
            found.append((f"GPUs' {name}", _each(one), _each(two)))
    return found


def _each(values: list[Any]) -> str:
    return ", ".join(dict.fromkeys(_text(value) or "unknown" for value in values))


def _count(side: Conditions) -> str:
    names = [str(gpu.get("name", "GPU")) for gpu in side.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _mapping(kind: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], absent: str = "") -> list[Pairing]:
    names = dict.fromkeys((*ours, *theirs))
    return [(f"{kind} {name}", ours.get(name, absent), theirs.get(name, absent)) for name in names]


def _left_out_rounds(before: Record, after: Record) -> list[Pairing]:
    one, two = len(reasons_left_out(before)), len(reasons_left_out(after))
    return [("rounds measured again", one, two)] if one or two else []


def _seen(before: Record, after: Record) -> list[Pairing]:
    ours, theirs = _medians(before), _medians(after)
    found: list[Pairing] = []
    for name, (words, unit) in SEEN.items():
        if name in ours and name in theirs and abs(theirs[name] - ours[name]) > SEEN_SHARE * abs(ours[name]):
            found.append((f"{words} while measured", f"{ours[name]:.0f} {unit}", f"{theirs[name]:.0f} {unit}"))
    one, two = ("; ".join(limit["text"] for limit in _telemetry(side).get("limits", ())) for side in (before, after))
    if one != two:
        found.append(("what held GPUs back", one or "nothing", two or "nothing"))
    return found


def _telemetry(record: Record) -> Mapping[str, Any]:
    found = record.details.get("telemetry")
    return found if isinstance(found, Mapping) else {}


def _medians(record: Record) -> dict[str, float]:
    """Of each fact the mean over the GPUs of their medians."""
    gpus = [gpu.get("statistics", {}) for gpu in _telemetry(record).get("gpus", ())]
    found = {}
    for name in SEEN:
        values = [gpu[name][1] for gpu in gpus if name in gpu]
        if values:
            found[name] = sum(values) / len(values)
    return found


def _text(value: Any) -> str:
    return "" if value is None else str(value)
