"""What the runbook's tables say, worked out from the specs and the launcher's own rules. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from sm86.ladder.matrix import COMM_MATRIX as COMM_MATRIX
from sm86.launch import translate
from sm86.launch.engine import PLUGIN, PLUGIN_GROUP
from sm86.launch.overrides import OVERRIDES, read
from sm86.plan import kv
from sm86.spec.argv import serve_argv
from sm86.spec.envelope import Envelope

RIG_CAPABILITY = (8, 6)


@dataclass(frozen=True, slots=True)
class OverrideRow:
    """One override as it would do on the published rig: `state` is "effective" or "inert"."""

    name: str
    meaning: str
    form: str
    example: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class BlockRow:
    """KV blocks of an envelope: what the engine demands, what its sequences occupy, what is pinned."""

    name: str
    engine_minimum: int
    resident: int
    pinned: int

    @property
    def gib(self) -> float:
        return self.pinned * kv.POOL_BYTES_PER_BLOCK / 2**30


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One item to check before a benchmark, and the rules of `invoke verify` that check it."""

    item: str
    rules: tuple[str, ...]


CHECKLIST = (
    CheckRow("`git_rev` is the expected revision", ("git-revision",)),
    CheckRow("`vllm.envs_origin` is the image's own vLLM, of the pinned version", ("vllm-origin", "vllm-version")),
    CheckRow("`kv_cache_dtype=fp8_ds_mla`", ("kv-cache-dtype",)),
    CheckRow("`attention_backend=FLASHINFER_MLA_SPARSE_DSV4`", ("attention-backend",)),
    CheckRow("`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0`, and the engine says so", ("memory-profiler",)),
    CheckRow("`num_gpu_blocks_override` is the envelope's, as every worker applied it", ("block-override",)),
    CheckRow("graph capture reaches 100 % for every requested size", ("graphs-captured",)),
    CheckRow(
        "the capture shape: no draft tokens, uniform decode query length 1, the envelope's sizes", ("capture-shape",)
    ),
    CheckRow("no skip or miss of a graph in uniform decode (with `CUDAGRAPH_DISPATCH_DEBUG=1`)", ("dispatch",)),
    CheckRow("vLLM got exactly the envelope's arguments; overrides are named", ("manifest", "argv")),
    CheckRow("the envelope's context is really served, on all GPUs", ("context-served", "tensor-parallel")),
    CheckRow("the MoE backend and the hybrid KV cache are in use", ("moe-backend", "hybrid-kv")),
    CheckRow("small all-reduces go the way that was asked for, or that won at start", ("host-allreduce",)),
    CheckRow("no environment variable that vLLM does not know", ("unknown-environment",)),
    CheckRow(
        "memory never ran out, the server booted once, and it is ready", ("out-of-memory", "single-boot", "ready")
    ),
)
"""The published checklist first, then what the engine can contradict without anyone noticing."""


def override_rows(envelope: Envelope, plugin: bool) -> tuple[OverrideRow, ...]:
    """Every override with its example value, and what the launcher would make of it for this envelope on SM 8.6.

    plugin: whether the image has the SM86 plugin.
    """
    rows = []
    for override in OVERRIDES:
        given = {override.name: read(override.name, override.example, "--set")}
        setting = translate.Setting("cuda", RIG_CAPABILITY, plugin)
        states = translate.apply(serve_argv(envelope), dict(envelope.environment), given, setting)[2]
        state = states[override.name]
        rows.append(
            OverrideRow(override.name, override.meaning, override.form, override.example, state.state, state.why)
        )
    return tuple(rows)


def has_plugin(pyproject: str) -> bool:
    """Whether the package, by the text of its pyproject.toml, brings the SM86 plugin into an image."""
    plugins = tomllib.loads(pyproject)["project"].get("entry-points", {}).get(PLUGIN_GROUP, {})
    return PLUGIN in plugins


def block_rows(envelopes: Sequence[Envelope]) -> tuple[BlockRow, ...]:
    """KV blocks of the rig's envelopes, in their order."""
    rows = []
    for envelope in envelopes:
        serve = envelope.serve
        if envelope.uses_gpu and serve.num_gpu_blocks_override:
            m = kv.scheduled_tokens(serve.max_num_batched_tokens, serve.async_scheduling)
            rows.append(
                BlockRow(
                    envelope.name,
                    kv.engine_minimum_blocks(serve.context, m),
                    kv.resident_blocks(serve.context, serve.sequences, m),
                    serve.num_gpu_blocks_override,
                )
            )
    return tuple(rows)


def cell(text: object) -> str:
    """Text for a cell of a Markdown table: one line, no bar."""
    return " ".join(str(text).split()).replace("|", "\\|")
