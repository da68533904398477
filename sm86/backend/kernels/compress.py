"""The KV compressors: pool a window of state rows, normalise, rotate, quantize, store one cache entry.

Three forms of one operation: C4 main (window 8, overlapping halves), C128 main (window 128) and the indexer's keys
(C4, 128 dims). A row of state is [key halves | score halves]; its scores already hold the position bias.
A token closes a window when (position + 1) is a multiple of the ratio; all other tokens write nothing.

Replaces vLLM 0.26.0's `compress_norm_rope_store_*` (CuTeDSL for SM90; its Triton form names the e4m3 type).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sm86.backend.kernels import pages
from sm86.backend.kernels.e4m3 import encode_bits, power_of_two_bits, rounded_bf16, scale_exponent_bits
from sm86.backend.kernels.rope import rotate_tail
from sm86.backend.layout import HEAD_DIMS, NOPE_DIMS


@dataclass(frozen=True, slots=True)
class Window:
    """What one token's window reads.

    state: fp32 [blocks, rows, 2 * width]; block_table: int32 [requests, n] of state blocks.
    requests: int32 [tokens]; positions: int64 [tokens]; state_slots, entry_slots: int64 [tokens], negative: padding.
    ratio: 4 or 128; overlap: the window also takes the previous ratio rows, from the first half of the width.
    """

    state: torch.Tensor
    block_table: torch.Tensor
    requests: torch.Tensor
    positions: torch.Tensor
    state_slots: torch.Tensor
    entry_slots: torch.Tensor
    ratio: int
    overlap: bool

    @property
    def rows(self) -> int:
        """Rows of state in a window: 8 (C4) or 128 (C128)."""
        return self.ratio * (2 if self.overlap else 1)


def pooled(window: Window, tokens: torch.Tensor, dims: int, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """fp32 [n, dims]: the softmax-weighted mean of each token's window (per dim), RMS-normalised.

    Computed in fp64 when the state is fp64.
    """
    state = window.state
    rows, width = window.rows, state.shape[-1] // 2
    at = torch.arange(rows, device=state.device)
    position = window.positions[tokens].unsqueeze(1) - rows + 1 + at
    inside = (position >= 0).unsqueeze(-1)
    safe = position.clamp_min(0)
    block = window.block_table[window.requests[tokens].long().unsqueeze(1), safe // state.shape[1]].long()
    values = state[block, safe % state.shape[1]]
    key, score = values[..., :width], values[..., width:]
    if window.overlap:
        later = (at >= window.ratio).view(1, rows, 1)
        key = torch.where(later, key[..., dims:], key[..., :dims])
        score = torch.where(later, score[..., dims:], score[..., :dims])
    share = torch.softmax(score.masked_fill(~inside, float("-inf")), dim=1)
    mean = (key.masked_fill(~inside, 0.0) * share).sum(1)
    return mean * torch.rsqrt(mean.square().mean(-1, keepdim=True) + epsilon) * weight.to(mean.dtype)


def reference(window: Window, cache: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """Write the entry of every token that closes a window into `cache` (main or indexer pages), in place.

    table: cos/sin, see `sm86.backend.kernels.rope`; weight: [dims] of the norm.
    """
    closes = (window.positions + 1) % window.ratio == 0
    tokens = (closes & (window.state_slots >= 0) & (window.entry_slots >= 0)).nonzero().squeeze(-1)
    if not tokens.numel():
        return
    dims = weight.shape[0]
    normed = pooled(window, tokens, dims, weight, epsilon).float()
    start = window.positions[tokens] // window.ratio * window.ratio
    turned = rotate_tail(normed, table, start).to(torch.bfloat16)
    slots = window.entry_slots[tokens]
    if dims == HEAD_DIMS:
        pages.write_main(cache, slots, normed[:, :NOPE_DIMS].to(torch.bfloat16).float(), turned[:, NOPE_DIMS:])
    else:
        pages.write_indexer(cache, slots, turned.float())


@triton.jit(do_not_specialize=["block_table_stride"])
def compress_kernel(
    state,
    state_block_stride,
    state_row_stride,
    requests,
    positions,
    state_slots,
    block_table,
    block_table_stride,
    entry_slots,
    weight,
    epsilon,
    table,
    table_stride,
    cache,
    cache_block_stride,
    DIMS: tl.constexpr,
    WIDTH: tl.constexpr,
    RATIO: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    STATE_ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    MAIN: tl.constexpr,
):
    token = tl.program_id(0)
    if tl.load(state_slots + token) < 0:
        return
    position = tl.load(positions + token)
    if (position + 1) % RATIO != 0:
        return
    slot = tl.load(entry_slots + token)
    if slot < 0:
        return
    request = tl.load(requests + token).to(tl.int64)
    dim = tl.arange(0, DIMS)
    # Online softmax over the window, one per dim: a window of 128 x 512 does not fit the registers.
    top = tl.full([DIMS], -1e30, tl.float32)
    total = tl.zeros([DIMS], tl.float32)
    mean = tl.zeros([DIMS], tl.float32)
    for first in range(0, ROWS, CHUNK):
        at = first + tl.arange(0, CHUNK)
        where = position - ROWS + 1 + at
        inside = where >= 0
        safe = tl.maximum(where, 0)
        block = tl.load(block_table + request * block_table_stride + safe // STATE_ROWS).to(tl.int64)
        row = state + block * state_block_stride + (safe % STATE_ROWS) * state_row_stride
        if ROWS > RATIO:
            row += (at >= RATIO).to(tl.int64) * DIMS
        score = tl.load(row[:, None] + WIDTH + dim[None, :], mask=inside[:, None], other=float("-inf"))
        key = tl.load(row[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
        new_top = tl.maximum(top, tl.max(score, axis=0))
        keep = tl.exp(top - new_top)
        share = tl.exp(score - new_top[None, :])
        total = total * keep + tl.sum(share, axis=0)
        mean = mean * keep + tl.sum(key * share, axis=0)
        top = new_top
    mean = mean / total
    variance = tl.sum(mean * mean, axis=0) / DIMS
    normed = mean * tl.rsqrt(variance + epsilon) * tl.load(weight + dim).to(tl.float32)

    pair = tl.arange(0, DIMS // 2) - (DIMS - 64) // 2
    start = (position // RATIO) * RATIO
    angle = table + start * table_stride + tl.maximum(pair, 0)
    cos = tl.load(angle, mask=pair >= 0, other=1.0).to(tl.float32)
    sin = tl.load(angle + 32, mask=pair >= 0, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(normed, (DIMS // 2, 2)))
    turned = rounded_bf16(tl.interleave(even * cos - odd * sin, odd * cos + even * sin))

    page = cache + (slot // ENTRIES) * cache_block_stride
    entry = slot % ENTRIES
    if MAIN:
        record = page + entry * 576
        groups = tl.reshape(rounded_bf16(normed).to(tl.float32), (DIMS // 64, 64))
        exponent = scale_exponent_bits(tl.max(tl.abs(groups), axis=1))
        codes = encode_bits(groups * power_of_two_bits(-exponent)[:, None])
        tl.store(record + dim, tl.reshape(codes, (DIMS,)).to(tl.uint8), mask=dim < 448)
        group = tl.arange(0, DIMS // 64)
        scale = tl.where(group < 7, exponent + 127, 0)
        tl.store(page + ENTRIES * 576 + entry * 8 + group, scale.to(tl.uint8))
        tail = (record + 448).to(tl.pointer_type(tl.bfloat16))
        tl.store(tail + (dim - 448), turned, mask=dim >= 448)
    else:
        value = turned.to(tl.float32)
        exponent = scale_exponent_bits(tl.max(tl.abs(value), axis=0))
        codes = encode_bits(value * power_of_two_bits(-exponent))
        tl.store(page + entry * 128 + dim, codes.to(tl.uint8))
        scale = (page + ENTRIES * 128 + entry * 4).to(tl.pointer_type(tl.float32))
        tl.store(scale, power_of_two_bits(exponent))


def launch(window: Window, cache: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """The same as `reference`: one program per token, and those that close no window leave at once (graph-safe)."""
    state = window.state
    dims = weight.shape[0]
    compress_kernel[(window.state_slots.shape[0],)](
        state,
        state.stride(0),
        state.stride(1),
        window.requests,
        window.positions,
        window.state_slots,
        window.block_table,
        window.block_table.stride(0),
        window.entry_slots,
        weight,
        epsilon,
        table,
        table.stride(0),
        cache,
        cache.stride(0),
        DIMS=dims,
        WIDTH=state.shape[-1] // 2,
        RATIO=window.ratio,
        ROWS=window.rows,
        CHUNK=8,
        STATE_ROWS=state.shape[1],
        ENTRIES=cache.shape[1],
        MAIN=dims == HEAD_DIMS,
        num_warps=8 if dims == HEAD_DIMS else 2,
    )
