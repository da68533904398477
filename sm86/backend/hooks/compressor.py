"""vllm.models.deepseek_v4.compressor: the compress-normalise-rotate-store step in Triton without the e4m3 type."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    from sm86.backend.kernels.compress import Window, launch

    def forward(self: Any, kv_score: Any, positions: Any, rotary_emb: Any) -> None:
        metadata = module.get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            return
        width = self.coff * self.head_dim
        kv, score = kv_score.split([width, width], dim=-1)
        state_metadata = metadata[self.state_cache.prefix]
        state = self.state_cache.kv_cache
        module.save_partial_states(
            kv=kv,
            score=score,
            ape=self.ape,
            positions=positions,
            state_cache=state,
            slot_mapping=state_metadata.slot_mapping,
            block_size=state_metadata.block_size,
            state_width=state.shape[-1] // 2,
            compress_ratio=self.compress_ratio,
            pdl_kwargs={"launch_pdl": False},
        )
        window = Window(
            state=state,
            block_table=state_metadata.block_table,
            requests=state_metadata.token_to_req_indices,
            positions=positions,
            state_slots=state_metadata.slot_mapping,
            entry_slots=metadata[self.k_cache_prefix].slot_mapping,
            ratio=self.compress_ratio,
            overlap=self.overlap,
        )
        cache = self._static_forward_context[self.k_cache_prefix].kv_cache
        launch(window, cache, rotary_emb.cos_sin_cache, self.norm.weight, self.rms_norm_eps)

    module.DeepseekCompressor.forward = forward


HOOK = Hook(
    name="compressor",
    module="vllm.models.deepseek_v4.compressor",
    why="the main compressor is CuTeDSL for SM90, the indexer's names the e4m3 type that Triton refuses below SM89",
    expects=(
        Expected("vllm.models.deepseek_v4.compressor", "DeepseekCompressor", "3031dd6623816a0d"),
        Expected("vllm.models.deepseek_v4.compressor", "CompressorMetadata", "ed24bc4049fa1de2"),
        Expected("vllm.models.deepseek_v4.common.ops.save_partial_states", "save_partial_states", "444accc9ad3825c6"),
        Expected(
            "vllm.models.deepseek_v4.common.ops.fused_compress_quant_cache",
            "_fused_kv_compress_norm_rope_insert_sparse_attn",
            "ab9e3eb6b37047a3",
        ),
        Expected(
            "vllm.models.deepseek_v4.common.ops.fused_compress_quant_cache",
            "_fused_kv_compress_norm_rope_insert_indexer_attn",
            "8bf330e1a8817807",
        ),
    ),
    apply=_apply,
    imports=("get_forward_context", "save_partial_states"),
)
