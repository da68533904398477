"""Compile every kernel of the backend before the first request: one launch of each form on the server's own caches.

The launches carry slots and lengths that make the kernels return without writing, so the caches stay as they are.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from sm86.backend.kernels import compress, indexer_logits, indexer_query, key_index, mhc_gemm, output_projection
from sm86.backend.report import report


def token_counts(most: int) -> list[int]:
    """Batch sizes whose forward passes together compile every form that a batch of up to `most` tokens can need.

    The mHC kernels of vLLM 0.26.0 change at 17, 128 and 1024 tokens.
    """
    return sorted(count for count in {1, 16, 17, 128, 1024, most} if count <= most)


def warm_up(worker: Any) -> None:
    """Warm the kernels for the model a vLLM worker holds; nothing for other models."""
    model = worker.get_model()
    layers = [module for module in model.modules() if type(module).__name__ == "Sm86Attention"]
    if not layers:
        return
    begin = time.perf_counter()
    seen: set[int] = set()
    for layer in layers:
        if layer.compress_ratio in seen:
            continue
        seen.add(layer.compress_ratio)
        _warm_layer(layer)
    device = layers[0].attn_sink.device
    hidden = torch.zeros(2, layers[0].hidden_size, dtype=torch.bfloat16, device=device)
    matrix = torch.zeros(24, layers[0].hidden_size, device=device)
    mhc_gemm.launch(hidden, matrix, torch.empty(2, 2, 24, device=device), torch.empty(2, 2, device=device), 2)
    from sm86.backend.diagnostics.nan_watch import count_bad_rows

    count_bad_rows(hidden, torch.zeros(1, dtype=torch.int32, device=device))
    _warm_vllm(worker, device)
    torch.cuda.synchronize()
    report("warmup_s", round(time.perf_counter() - begin, 2))


def _warm_vllm(worker: Any, device: torch.device) -> None:
    """vLLM's own kernels on this server's tables and batch sizes: its warm-up leaves some to the first request."""
    from vllm.config import CUDAGraphMode

    runner = worker.model_runner
    starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
    positions = torch.zeros(16, dtype=torch.int64, device=device)
    for table in runner.input_batch.block_table.block_tables:
        table.compute_slot_mapping(1, starts, positions)
    most = worker.scheduler_config.max_num_batched_tokens
    for tokens in token_counts(most):
        runner._dummy_run(
            num_tokens=tokens,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            force_attention=True,
            skip_eplb=True,
            is_profile=True,
        )


def _warm_layer(layer: Any) -> None:
    from sm86.backend.attention import native
    from sm86.backend.attention.reference import Source

    device = layer.attn_sink.device
    zeros = torch.zeros(16, dtype=torch.int64, device=device)
    none = torch.full((16,), -1, dtype=torch.int64, device=device)
    table = torch.zeros(2, 8, dtype=torch.int32, device=device)
    requests = torch.zeros(16, dtype=torch.int32, device=device)
    rope = layer.rotary_emb.cos_sin_cache
    query = torch.zeros(2, layer.padded_heads, 512, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(query)
    window = Source(
        layer.swa_cache_layer.kv_cache,
        torch.zeros(2, layer.window_size, dtype=torch.int32, device=device),
        torch.zeros(2, dtype=torch.int32, device=device),
    )
    extra = None
    compressors = []
    if layer.compressor is not None:
        compressors.append((layer.compressor, layer.kv_cache))
        width = 512 if layer.compress_ratio == 4 else 128
        local = torch.full((2, width), -1, dtype=torch.int32, device=device)
        valid = torch.zeros(16, dtype=torch.bool, device=device)
        index, length = key_index.launch(local, requests, valid, table, layer.kv_cache.shape[1], 0)
        extra = Source(layer.kv_cache, index, length)
    native.attend(query, window, extra, layer.attn_sink, layer.scale, out)
    output_projection.undo_rotation(out[:, : layer.n_local_heads], zeros[:2], rope)
    if layer.indexer is not None:
        indexer = layer.indexer
        compressors.append((indexer.compressor, indexer.k_cache.kv_cache))
        raw = torch.zeros(2, indexer.n_head, 128, dtype=torch.bfloat16, device=device)
        weights = torch.zeros(2, indexer.n_head, dtype=torch.bfloat16, device=device)
        from sm86.backend.settings import settings

        through = settings().indexer_query == "e4m3"
        turned, scaled = indexer_query.launch(raw, weights, zeros[:2], rope, 1.0, through)
        cache = indexer.k_cache.kv_cache
        lengths = torch.zeros(2, 1, dtype=torch.int32, device=device)
        topk = torch.empty(2, indexer.topk_tokens, dtype=torch.int32, device=device)
        indexer_logits.launch_decode(turned.unsqueeze(1), scaled, cache, lengths, table, 256, 2, topk)
        columns = indexer_logits.Columns(requests, torch.zeros(3, dtype=torch.int32, device=device), table)
        ends = torch.zeros(2, dtype=torch.int32, device=device)
        indexer_logits.launch_prefill(turned, scaled, cache, columns, ends, ends)
    for compressor, cache in compressors:
        state = compressor.state_cache.kv_cache
        window_of = compress.Window(
            state, table, requests, zeros, none, none, compressor.compress_ratio, compressor.overlap
        )
        compress.launch(window_of, cache, rope, compressor.norm.weight, compressor.rms_norm_eps)
