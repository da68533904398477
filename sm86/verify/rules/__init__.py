"""The rules by name: one small function each, from a case to a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sm86.errors import CouldNotRun
from sm86.verify.case import Case, named
from sm86.verify.findings import Finding
from sm86.verify.rules import collectives, engine, graphs, launch, life, memory

Rule = Callable[[Case], Finding]

RULES: Mapping[str, Rule] = {
    "manifest": launch.manifest,
    "argv": launch.argv,
    "git-revision": launch.git_revision,
    "vllm-origin": launch.vllm_origin,
    "vllm-version": engine.vllm_version,
    "tensor-parallel": engine.tensor_parallel,
    "kv-cache-dtype": engine.kv_cache_dtype,
    "attention-backend": engine.attention_backend,
    "moe-backend": engine.moe_backend,
    "host-allreduce": collectives.host_allreduce,
    "memory-profiler": memory.memory_profiler,
    "block-override": memory.block_override,
    "context-served": memory.context_served,
    "hybrid-kv": memory.hybrid_kv,
    "graphs-captured": graphs.graphs_captured,
    "capture-shape": graphs.capture_shape,
    "dispatch": graphs.dispatch,
    "unknown-environment": launch.unknown_environment,
    "out-of-memory": memory.out_of_memory,
    "single-boot": life.single_boot,
    "ready": life.ready,
}


def judge(case: Case) -> tuple[Finding, ...]:
    """The findings of the envelope's rules, in its order. Raises CouldNotRun for a name that is no rule."""
    unknown = [name for name in case.envelope.rules if name not in RULES]
    if unknown:
        raise CouldNotRun(
            f"{case.envelope.name} names the rule {unknown[0]!r}, which does not exist",
            f"use some of: {', '.join(RULES)}",
        )
    return tuple(named(name, RULES[name](case)) for name in case.envelope.rules)
