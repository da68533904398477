"""vllm.v1.attention.backends.mla.indexer: no DeepGEMM schedule for the paged logits."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    module.has_deep_gemm = lambda: False


HOOK = Hook(
    name="indexer-metadata",
    module="vllm.v1.attention.backends.mla.indexer",
    why="the metadata builder asks only whether DeepGEMM is installed, not whether the GPU can run it",
    expects=(
        Expected(
            "vllm.v1.attention.backends.mla.indexer", "DeepseekV32IndexerMetadataBuilder.build", "a4e6770b82cdb712"
        ),
        Expected("vllm.v1.attention.backends.mla.indexer", "build_prefill_chunk_metadata", "7c7acf80c6c86e14"),
        Expected(
            "vllm.v1.attention.backends.mla.indexer", "DeepseekV32IndexerPrefillChunkMetadata", "3e42e92566589128"
        ),
        Expected("vllm.v1.attention.backends.mla.indexer", "DeepSeekV32IndexerDecodeMetadata", "4c17f916e9e45180"),
    ),
    apply=_apply,
    imports=("has_deep_gemm",),
)
