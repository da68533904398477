"""The attention layer that vLLM builds on SM86: decode and prefill both attend straight on the paged cache."""

from __future__ import annotations

from typing import Any

from sm86.backend.attention.reference import Source

BACKEND_NAME = "FLASHINFER_MLA_SPARSE_DSV4"
PADDED_HEADS = (8, 16, 32, 64, 128)
"""Head counts that vLLM's query kernel takes."""


def padded_heads(heads: int) -> int:
    """The smallest head count that the kernels take for `heads` local heads."""
    return next(count for count in PADDED_HEADS if count >= heads)


def make_layer(base: type) -> Any:
    """The layer class, derived from vLLM's `DeepseekV4Attention` (which must not be imported before it is hooked)."""
    from vllm.forward_context import get_forward_context
    from vllm.models.deepseek_v4.sparse_mla import DeepseekV4FlashMLABackend

    from sm86.backend.attention import native
    from sm86.backend.kernels import key_index, output_projection

    class Sm86Backend(DeepseekV4FlashMLABackend):  # type: ignore[misc, valid-type]
        """FlashMLA's metadata and page shapes under the name that --attention-backend gives."""

        @staticmethod
        def get_name() -> str:
            return BACKEND_NAME

        @classmethod
        def supports_compute_capability(cls, capability: Any) -> bool:
            return capability.major == 8

    class Sm86Attention(base):  # type: ignore[misc, valid-type]
        """vLLM's layer with our attention and way out; rows of a batch come decode first, then prefill."""

        backend_cls = Sm86Backend
        use_fp8_ds_mla_layout = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Both before any capture: loading the library may build it, the workspace must not land in a graph's pool.
            native.library()
            native.workspace(self.attn_sink.device)

        @classmethod
        def get_padded_num_q_heads(cls, num_heads: int) -> int:
            return padded_heads(num_heads)

        def _o_proj(self, o: Any, positions: Any) -> Any:
            table = self.rotary_emb.cos_sin_cache
            return self.wo_b(output_projection.launch(o, positions, table, self.wo_a.weight, self.n_local_groups))

        def forward_mqa(self, q: Any, kv: Any, positions: Any, output: Any) -> None:
            """q bf16 [tokens, heads, 512] -> output, the same shape, in place; kv and positions are in the cache."""
            metadata = get_forward_context().attn_metadata
            if not isinstance(metadata, dict):
                output.zero_()
                return
            swa = metadata[self.swa_cache_layer.prefix]
            own = metadata.get(self.prefix)
            decode, prefill = swa.num_decode_tokens, swa.num_prefill_tokens
            if decode:
                window = Source(
                    self.swa_cache_layer.kv_cache, swa.decode_swa_indices.view(decode, -1), swa.decode_swa_lens
                )
                extra = self._extra(swa, own, 0, decode, True)
                native.attend(q[:decode], window, extra, self.attn_sink, self.scale, output[:decode])
            if prefill:
                end = decode + prefill
                window = Source(
                    self.swa_cache_layer.kv_cache, swa.prefill_swa_indices.view(prefill, -1), swa.prefill_swa_lens
                )
                extra = self._extra(swa, own, decode, end, False)
                native.attend(q[decode:end], window, extra, self.attn_sink, self.scale, output[decode:end])

        def _extra(self, swa: Any, own: Any, start: int, end: int, decode: bool) -> Source | None:
            """Compressed keys of tokens start..end: the indexer's choice (C4), or all there are (C128)."""
            if self.compress_ratio <= 1:
                return None
            if self.compress_ratio == 128 and decode:
                index = own.c128a_global_decode_topk_indices.view(end - start, -1)
                return Source(self.kv_cache, index, own.c128a_decode_topk_lens)
            local = self.topk_indices_buffer[start:end] if self.compress_ratio == 4 else own.c128a_prefill_topk_indices
            entries = own.block_size // self.compress_ratio
            index, length = key_index.launch(
                local, swa.token_to_req_indices, swa.is_valid_token, own.block_table, entries, start
            )
            return Source(self.kv_cache, index, length)

    return Sm86Attention
