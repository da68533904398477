"""Everything that is known of a start -> the manifest's entries, from the arguments and the environment that vLLM
really gets. Pure; the format is `sm86.manifest`.

`exec` and `argv` together are the whole command: `argv` is what follows the interpreter's part and starts with
"serve". A value that does not apply is `none`; one that is left to vLLM is `default`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sm86 import __version__
from sm86.launch import environment as env
from sm86.launch import secret
from sm86.launch.arguments import Facts, facts_of
from sm86.launch.checks import Gpu
from sm86.launch.engine import Engine
from sm86.launch.provenance import Provenance
from sm86.launch.translate import Change, State
from sm86.manifest import Value

PROFILER = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
DEFAULT = "default"


@dataclass(slots=True)
class Start:
    """A start as it comes together. kind: "cuda" or "cpu". packaged_digest, spec_differences, environment_differences:
    None where the image has no such spec.
    checks: what was checked, each "pass", "not made: why" or "not applicable: why"."""

    envelope: str
    envelope_digest: str | None
    packaged_digest: str | None
    kind: str
    exec_prefix: tuple[str, ...]
    argv: tuple[str, ...]
    environment: dict[str, str]
    engine: Engine
    provenance: Provenance
    python: str
    started: str
    spec_differences: list[dict[str, str]] | None = None
    environment_differences: list[str] | None = None
    removed: tuple[str, ...] = ()
    states: Mapping[str, State] = field(default_factory=dict)
    changes: Sequence[Change] = ()
    added: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()
    model_sha256: str | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    api_key: str | None = None
    cache: str | None = None
    locks: tuple[str, ...] = ()
    checks: dict[str, str] = field(default_factory=dict)


def entries(start: Start) -> dict[str, Value]:
    """The manifest, in the order it is printed."""
    facts = facts_of(start.argv)
    shown = secret.masked(env.shown(start.environment), start.api_key)
    engine, source = start.engine, start.provenance
    manifest: dict[str, Value] = {
        "envelope": start.envelope,
        "envelope_digest": start.envelope_digest,
        "envelope_matches_image": start.packaged_digest and start.packaged_digest == start.envelope_digest,
        "engine": start.kind,
        "started": start.started,
        "git_rev": source.git_rev,
        "git_dirty": "unknown" if source.git_dirty is None else source.git_dirty,
        "lock_hash": source.lock_hash,
        "pins": dict(source.pins) if source.pins else None,
        "variant": source.variant,
        "image_id": source.image_id,
        "sm86_version": __version__,
        "python": start.python,
        "vllm_distribution": engine.vllm_distribution,
        "vllm_version": engine.vllm_version,
        "torch_version": engine.torch_version,
        "nccl_version": engine.nccl_version,
        "flashinfer_version": engine.flashinfer_version,
        "vllm.envs_origin": engine.envs_origin,
        "exec": list(start.exec_prefix),
        "argv": list(start.argv),
        "argv_matches_spec": _matches(start.spec_differences),
        "argv_overridden": [change.entry() for change in start.changes] or None,
        "argv_added": list(start.added) or None,
        "environment": dict(shown),
        "environment_matches_spec": _matches(start.environment_differences),
        "environment_removed": list(start.removed) or None,
        **_served(facts, start),
        "api_key": "none" if start.api_key is None else "set",
        "cache": start.cache,
        "lock": list(start.locks) or None,
        "probe": list(start.probe) or None,
    }
    manifest |= {f"override.{name}": state.entry() for name, state in start.states.items()}
    manifest |= {f"check.{name}": text for name, text in start.checks.items()}
    return manifest


def _served(facts: Facts, start: Start) -> dict[str, Value]:
    cuda = start.kind == "cuda"
    graphs = facts.graphs
    captures = cuda and graphs.mode != "NONE"
    return {
        "kv_cache_dtype": _or_default(facts.kv_cache_dtype),
        "attention_backend": _or_default(facts.attention_backend) if cuda else facts.attention_backend,
        "moe_backend": _or_default(facts.moe_backend) if cuda else facts.moe_backend,
        PROFILER: start.environment.get(PROFILER, DEFAULT) if cuda else None,
        "num_gpu_blocks_override": facts.num_gpu_blocks_override,
        "cudagraph_mode": _or_default(graphs.mode) if cuda else "NONE",
        "cudagraph_capture_sizes": (list(graphs.sizes) if graphs.sizes else DEFAULT) if captures else None,
        "max_cudagraph_capture_size": _or_default(graphs.largest) if captures else None,
        "hybrid_kv": _or_default(facts.hybrid_kv) if cuda else None,
        "tensor_parallel": facts.tensor_parallel,
        "max_model_len": _or_default(facts.max_model_len),
        "max_num_seqs": _or_default(facts.max_num_seqs),
        "max_num_batched_tokens": _or_default(facts.max_num_batched_tokens),
        "async_scheduling": _or_default(facts.async_scheduling),
        "block_size": _or_default(facts.block_size),
        "gpu_memory_utilization": facts.gpu_memory_utilization if cuda else None,
        "speculative_config": dict(facts.speculative) if facts.speculative else None,
        "model": facts.model,
        "model_hash": start.model_sha256,
        "gpus": [gpu.uuid for gpu in start.gpus] or None,
        "gpu_names": sorted({gpu.name for gpu in start.gpus}) or None,
        "driver": start.driver,
    }


def _or_default(value: Any) -> Value:
    return DEFAULT if value is None else value


def _matches(differences: list[Any] | None) -> Value:
    if differences is None:
        return None
    return differences or True
