"""The routed experts in a fixed order, from the packed four-bit weights: for tests that compare bits.

vLLM's Marlin chooses its tiles by the number of rows, so a token's sums run in another order in a larger batch. Here
one program sums what one token needs, always in the same order: a token gets the same bits alone, in a batch, and in
any chunk of a prefill. It is slow, and nothing is served with it.

Roundings are Marlin's: weights, both products, the activation and each expert's weighted output are bf16; the experts
are summed in fp32 in the order in which they were chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sm86.backend.kernels.e4m3 import rounded_bf16

GROUP = 128
"""Inputs that share a scale, as in the checkpoint."""

COLUMNS = 32
"""Outputs of one program."""


def dequantized(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """GPTQ-packed int32 [in / 8, out] with scales [in / 128, out] -> bf16 [in, out]."""
    places = torch.arange(8, device=words.device, dtype=torch.int32) * 4
    values = ((words[:, None, :] >> places[None, :, None]) & 15) - 8
    flat = values.reshape(-1, words.shape[1])
    return (flat.float() * scales.float().repeat_interleave(GROUP, 0)).to(torch.bfloat16)


def reference(
    hidden: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    limit: float | None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """hidden bf16 [n, in]; gate_up int32 [experts, in / 8, 2 * width], gate first; down int32 [experts, width / 8, in];
    scales beside them [.., / 128, ..]; weights fp32 and experts int [n, chosen] -> bf16 [n, in].

    limit: the gate is cut above it, the other half on both sides; None: neither. dtype: of the arithmetic.
    """
    out = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    for token in range(hidden.shape[0]):
        for slot in range(experts.shape[1]):
            expert = int(experts[token, slot])
            first = hidden[token].to(dtype) @ dequantized(gate_up[expert], gate_up_scales[expert]).to(dtype)
            gate, up = first.to(torch.bfloat16).to(dtype).chunk(2)
            if limit is not None:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            inner = (torch.nn.functional.silu(gate) * up).to(torch.bfloat16).to(dtype)
            last = inner @ dequantized(down[expert], down_scales[expert]).to(dtype)
            out[token] += (last * weights[token, slot].to(dtype)).to(torch.bfloat16).to(dtype)
    return out.to(torch.bfloat16)


@triton.jit
def group_product(values, words, word_stride, scales, column, inside, GROUP: tl.constexpr):
    """fp32 [columns]: the product of a group of inputs (at `values`) with its packed weights."""
    word = tl.arange(0, GROUP // 8)
    place = tl.arange(0, 8)
    packed = tl.load(words + word[:, None] * word_stride + column[None, :], mask=inside[None, :], other=0)
    scale = tl.load(scales + column, mask=inside, other=0.0).to(tl.float32)
    four_bit = ((packed[:, None, :] >> (place * 4)[None, :, None]) & 15) - 8
    weight = rounded_bf16(four_bit.to(tl.float32) * scale[None, None, :]).to(tl.float32)
    value = tl.load(values + word[:, None] * 8 + place[None, :]).to(tl.float32)
    return tl.sum(tl.sum(value[:, :, None] * weight, axis=0), axis=0)


@triton.jit
def gate_up_kernel(
    hidden,
    hidden_stride,
    experts,
    words,
    expert_stride,
    scales,
    scale_stride,
    out,
    limit,
    CHOSEN: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    LIMITED: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    expert = tl.load(experts + pair).to(tl.int64)
    row = hidden + (pair // CHOSEN) * hidden_stride
    words += expert * expert_stride
    scales += expert * scale_stride
    gate = tl.zeros((COLUMNS,), tl.float32)
    up = tl.zeros((COLUMNS,), tl.float32)
    for group in range(SIZE // GROUP):
        at = words + group * (GROUP // 8) * 2 * WIDTH
        beside = scales + group * 2 * WIDTH
        gate += group_product(row + group * GROUP, at, 2 * WIDTH, beside, column, inside, GROUP)
        up += group_product(row + group * GROUP, at + WIDTH, 2 * WIDTH, beside + WIDTH, column, inside, GROUP)
    gate = rounded_bf16(gate).to(tl.float32)
    up = rounded_bf16(up).to(tl.float32)
    if LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + pair * WIDTH + column, rounded_bf16(value), mask=inside)


@triton.jit
def down_kernel(
    inner,
    experts,
    weights,
    words,
    expert_stride,
    scales,
    scale_stride,
    out,
    out_stride,
    CHOSEN: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < SIZE
    total = tl.zeros((COLUMNS,), tl.float32)
    for slot in range(CHOSEN):
        pair = token * CHOSEN + slot
        expert = tl.load(experts + pair).to(tl.int64)
        part = tl.zeros((COLUMNS,), tl.float32)
        for group in range(WIDTH // GROUP):
            at = words + expert * expert_stride + group * (GROUP // 8) * SIZE
            beside = scales + expert * scale_stride + group * SIZE
            part += group_product(inner + pair * WIDTH + group * GROUP, at, SIZE, beside, column, inside, GROUP)
        total += rounded_bf16(part * tl.load(weights + pair)).to(tl.float32)
    tl.store(out + token * out_stride + column, rounded_bf16(total), mask=inside)


def launch(
    hidden: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    limit: float | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same as `reference`, into `out` where given. All weights are contiguous; hidden's last dim is."""
    tokens, size = hidden.shape
    chosen, width = experts.shape[1], down.shape[1] * 8
    weights, experts = weights.contiguous(), experts.contiguous()
    inner = torch.empty((tokens * chosen, width), dtype=torch.bfloat16, device=hidden.device)
    out = torch.empty_like(hidden) if out is None else out
    if not tokens:
        return out
    shape = {"CHOSEN": chosen, "SIZE": size, "WIDTH": width, "COLUMNS": COLUMNS, "GROUP": GROUP}
    gate_up_kernel[(tokens * chosen, triton.cdiv(width, COLUMNS))](
        hidden,
        hidden.stride(0),
        experts,
        gate_up,
        gate_up.stride(0),
        gate_up_scales,
        gate_up_scales.stride(0),
        inner,
        0.0 if limit is None else float(limit),
        **shape,
        LIMITED=limit is not None,
        num_warps=4,
    )
    down_kernel[(tokens, triton.cdiv(size, COLUMNS))](
        inner,
        experts,
        weights,
        down,
        down.stride(0),
        down_scales,
        down_scales.stride(0),
        out,
        out.stride(0),
        **shape,
        num_warps=4,
    )
    return out
