"""vllm.models.deepseek_v4.attention: the indexer's query stays bf16 (CuTeDSL and e4m3 on the native path)."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused


def _apply(module: Any) -> None:
    from sm86.backend.kernels.indexer_query import launch
    from sm86.backend.settings import settings

    through_e4m3 = settings().indexer_query == "e4m3"

    def fused_indexer_q_rope_quant(
        positions: Any,
        index_q: Any,
        index_q_cos_sin_cache: Any,
        index_weights: Any,
        index_weights_softmax_scale: float,
        index_weights_head_scale: float,
        use_fp4: bool = False,
    ) -> tuple[Any, Any]:
        if use_fp4:
            raise Refused("the MXFP4 indexer cache needs Blackwell", "leave use_fp4_indexer_cache off")
        scale = index_weights_softmax_scale * index_weights_head_scale
        return launch(index_q, index_weights, positions, index_q_cos_sin_cache, scale, through_e4m3)

    module.fused_indexer_q_rope_quant = fused_indexer_q_rope_quant


HOOK = Hook(
    name="indexer-query",
    module="vllm.models.deepseek_v4.attention",
    why="the native query kernel is CuTeDSL whenever that package is installed, and names the e4m3 type otherwise",
    expects=(
        Expected(
            "vllm.models.deepseek_v4.common.ops.fused_indexer_q", "fused_indexer_q_rope_quant", "16a5015278398aa3"
        ),
        Expected("vllm.models.deepseek_v4.attention", "DeepseekV4Indexer", "5d32228b47d9dd1d"),
    ),
    apply=_apply,
    imports=("fused_indexer_q_rope_quant",),
)
