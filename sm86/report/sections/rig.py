"""What it ran on: the machine, the images and revisions, the model's provenance. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.record import Conditions
from sm86.report.document import Block, Code, Column, Facts, Inline, Prose, Ref, Section, State, Table
from sm86.report.gather import Entry, Gathered, Machine
from sm86.report.sections.parts import clipped, plain, readable

_GPU_COLUMNS = (
    ("index", "#", True),
    ("name", "name", False),
    ("uuid", "UUID", False),
    ("memory_mib", "memory, MiB", True),
    ("power_limit_w", "power limit, W", True),
    ("default_power_limit_w", "default limit, W", True),
    ("max_sm_clock_mhz", "most SM clock, MHz", True),
)

SERVED = ("boot", "verify", "bench", "demo")
"""Kinds of records that are of a server with a checkpoint."""


def rig(machine: Machine) -> Section:
    """The machine as its records describe it; the newest description that names the most wins."""
    blocks: list[Block] = []
    gpus = _best(machine, lambda c: c.gpus)
    host = _best(machine, lambda c: c.host)
    drivers = list(dict.fromkeys(e.record.conditions.driver for e in machine.entries if e.record.conditions.driver))
    rows: list[tuple[str, Inline]] = [(readable(key), (plain(value),)) for key, value in (host or {}).items()]
    if any(e.record.conditions.engine != "cpu" for e in machine.entries):
        rows.append(("NVIDIA driver", (", ".join(map(clipped, drivers)) or "not recorded",)))
    if rows:
        blocks.append(Facts(tuple(rows)))
    else:
        blocks.append(Prose(("No record describes this machine.",), "missing"))
    if gpus:
        blocks.append(_gpu_table(gpus))
    if machine.joined:
        refs = _refs(machine.joined)
        blocks.append(
            Prose(
                ("These records name no machine and stand here because all others of their engine are of one: ", *refs),
                "note",
            )
        )
    return Section(f"{machine.key}-rig", "Machine", 2, tuple(blocks), machine.mark)


def _best(machine: Machine, part: Any) -> Any:
    found = [part(entry.record.conditions) for entry in reversed(machine.entries)]
    # a log names GPUs by UUID alone, a look at the machine names all it has
    return max(found, key=lambda values: (len(values), sum(len(v) for v in values if isinstance(v, Mapping))))


def _gpu_table(gpus: tuple[Mapping[str, Any], ...]) -> Table:
    present = [c for c in _GPU_COLUMNS if any(gpu.get(c[0]) not in (None, "") for gpu in gpus)]
    rows = tuple(tuple((plain(gpu.get(key)),) for key, _, _ in present) for gpu in gpus)
    return Table(tuple(Column(title, number) for _, title, number in present), rows)


def software(gathered: Gathered, machine: Machine) -> Section:
    """Every distinct set of conditions, C1 and on: image, locks, revision, engine, overrides, with its records."""
    rows = []
    for number in dict.fromkeys(entry.conditions for entry in machine.entries):
        conditions = gathered.conditions[number - 1]
        entries = [entry for entry in machine.entries if entry.conditions == number]
        rows.append(
            (
                (f"C{number}",),
                (Code(short(conditions.image_id)) if conditions.image_id else "none recorded",),
                (Code(short(conditions.lock_hash)) if conditions.lock_hash else "not recorded",),
                (Code(short(conditions.git_rev)) if conditions.git_rev else "not recorded",),
                (clipped(conditions.vllm_version or "not recorded"),),
                overrides_of(conditions),
                _refs(entries),
            )
        )
    titles = ("", "image", "locks", "revision", "vLLM", "overrides", "records")
    table = Table(tuple(Column(title) for title in titles), tuple(rows))
    note = "Full hashes stand in the list of records. A process on the machine has no image."
    return Section(f"{machine.key}-software", "Image and revision", 2, (table, Prose((note,), "note")), machine.mark)


def overrides_of(conditions: Conditions) -> Inline:
    """The run's own settings, or the word that there were none."""
    if not conditions.overrides:
        return ("none",)
    spans: list[Any] = []
    for name, value in conditions.overrides.items():
        spans += [", "] if spans else []
        spans.append(Code(clipped(f"{name}={value}", 80)))
    return tuple(spans)


def model(gathered: Gathered, machine: Machine) -> Section:
    """Where the weights come from, as far as records and spec say; quantization is a property of the checkpoint."""
    # a log knows the checkpoint by its folder, the spec by its repository: the hash says that it is one
    seen: dict[tuple[str | None, Inline], list[Entry]] = {}
    for entry in machine.entries:
        if entry.kind in SERVED:
            conditions = entry.record.conditions
            wanted = _format(gathered.shipped.get(entry.envelope))
            seen.setdefault((conditions.model_hash or conditions.model, wanted), []).append(entry)
    rows = []
    for (_, wanted), entries in seen.items():
        names = _checkpoints(entries)
        digest = entries[0].record.conditions.model_hash
        envelopes: list[Any] = []
        for name in dict.fromkeys(entry.envelope for entry in entries):
            envelopes += [" "] if envelopes else []
            envelopes.append(Code(clipped(name, 80)))
        known = (Code(short(digest)),) if digest else ("not recorded",)
        rows.append((tuple(envelopes), (", ".join(names),), known, wanted, _checked(entries), _refs(entries)))
    if not rows:
        text = "No record of a server is here, so no checkpoint is named."
        return Section(f"{machine.key}-model", "Model provenance", 2, (Prose((text,), "missing"),), machine.mark)
    titles = ("envelopes", "checkpoint", "hash of its index", "format that they want", "manifest", "records")
    note = (
        "The checkpoint is an input: it came quantized, and nothing here quantizes. The launcher compares its "
        "config with the envelope before it starts."
    )
    table = Table(tuple(Column(title) for title in titles), tuple(rows))
    return Section(f"{machine.key}-model", "Model provenance", 2, (table, Prose((note,), "note")), machine.mark)


def _checkpoints(entries: list[Entry]) -> list[str]:
    """What the records call the checkpoint; a folder that is named like a repository says nothing more."""
    given = list(dict.fromkeys(entry.record.conditions.model or "" for entry in entries))
    repositories = {name.rsplit("/", 1)[-1] for name in given if not name.startswith("/")}
    kept = [name for name in given if name and not (name.startswith("/") and name.rsplit("/", 1)[-1] in repositories)]
    return [clipped(name, 120) for name in kept] or ["not recorded"]


def _format(envelope: Any) -> Inline:
    if envelope is None:
        return ("an envelope that this version does not ship",)
    facts = envelope.model
    if not facts.quant_method:
        return (f"{facts.architecture}, not quantized",)
    return (f"{facts.architecture}, {facts.quant_method}, {facts.bits} bits, groups of {facts.group_size}",)


def _checked(entries: list[Entry]) -> Inline:
    verdicts = [v for e in entries if e.kind == "verify" for v in e.record.verdicts if v.name == "manifest"]
    return (State(verdicts[-1].state),) if verdicts else ("no log was verified",)


def short(text: str | None) -> str:
    """A hash to recognise: 12 digits of it, the algorithm's name left off."""
    bare = (text or "").split(":")[-1]
    return clipped(bare, 80)[:12] if len(bare) >= 32 else clipped(bare, 40)


def _refs(entries: Any) -> Inline:
    spans: list[Any] = []
    for entry in list(entries)[:24]:
        spans += [" "] if spans else []
        spans.append(Ref(entry.number))
    if len(entries) > 24:
        spans.append(f" and {len(entries) - 24} more")
    return tuple(spans)
