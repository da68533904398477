"""All hooks, in the order they are reported."""

from __future__ import annotations

from sm86.backend.hooks import (
    attention_class,
    compressor,
    deep_gemm,
    deterministic_moe,
    draft_dispatch,
    graph_dispatch,
    host_allreduce,
    indexer_metadata,
    indexer_query,
    mhc_splits,
    rope_tables,
    routed_experts,
    sparse_indexer,
    tile_scheduler,
    warmup,
)
from sm86.backend.hooks.hook import Hook

HOOKS: tuple[Hook, ...] = (
    attention_class.HOOK,
    compressor.HOOK,
    deep_gemm.HOOK,
    host_allreduce.HOOK,
    indexer_metadata.HOOK,
    indexer_query.HOOK,
    mhc_splits.HOOK,
    rope_tables.HOOK,
    routed_experts.HOOK,
    deterministic_moe.HOOK,
    sparse_indexer.HOOK,
    tile_scheduler.HOOK,
    warmup.HOOK,
    graph_dispatch.HOOK,
    draft_dispatch.HOOK,
)
