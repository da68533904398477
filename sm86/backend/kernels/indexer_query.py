"""The indexer's query: rotate the last 64 of 128 dims, fold the constant scales into the head weights.

Replaces vLLM 0.26.0's `fused_indexer_q_rope_quant`. The query stays bf16; with `through_e4m3` it is rounded
through e4m3 with one power-of-two scale per head, as the native path does, for comparison with it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sm86.backend.kernels import e4m3
from sm86.backend.kernels.e4m3 import decode_bits, encode_bits, power_of_two_bits, rounded_bf16, scale_exponent_bits
from sm86.backend.kernels.rope import rotate_tail


def reference(
    query: torch.Tensor,
    weights: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    through_e4m3: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """query bf16 [n, heads, 128], weights [n, heads], positions int64 [n] -> (bf16 like query, fp32 like weights)."""
    turned = rotate_tail(query, table, positions).to(torch.bfloat16)
    if through_e4m3:
        codes, exponent = e4m3.quantize_groups(turned.float(), turned.shape[-1])
        turned = (e4m3.decode(codes) * e4m3.power_of_two(exponent)).to(torch.bfloat16)
    return turned, weights.float() * scale


@triton.jit
def indexer_query_kernel(
    query,
    query_token_stride,
    query_head_stride,
    weights,
    weights_stride,
    positions,
    table,
    table_stride,
    out,
    out_weights,
    scale,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    THROUGH_E4M3: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, 128)
    inside = head[:, None] < HEADS
    source = query + token * query_token_stride + head[:, None] * query_head_stride + dim[None, :]
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    pair = tl.arange(0, 64) - 32
    angle = table + tl.load(positions + token) * table_stride + tl.maximum(pair, 0)
    cos = tl.load(angle, mask=pair >= 0, other=1.0).to(tl.float32)
    sin = tl.load(angle + 32, mask=pair >= 0, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(value, (BLOCK, 64, 2)))
    first = even * cos[None, :] - odd * sin[None, :]
    second = odd * cos[None, :] + even * sin[None, :]
    turned = rounded_bf16(tl.interleave(first, second))
    if THROUGH_E4M3:
        wide = turned.to(tl.float32)
        exponent = scale_exponent_bits(tl.max(tl.abs(wide), axis=1))
        codes = encode_bits(wide * power_of_two_bits(-exponent)[:, None])
        turned = (decode_bits(codes) * power_of_two_bits(exponent)[:, None]).to(tl.bfloat16)
    tl.store(out + (token * HEADS + head[:, None]) * 128 + dim[None, :], turned, mask=inside)
    weight = tl.load(weights + token * weights_stride + head, mask=head < HEADS, other=0.0).to(tl.float32)
    tl.store(out_weights + token * HEADS + head, weight * scale, mask=head < HEADS)


def launch(
    query: torch.Tensor,
    weights: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    through_e4m3: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `reference`; query's last dim and weights' last dim are contiguous."""
    tokens, heads, _ = query.shape
    out = torch.empty((tokens, heads, 128), dtype=torch.bfloat16, device=query.device)
    out_weights = torch.empty((tokens, heads), dtype=torch.float32, device=query.device)
    block = min(16, triton.next_power_of_2(heads))
    indexer_query_kernel[(tokens, triton.cdiv(heads, block))](
        query,
        query.stride(0),
        query.stride(1),
        weights,
        weights.stride(0),
        positions,
        table,
        table.stride(0),
        out,
        out_weights,
        scale,
        HEADS=heads,
        BLOCK=block,
        THROUGH_E4M3=through_e4m3,
        num_warps=4,
    )
    return out, out_weights
