"""Whether a record that could be read may be shown: plain values of the right types, finite numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from sm86.record import Record

_TEXTS = ("image_id", "lock_hash", "model", "model_hash", "git_rev", "vllm_version", "driver")


def fault(record: Record) -> str:
    """What is wrong with a record in words; empty where nothing is. A record is written by a program, but a file may
    have been cut, edited or made by another."""
    if not _text(record.kind) or not _text(record.envelope) or not isinstance(record.envelope_digest, str):
        return "its kind or envelope is no text"
    if record.started.tzinfo is None:
        return "its time has no zone"
    if not _number(record.seconds) or record.seconds < 0:
        return f"it took {record.seconds!r} seconds"
    if not isinstance(record.details, Mapping):
        return "its details are no object"
    conditions = record.conditions
    if not _text(conditions.engine) or not isinstance(conditions.mark, str):
        return "its conditions name no engine"
    if not all(getattr(conditions, name) is None or isinstance(getattr(conditions, name), str) for name in _TEXTS):
        return "a condition is no text"
    if not isinstance(conditions.host, Mapping) or not isinstance(conditions.overrides, Mapping):
        return "its host or overrides are no object"
    if not all(isinstance(gpu, Mapping) for gpu in conditions.gpus):
        return "a GPU of its conditions is no object"
    if not all(isinstance(value, str) for value in conditions.overrides.values()):
        return "an override is no text"
    for number in record.numbers:
        if not isinstance(number.name, str) or not isinstance(number.unit, str) or not isinstance(number.note, str):
            return "a number's name, unit or note is no text"
        if not _number(number.value) or not all(_number(value) for value in number.repeats):
            return f"the number {number.name!r} is no finite number"
    for verdict in record.verdicts:
        if not all(isinstance(value, str) for value in (verdict.name, verdict.state, verdict.text)):
            return "a verdict is no text"
    return _unfit(record.to_json())


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:
        # JSON has integers of any length
        return False


def _unfit(value: Any) -> str:
    """What stands anywhere in it that no page can show. Without recursion: how deep a file nests is its writer's
    choice."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (int, float)) and not _finite(item):
            return "a value in it is no finite number"
        if isinstance(item, str) and not item.isascii() and not _encodes(item):
            return "a text in it is no Unicode"
        if isinstance(item, Mapping):
            waiting += [*item, *item.values()]
        elif isinstance(item, Sequence) and not isinstance(item, str):
            waiting += item
    return ""


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        # half of a surrogate pair, which JSON can spell
        return False
    return True
