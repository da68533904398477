"""The C4 indexer's step: scores over its key pages, then vLLM's own top-k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TOPK_WORKSPACE_BYTES = 1 << 20
"""What vLLM's persistent top-k asks for."""


def make_forward(module: Any, max_logits_mib: int) -> Callable[..., Any]:
    """`SparseAttnIndexer.forward_cuda` for vLLM's module `sparse_attn_indexer`.

    max_logits_mib: vLLM's bound on one chunk's logits. The step is marked as one where graphs may break, as the
    function it replaces is.
    """
    import torch

    from sm86.backend.kernels import indexer_logits

    def step(op: Any, hidden_states: Any, query: Any, weights: Any, topk_buffer: Any) -> None:
        metadata = module.get_forward_context().attn_metadata
        workspace = module.current_workspace_manager()
        if not isinstance(metadata, dict):
            # The profiling run: reserve what a step will need, so that its peak is measured.
            workspace.get_simultaneous(((TOPK_WORKSPACE_BYTES,), torch.uint8))
            rows = hidden_states.shape[0]
            peak = min(max_logits_mib << 20, rows * max(op.max_model_len, 1) * 4)
            torch.empty(peak, dtype=torch.uint8, device=hidden_states.device)
            return
        own = metadata[op.k_cache.prefix]
        cache = op.k_cache.kv_cache
        decode = own.num_decode_tokens
        if own.num_prefills:
            topk_buffer[decode : hidden_states.shape[0]] = -1
        for chunk in own.prefill.chunks if own.prefill is not None else ():
            columns = indexer_logits.Columns(chunk.token_to_seq, chunk.cu_seq_lens, chunk.block_table)
            rows = slice(chunk.token_start, chunk.token_end)
            logits = indexer_logits.launch_prefill(
                query[rows], weights[rows], cache, columns, chunk.cu_seqlen_ks, chunk.cu_seqlen_ke
            )
            module.ops.top_k_per_row_prefill(
                logits,
                chunk.cu_seqlen_ks,
                chunk.cu_seqlen_ke,
                topk_buffer[rows, : op.topk_tokens],
                logits.shape[0],
                logits.stride(0),
                logits.stride(1),
                op.topk_tokens,
            )
        if own.decode is not None and decode:
            _decode(op, own.decode, query[:decode], weights[:decode], cache, topk_buffer, workspace)

    def _decode(op: Any, own: Any, query: Any, weights: Any, cache: Any, topk_buffer: Any, workspace: Any) -> None:
        from sm86.backend.attention.native import workspace as gpu
        from sm86.backend.refusal import Refused

        if own.requires_padding:
            raise Refused("decode requests of unequal query lengths reached the indexer", "turn drafting off")
        requests = own.seq_lens.shape[0]
        rows = query.shape[0]
        topk = topk_buffer[:rows, : op.topk_tokens]
        logits = indexer_logits.launch_decode(
            query.view(requests, rows // requests, *query.shape[1:]),
            weights,
            cache,
            own.seq_lens,
            own.block_table,
            op.max_model_len,
            indexer_logits.decode_splits(rows, op.max_model_len, cache.shape[1], gpu(query.device).multiprocessors),
            topk,
        )
        (scratch,) = workspace.get_simultaneous(((TOPK_WORKSPACE_BYTES,), torch.uint8))
        torch.ops._C.persistent_topk(logits, own.seq_lens, topk, scratch, op.topk_tokens, logits.shape[1])

    breakable = module.eager_break_during_capture(step)

    def forward_cuda(self: Any, hidden_states: Any, q_quant: Any, k: Any, weights: Any) -> Any:
        breakable(self, hidden_states, q_quant, weights, self.topk_indices_buffer)
        return self.topk_indices_buffer

    return forward_cuda
