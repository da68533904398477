"""TOML files -> Pins and Envelopes. With `load_rig` the only module of `spec/` that reads files."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.spec import validate
from sm86.spec.checkpoint import Checkpoint
from sm86.spec.envelope import Bench, Boot, Envelope, Graphs, Model, Published, PublishedRig, Serve
from sm86.spec.pins import Pin, Pins
from sm86.spec.toml_table import Table, merge, read_toml

SPEC_DIR = Path(__file__).parent
ENVELOPES_DIR = SPEC_DIR / "envelopes"
PROOFS_DIR = ENVELOPES_DIR / "proofs"
FAMILIES_DIR = SPEC_DIR / "families"

PROOF = "proof"
"""Status of an envelope that proves the code path on another GPU with a made-up checkpoint: a log and a server of it
are judged like any other, but nobody's rig serves it, so it has no Compose service and stands in no table."""

STATUSES = ("published", "development", "experimental", "embedded", PROOF)
MAX_CONTEXT = 1_048_576


@cache
def load_pins() -> Pins:
    """All pins of `pins.toml`."""
    path = SPEC_DIR / "pins.toml"
    pins = {}
    for name, values in read_toml(path).items():
        table = Table(values, f"{path.name}: {name}")
        pins[name] = Pin(name, table.text("version"), table.text("source"), table.text("distribution", default=name))
        table.finish()
    return Pins(pins)


@cache
def envelope_names() -> tuple[str, ...]:
    """Names of the envelopes that ship with the product: rigs by context, the embedded default last."""
    return tuple(envelope.name for envelope in load_all())


@cache
def load_all() -> tuple[Envelope, ...]:
    """Every shipped envelope, validated; by context then sequences, the embedded default last. Proofs are apart."""
    envelopes = _folder(ENVELOPES_DIR, proofs=False)
    return tuple(sorted(envelopes, key=lambda e: (e.engine == "cpu", e.serve.context, e.serve.sequences)))


@cache
def load_proofs() -> tuple[Envelope, ...]:
    """The envelopes of status PROOF, by name."""
    return tuple(sorted(_folder(PROOFS_DIR, proofs=True), key=lambda envelope: envelope.name))


def _folder(folder: Path, proofs: bool) -> tuple[Envelope, ...]:
    paths = sorted(folder.glob("*.toml"))
    envelopes = [_read(path) for path in paths]
    for path, envelope in zip(paths, envelopes, strict=True):
        if path.stem != envelope.name:
            raise CouldNotRun(f"{path}: name is {envelope.name!r}", f"name the envelope as its file: {path.stem}")
        if (envelope.status == PROOF) != proofs:
            raise CouldNotRun(f"{path}: status is {envelope.status!r}", f"proofs, and only they, lie in {PROOFS_DIR}")
    return tuple(envelopes)


def load_envelope(name: str) -> Envelope:
    """The envelope of that name, proofs included, or of that path when it ends in .toml.

    Raises CouldNotRun: unknown name (with the nearest one), broken or inconsistent TOML.
    """
    if name.endswith(".toml"):
        return _read(Path(name))
    if validate.NAME.fullmatch(name):
        for folder in (ENVELOPES_DIR, PROOFS_DIR):
            if (path := folder / f"{name}.toml").is_file():
                return _read(path)
    shipped = [file.stem for file in sorted(ENVELOPES_DIR.glob("*.toml"))]
    near = difflib.get_close_matches(name, shipped, 1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise CouldNotRun(f"there is no envelope {name!r}", f"{hint}The envelopes are: {', '.join(shipped)}")


def _read(path: Path) -> Envelope:
    values = read_toml(path)
    where = str(path)
    family = values.pop("family", None)
    if family is not None:
        values = merge(_family(family, where), values)
    envelope = _envelope(Table(values, where))
    validate.check(envelope, where)
    return envelope


def _family(name: Any, where: str) -> dict[str, Any]:
    families = sorted(file.stem for file in FAMILIES_DIR.glob("*.toml"))
    if name not in families:
        raise CouldNotRun(f"{where}: family {name!r} does not exist", f"use one of: {', '.join(families)}")
    values = read_toml(FAMILIES_DIR / f"{name}.toml")
    values.pop("checkpoint", None)
    return values


def load_checkpoint(model: Model) -> Checkpoint | None:
    """What the family that serves this architecture and quantization says of its checkpoint; None: it says nothing."""
    for path in sorted(FAMILIES_DIR.glob("*.toml")):
        values = read_toml(path)
        table = values.get("checkpoint")
        own = values.get("model", {})
        if table is None or (own.get("architecture"), own.get("quant_method")) != (
            model.architecture,
            model.quant_method,
        ):
            continue
        return _checkpoint(Table(table, f"{path.name}: checkpoint"), table.get("config", {}))
    return None


def _checkpoint(table: Table, config: dict[str, Any]) -> Checkpoint:
    checkpoint = Checkpoint(
        packing_format=table.text("packing_format", default=""),
        autoround_version=table.text("autoround_version", default=""),
        revision=table.text("revision", default=""),
        config=config,
    )
    table.table("config", required=False)
    table.finish()
    return checkpoint


def _envelope(top: Table) -> Envelope:
    envelope = Envelope(
        name=top.text("name"),
        title=top.text("title"),
        status=top.text("status", choices=STATUSES),
        engine=top.text("engine", choices=("cuda", "cpu")),
        caveat=top.text("caveat", default=""),
        runbook_script=top.text("runbook_script", default=""),
        model=_model(_need(top, "model")),
        serve=_serve(_need(top, "serve")),
        graphs=_graphs(_need(top, "graphs")),
        environment=top.pairs("environment"),
        boot=_boot(_need(top, "boot")),
        bench=_bench(_need(top, "bench")),
        published=_published(top.table("published", required=False)),
        rules=_rules(_need(top, "verify")),
        published_rig=_published_rig(top.table("published_rig", required=False)),
    )
    top.finish()
    return envelope


def _need(top: Table, key: str) -> Table:
    table = top.table(key)
    assert table is not None
    return table


def _model(table: Table) -> Model:
    model = Model(
        repository=table.text("repository"),
        folder=table.text("folder"),
        architecture=table.text("architecture"),
        quant_method=table.text("quant_method", default=""),
        bits=table.integer("bits", 0, 16, default=0),
        group_size=table.integer("group_size", 0, 4096, default=0),
    )
    if "/" in model.folder or model.folder in ("", ".", ".."):
        raise table.fail("folder", f"is {model.folder!r}", "give the plain name of a folder below the models folder")
    table.finish()
    return model


def _serve(table: Table) -> Serve:
    context = table.integer("context", 1, MAX_CONTEXT)
    override = table.integer("num_gpu_blocks_override", 0, 1_000_000, default=0)
    serve = Serve(
        served_model_name=table.text("served_model_name"),
        context=context,
        sequences=table.integer("sequences", 1, 256),
        tensor_parallel=table.integer("tensor_parallel", 1, 16),
        kv_cache_dtype=table.text("kv_cache_dtype"),
        block_size=table.integer("block_size", 1, 1024),
        num_gpu_blocks_override=override or None,
        hybrid_kv_cache=table.flag("hybrid_kv_cache"),
        max_num_batched_tokens=table.integer("max_num_batched_tokens", 1, 131072),
        async_scheduling=table.flag("async_scheduling"),
        prefix_caching=table.flag("prefix_caching"),
        gpu_memory_utilization=table.number("gpu_memory_utilization", 0.05, 0.98),
        attention_backend=table.text("attention_backend", default=""),
        moe_backend=table.text("moe_backend", default=""),
        speculative_config=table.text("speculative_config"),
        extra_args=table.texts("extra_args", default=[]),
    )
    table.finish()
    return serve


def _graphs(table: Table) -> Graphs:
    modes = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
    graphs = Graphs(table.text("mode", choices=modes), table.integers("capture_sizes", 1, 1024, default=[]))
    table.finish()
    return graphs


def _boot(table: Table) -> Boot:
    expected = table.integer("expected_s", 1, 36_000)
    boot = Boot(expected, table.integer("limit_s", expected, 36_000))
    table.finish()
    return boot


def _bench(table: Table) -> Bench:
    bench = Bench(
        decode_tokens=table.integer("decode_tokens", 16, 1_000_000),
        repeats=table.integer("repeats", 1, 100),
        prompt_tokens=table.integer("prompt_tokens", 0, MAX_CONTEXT, default=0),
    )
    table.finish()
    return bench


def _published(table: Table | None) -> Published | None:
    if table is None:
        return None
    published = Published(
        table.text("source"),
        table.number("aggregate_tok_s", 0.1, 100_000),
        table.numbers("per_sequence_tok_s", 0.1, 100_000),
    )
    table.finish()
    return published


def _published_rig(table: Table | None) -> PublishedRig | None:
    if table is None:
        return None
    rig = PublishedRig(table.integer("gpus", 1, 64), table.text("gpu"), table.number("power_limit_w", 1, 2000))
    table.finish()
    return rig


def _rules(table: Table) -> tuple[str, ...]:
    rules = table.texts("rules")
    if not rules:
        raise table.fail("rules", "is empty", "a log that no rule applies to cannot be verified; name the rules")
    table.finish()
    return rules
