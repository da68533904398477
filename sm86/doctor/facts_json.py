"""Facts as JSON and back. Reading is strict about types and lenient about what is missing: that is not known. Pure.

    {"schema": "sm86.rig", "version": 1, "facts": {...}, ...}

Further keys beside `facts` (findings, placement) are for people and other readers and are not read back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sm86.doctor.facts import SCHEMA, VERSION, Rig
from sm86.errors import CouldNotRun
from sm86.json_text import parse

NOT_KNOWN = frozenset(
    {"n/a", "[n/a]", "not supported", "[not supported]", "[unknown error]", "unknown error", "err!", "[gpu is lost]"}
)
"""How NVIDIA's tools write "no value"; whoever edits facts by hand copies it from there."""

LINK = re.compile(r"X|NV[0-9]{0,2}|PIX|PXB|PHB|NODE|SYS")

UUID = re.compile(r"[A-Za-z0-9-]{1,80}")
"""What NVML calls a GPU; it is shown as a line for `.env`, where anything else could be a second setting."""

MEND = "give what `invoke doctor --json` or `--bundle` wrote, or the text of `nvidia-smi topo -m`"


def to_json(rig: Rig) -> dict[str, Any]:
    """The facts as plain values, with schema and version."""
    return {"schema": SCHEMA, "version": VERSION, "facts": asdict(rig)}


def from_text(text: str | bytes, where: str = "the facts") -> Rig:
    """The rig of a JSON text. Raises CouldNotRun: no JSON, another schema, a value of the wrong kind."""
    try:
        value = parse(text)
    except ValueError as error:
        raise CouldNotRun(f"{where} is no JSON: {error}", MEND) from None
    return from_json(value, where)


def from_json(value: Any, where: str = "the facts") -> Rig:
    """The rig of a parsed JSON value. Raises CouldNotRun: another schema or version, a value of the wrong kind."""
    import msgspec

    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        schema = value.get("schema") if isinstance(value, Mapping) else None
        raise CouldNotRun(
            f"{where} holds {f'schema {schema!r}' if schema else 'JSON without a schema'}, not {SCHEMA!r}", MEND
        )
    version = value.get("version")
    if version != VERSION or isinstance(version, bool):
        raise CouldNotRun(
            f"{where} has version {version!r} of {SCHEMA}, this program reads {VERSION}",
            "gather the facts again with this version of the product",
        )
    try:
        rig: Rig = msgspec.convert(_without_na(value.get("facts")), Rig)
    except msgspec.ValidationError as error:
        raise CouldNotRun(f"{where} has a value of the wrong kind: {error}", MEND) from None
    except RecursionError:
        raise CouldNotRun(f"{where} nests too deeply", MEND) from None
    _refuse_nonsense(rig, where)
    return rig


def _without_na(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_na(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_na(item) for item in value]
    if isinstance(value, str) and value.strip().lower() in NOT_KNOWN:
        return None
    if isinstance(value, float):
        # some writers of JSON know only one kind of number
        return (int(value) if value.is_integer() else value) if math.isfinite(value) else None
    return value


def _refuse_nonsense(rig: Rig, where: str) -> None:
    """What no machine has, but a file may: it would make every conclusion wrong without a word."""
    gpus = rig.gpus or ()
    problems = [
        f"GPU {gpu.index} has {amount} bytes of memory"
        for gpu in gpus
        for amount in (gpu.memory_total, gpu.memory_free)
        if amount is not None and amount < 0
    ]
    problems += [
        f"GPU {gpu.index} has the UUID {gpu.uuid!r}"
        for gpu in gpus
        if gpu.uuid is not None and not UUID.fullmatch(gpu.uuid)
    ]
    if [gpu.index for gpu in gpus] != list(range(len(gpus))):
        problems.append(f"its GPUs are numbered {', '.join(str(gpu.index) for gpu in gpus)}")
    for square in (rig.topology.links, rig.topology.peers):
        if square is not None and any(len(row) != len(square) for row in square):
            problems.append("its topology is no square")
        elif square is not None and len(square) != len(gpus):
            problems.append(f"it has {len(gpus)} GPUs and a topology of {len(square)}")
    problems += [
        f"it has a link {word!r}"
        for row in rig.topology.links or ()
        for word in row
        if word is not None and not LINK.fullmatch(word)
    ]
    if problems:
        raise CouldNotRun(f"{where} cannot be a machine's facts: {problems[0]}", MEND)
