"""From a request's own key numbers to entries of the cache: what the attention gathers by.

Replaces vLLM 0.26.0's `compute_global_topk_indices_and_lens` at the attention's call only: that one takes slices
whose alignment changes with the batch, and Triton would compile it again inside a request.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def reference(
    local: torch.Tensor,
    requests: torch.Tensor,
    valid: torch.Tensor,
    block_table: torch.Tensor,
    entries: int,
    first: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """local int32 [n, width] (negative: none), of tokens first.. -> (entries int32 [n, width], lengths int32 [n]).

    requests int32, valid bool: per token of the whole batch; block_table int32 [requests, blocks]; entries: per block.
    The length counts the keys; a token that is not valid (padding) has none.
    """
    rows = slice(first, first + local.shape[0])
    block = torch.div(local.clamp_min(0), entries, rounding_mode="floor").long()
    found = block_table[requests[rows].long().unsqueeze(1), block] * entries + local % entries
    index = torch.where(local >= 0, found, -1).to(torch.int32)
    return index, torch.where(valid[rows], (local >= 0).sum(1), 0).to(torch.int32)


@triton.jit(do_not_specialize=["first", "table_stride", "width"])
def key_index_kernel(
    local,
    local_stride,
    requests,
    valid,
    table,
    table_stride,
    out,
    lengths,
    first,
    width,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(requests + first + token).to(tl.int64)
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        key = tl.load(local + token * local_stride + at, mask=at < width, other=-1)
        there = key >= 0
        block = tl.load(table + request * table_stride + key // ENTRIES, mask=there, other=0)
        entry = tl.where(there, block * ENTRIES + key % ENTRIES, -1)
        tl.store(out + token * width + at, entry, mask=at < width)
        count += there.to(tl.int32)
    real = tl.load(valid + first + token).to(tl.int32) != 0
    tl.store(lengths + token, tl.where(real, tl.sum(count, axis=0), 0))


def launch(
    local: torch.Tensor,
    requests: torch.Tensor,
    valid: torch.Tensor,
    block_table: torch.Tensor,
    entries: int,
    first: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `reference`; the columns of `local` are contiguous."""
    tokens, width = local.shape
    index = torch.empty((tokens, width), dtype=torch.int32, device=local.device)
    lengths = torch.empty(tokens, dtype=torch.int32, device=local.device)
    key_index_kernel[(tokens,)](
        local,
        local.stride(0),
        requests,
        valid,
        block_table,
        block_table.stride(0),
        index,
        lengths,
        first,
        width,
        ENTRIES=entries,
        BLOCK=512,
        num_warps=4,
    )
    return index, lengths
