"""The indexer's scores, read straight from its key pages.

    score[m, n] = sum over heads h of weight[m, h] * relu(query[m, h] . key[n])

Two forms: decode (each row has its own request and length) and prefill (rows of a chunk of requests; columns are
the requests' compressed keys one after another, and a row sees the columns start..end). Both touch only keys that
exist, so the cost and the pages read follow the real lengths, while grid and output shape stay fixed for graphs.

Replaces vLLM 0.26.0's gather of all keys into a workspace and DeepGEMM's `fp8_fp4_mqa_logits` / `..._paged_mqa_logits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sm86.backend.kernels import pages
from sm86.backend.kernels.e4m3 import DOT_TYPE, decode_bits
from sm86.backend.layout import INDEXER_DIMS


@dataclass(frozen=True, slots=True)
class Columns:
    """Which key stands behind a column of prefill logits.

    request_of: int32 [columns], request index in the chunk; starts: int32 [requests + 1], first column of each;
    block_table: int32 [requests, n]. Columns at or beyond starts[-1] hold nothing (request_of is garbage there).
    """

    request_of: torch.Tensor
    starts: torch.Tensor
    block_table: torch.Tensor


def _scores(query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    dtype = keys.dtype
    dots = torch.einsum("mhd,nd->mhn", query.to(dtype), keys).relu()
    return torch.einsum("mhn,mh->mn", dots, weights.to(dtype))


def decode_reference(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    width: int,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """fp [rows, width], -inf beyond each row's length.

    query: bf16 [requests, per, heads, 128]; weights: fp32 [requests * per, heads]; cache: uint8 [blocks, entries, 132];
    lengths: int32 [requests, per], keys each row sees; block_table: int32 [requests, n]; dtype: of the arithmetic.
    """
    requests, per, heads, dims = query.shape
    out = torch.full((requests * per, width), float("-inf"), dtype=dtype, device=query.device)
    for row in range(requests * per):
        request = row // per
        length = max(0, min(int(lengths[request, row % per]), width))
        if length:
            at = torch.arange(length, device=query.device)
            slots = block_table[request, at // cache.shape[1]].long() * cache.shape[1] + at % cache.shape[1]
            keys = pages.read_indexer(cache, slots).to(dtype)
            one = query.view(-1, heads, dims)[row : row + 1]
            out[row, :length] = _scores(one, weights[row : row + 1], keys)[0]
    return out


def prefill_reference(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    columns: Columns,
    row_start: torch.Tensor,
    row_end: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """fp [rows, columns], -inf outside each row's start..end.

    query: bf16 [rows, heads, 128]; weights: fp32 [rows, heads]; row_start, row_end: int32 [rows], columns a row sees.
    """
    count = columns.request_of.shape[0]
    out = torch.full((query.shape[0], count), float("-inf"), dtype=dtype, device=query.device)
    total = min(int(columns.starts[-1]), count)
    if total:
        at = torch.arange(total, device=query.device)
        request = columns.request_of[:total].long()
        local = at - columns.starts[request]
        slots = columns.block_table[request, local // cache.shape[1]].long() * cache.shape[1] + local % cache.shape[1]
        scores = _scores(query, weights, pages.read_indexer(cache, slots).to(dtype))
        seen = (at >= row_start.unsqueeze(1)) & (at < row_end.unsqueeze(1))
        out[:, :total] = torch.where(seen, scores, out[:, :total])
    return out


@triton.jit
def _tile_scores(codes, scale, query_t, weight):
    keys = decode_bits(codes).to(DOT_TYPE)
    dots = tl.dot(keys, query_t.to(DOT_TYPE))
    # The key's scale is positive, so it commutes with the relu and costs one product per key.
    return tl.sum(tl.maximum(dots, 0.0) * weight[None, :], axis=1) * scale


@triton.jit(do_not_specialize=["block_table_stride", "out_stride", "topk_stride", "width"])
def indexer_decode_kernel(
    query,
    weights,
    cache,
    cache_block_stride,
    lengths,
    block_table,
    block_table_stride,
    out,
    out_stride,
    topk,
    topk_stride,
    width,
    PER: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    ENTRIES: tl.constexpr,
    TOPK: tl.constexpr,
):
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if TOPK > 0 and split == 0:
        # The top-k after this writes only what it finds; the rest must say "no key".
        tl.store(topk + row * topk_stride + tl.arange(0, TOPK), tl.full([TOPK], -1, tl.int32))
    length = tl.minimum(tl.load(lengths + row), width)
    tiles = (length + ENTRIES - 1) // ENTRIES
    if split >= tiles:
        return
    head = tl.arange(0, PADDED_HEADS)
    dim = tl.arange(0, 128)
    entry = tl.arange(0, ENTRIES)
    query_t = tl.load(
        query + row * HEADS * 128 + head[None, :] * 128 + dim[:, None], mask=head[None, :] < HEADS, other=0.0
    )
    weight = tl.load(weights + row * HEADS + head, mask=head < HEADS, other=0.0)
    for tile in range(split, tiles, tl.num_programs(0)):
        block = tl.load(block_table + (row // PER) * block_table_stride + tile).to(tl.int64)
        page = cache + block * cache_block_stride
        codes = tl.load(page + entry[:, None] * 128 + dim[None, :])
        scale = tl.load((page + ENTRIES * 128).to(tl.pointer_type(tl.float32)) + entry)
        score = _tile_scores(codes, scale, query_t, weight)
        column = tile * ENTRIES + entry
        tl.store(out + row * out_stride + column, score, mask=column < length)


# A chunk's block table is a slice of the batch's: where it begins follows the requests before it.
@triton.jit(
    do_not_specialize=["requests", "block_table_stride", "rows", "out_stride"],
    do_not_specialize_on_alignment=["block_table"],
)
def indexer_prefill_kernel(
    query,
    query_stride,
    weights,
    weights_stride,
    cache,
    cache_block_stride,
    request_of,
    starts,
    requests,
    block_table,
    block_table_stride,
    row_start,
    row_end,
    rows,
    out,
    out_stride,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    ENTRIES: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
):
    first = tl.program_id(0) * TILE
    total = tl.load(starts + requests)
    if first >= total:
        return
    column = first + tl.arange(0, TILE)
    dim = tl.arange(0, 128)
    head = tl.arange(0, PADDED_HEADS)
    known = column < total
    request = tl.load(request_of + column, mask=known, other=0)
    local = column - tl.load(starts + request, mask=known, other=0)
    table_row = block_table + request.to(tl.int64) * block_table_stride
    block = tl.load(table_row + local // ENTRIES, mask=known, other=0).to(tl.int64)
    page = cache + block * cache_block_stride
    entry = local % ENTRIES
    codes = tl.load(page[:, None] + entry[:, None] * 128 + dim[None, :], mask=known[:, None], other=0)
    scale = tl.load((page + ENTRIES * 128 + entry * 4).to(tl.pointer_type(tl.float32)), mask=known, other=0.0)
    keys = decode_bits(codes).to(DOT_TYPE)
    base = tl.program_id(1).to(tl.int64) * ROWS
    for step in range(0, ROWS):
        at = tl.minimum(base + step, rows - 1)
        start = tl.load(row_start + at)
        end = tl.load(row_end + at)
        if (first < end) & (first + TILE > start) & (base + step < rows):
            query_t = tl.load(
                query + at * query_stride + head[None, :] * 128 + dim[:, None], mask=head[None, :] < HEADS, other=0.0
            )
            weight = tl.load(weights + at * weights_stride + head, mask=head < HEADS, other=0.0)
            dots = tl.dot(keys, query_t.to(DOT_TYPE))
            score = tl.sum(tl.maximum(dots, 0.0) * weight[None, :], axis=1) * scale
            tl.store(out + at * out_stride + column, score, mask=(column >= start) & (column < end))


def decode_splits(rows: int, width: int, entries: int, multiprocessors: int) -> int:
    """Programs per row: enough to fill the GPU twice, at most one per page; from shapes only, so graph-safe."""
    return max(1, min(-(-width // entries), -(-2 * multiprocessors // rows)))


def launch_decode(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    width: int,
    splits: int,
    topk: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp32 [rows, width] as `decode_reference`, but columns beyond a row's length stay unwritten.

    topk: int32 [rows, k] whose rows are filled with -1 on the way (k a power of two), or None.
    """
    requests, per, heads, _ = query.shape
    rows = requests * per
    # A row stride that is a multiple of four floats keeps the top-k's vector loads aligned.
    out = torch.empty((rows, -(-width // 4) * 4), dtype=torch.float32, device=query.device)
    indexer_decode_kernel[(splits, rows)](
        query,
        weights,
        cache,
        cache.stride(0),
        lengths,
        block_table,
        block_table.stride(0),
        out,
        out.stride(0),
        topk if topk is not None else out,
        topk.stride(0) if topk is not None else 0,
        width,
        PER=per,
        HEADS=heads,
        PADDED_HEADS=max(16, triton.next_power_of_2(heads)),
        ENTRIES=cache.shape[1],
        TOPK=topk.shape[1] if topk is not None else 0,
        num_warps=4,
        num_stages=2,
    )
    return out


def launch_prefill(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    columns: Columns,
    row_start: torch.Tensor,
    row_end: torch.Tensor,
) -> torch.Tensor:
    """fp32 [rows, columns] as `prefill_reference`, but columns outside a row's start..end stay unwritten."""
    rows, heads, _ = query.shape
    count = columns.request_of.shape[0]
    tile, per_program = 64, 32
    out = torch.empty((rows, count), dtype=torch.float32, device=query.device)
    indexer_prefill_kernel[(triton.cdiv(count, tile), triton.cdiv(rows, per_program))](
        query,
        query.stride(0),
        weights,
        weights.stride(0),
        cache,
        cache.stride(0),
        columns.request_of,
        columns.starts,
        columns.block_table.shape[0],
        columns.block_table,
        columns.block_table.stride(0),
        row_start,
        row_end,
        rows,
        out,
        out.stride(0),
        HEADS=heads,
        PADDED_HEADS=max(16, triton.next_power_of_2(heads)),
        ENTRIES=cache.shape[1],
        TILE=tile,
        ROWS=per_program,
        num_warps=4,
        num_stages=1,
    )
    return out


__all__ = [
    "INDEXER_DIMS",
    "Columns",
    "decode_reference",
    "decode_splits",
    "launch_decode",
    "launch_prefill",
    "prefill_reference",
]
