"""The way out of attention: undo the rotation of the last 64 dims, then the grouped low-rank projection.

Replaces vLLM 0.26.0's fp8 inverse RoPE and DeepGEMM's `fp8_einsum`; AutoRound keeps `wo_a` in bf16, so the
projection is one plain GEMM per local group (a single one at tensor parallel 8), which cuBLAS does best.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sm86.backend.kernels.e4m3 import rounded_bf16
from sm86.backend.kernels.rope import rotate_tail


def reference(
    attention: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """attention [n, heads, 512], weight [groups * rank, heads/groups * 512] -> bf16 [n, groups * rank].

    dtype: of the product; the rotated values are rounded to bf16 first, as the GPU form does.
    """
    turned = rotate_tail(attention, table, positions, inverse=True).to(torch.bfloat16).to(dtype)
    parts = turned.reshape(turned.shape[0], groups, -1)
    matrices = weight.to(dtype).view(groups, -1, parts.shape[-1])
    out = torch.einsum("ngd,grd->ngr", parts, matrices).flatten(1)
    return out if dtype == torch.float64 else out.to(torch.bfloat16)


@triton.jit
def inverse_rope_kernel(
    attention, token_stride, head_stride, positions, table, table_stride, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, 64)
    place = attention + token * token_stride + head[:, None] * head_stride + 448 + dim[None, :]
    inside = head[:, None] < HEADS
    value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    angle = table + tl.load(positions + token) * table_stride + tl.arange(0, 32)
    cos = tl.load(angle).to(tl.float32)
    sin = tl.load(angle + 32).to(tl.float32)
    even, odd = tl.split(tl.reshape(value, (BLOCK, 32, 2)))
    first = even * cos[None, :] + odd * sin[None, :]
    second = odd * cos[None, :] - even * sin[None, :]
    tl.store(place, rounded_bf16(tl.interleave(first, second)), mask=inside)


def undo_rotation(attention: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> None:
    """Rotate the last 64 dims of bf16 [n, heads, 512] back, in place (its last dim is contiguous)."""
    tokens, heads, _ = attention.shape
    block = min(16, triton.next_power_of_2(heads))
    inverse_rope_kernel[(tokens, triton.cdiv(heads, block))](
        attention,
        attention.stride(0),
        attention.stride(1),
        positions,
        table,
        table.stride(0),
        HEADS=heads,
        BLOCK=block,
        num_warps=2,
    )


def launch(
    attention: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, groups: int
) -> torch.Tensor:
    """The same as `reference`, in bf16; `attention` is overwritten with its rotated-back values."""
    undo_rotation(attention, positions, table)
    tokens = attention.shape[0]
    if groups == 1:
        return torch.mm(attention.reshape(tokens, -1), weight.t())
    parts = attention.reshape(tokens, groups, -1).transpose(0, 1)
    matrices = weight.view(groups, -1, parts.shape[-1]).transpose(1, 2)
    return torch.bmm(parts, matrices).transpose(0, 1).reshape(tokens, -1)
