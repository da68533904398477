"""Read and write fp8_ds_mla pages in plain torch: the reference for every kernel that touches the cache.

A cache is uint8 [blocks, entries, entry_bytes] as vLLM hands it out: only its block stride is meaningful,
the bytes inside a page follow `sm86.backend.layout`. Offsets are int64 throughout, since a pool exceeds 2^31 bytes.
"""

from __future__ import annotations

import torch

from sm86.backend.kernels import e4m3
from sm86.backend.layout import (
    HEAD_DIMS,
    INDEXER_DIMS,
    MAX_SCALE_BYTE,
    NOPE_DIMS,
    SCALE_GROUP,
    SCALE_GROUPS,
    PageLayout,
    indexer_page,
    main_page,
)


def layout_of(cache: torch.Tensor) -> PageLayout:
    """The layout a cache tensor holds, told by its last dimension (584: main, 132: indexer).

    Raises ValueError for another width, another dtype or a block stride smaller than a page.
    """
    if cache.dtype != torch.uint8 or cache.dim() != 3:
        raise ValueError(f"a cache is uint8 [blocks, entries, bytes], got {cache.dtype} {tuple(cache.shape)}")
    for layout in (main_page(cache.shape[1]), indexer_page(cache.shape[1])):
        if layout.entry_bytes == cache.shape[2]:
            if cache.shape[0] > 1 and cache.stride(0) < layout.raw_bytes:
                raise ValueError(f"block stride {cache.stride(0)} is smaller than a page of {layout.raw_bytes} bytes")
            return layout
    raise ValueError(f"no fp8_ds_mla page has entries of {cache.shape[2]} bytes")


def _bytes_view(cache: torch.Tensor, layout: PageLayout) -> torch.Tensor:
    """uint8 [blocks, raw page bytes], keeping the block stride: the tensor's inner strides carry no meaning."""
    return torch.as_strided(cache, (cache.shape[0], layout.raw_bytes), (cache.stride(0), 1), cache.storage_offset())


def _place(cache: torch.Tensor, slots: torch.Tensor, start: torch.Tensor, width: int) -> tuple:
    block = (slots.long() // cache.shape[1]).unsqueeze(-1)
    return block, start.unsqueeze(-1) + torch.arange(width, device=cache.device)


def _records(cache: torch.Tensor, slots: torch.Tensor, layout: PageLayout) -> tuple:
    entry = slots.long() % layout.entries
    return _place(cache, slots, entry * layout.record_bytes, layout.record_bytes)


def _scales(cache: torch.Tensor, slots: torch.Tensor, layout: PageLayout) -> tuple:
    entry = slots.long() % layout.entries
    start = layout.entries * layout.record_bytes + entry * layout.scale_bytes
    return _place(cache, slots, start, layout.scale_bytes)


def write_main(cache: torch.Tensor, slots: torch.Tensor, nope: torch.Tensor, rope: torch.Tensor) -> None:
    """Quantize and store entries in place.

    slots: int [n], global entry numbers (block * entries + entry), all >= 0.
    nope: fp32 [n, 448], already rounded to bf16; rope: [n, 64], stored as bf16.
    Raises ValueError when a group's maximum needs a scale byte above MAX_SCALE_BYTE.
    """
    layout = layout_of(cache)
    codes, exponent = e4m3.quantize_groups(nope, SCALE_GROUP)
    if exponent.numel() and int(exponent.max()) + 127 > MAX_SCALE_BYTE:
        raise ValueError(
            f"scale byte {int(exponent.max()) + 127} is beyond {MAX_SCALE_BYTE}, what the decode represents"
        )
    tail = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
    scale = torch.nn.functional.pad((exponent + 127).to(torch.uint8), (0, 1))
    view = _bytes_view(cache, layout)
    view[_records(cache, slots, layout)] = torch.cat((codes, tail), -1)
    view[_scales(cache, slots, layout)] = scale


def read_main(cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Entries slots (int [...], negative reads as zeros) -> `dtype` [..., 512]; exact in bf16, fp32 and fp64."""
    layout = layout_of(cache)
    view = _bytes_view(cache, layout)
    safe = slots.clamp_min(0)
    record = view[_records(cache, safe, layout)]
    scale = view[_scales(cache, safe, layout)][..., :SCALE_GROUPS].to(torch.int32)
    value = e4m3.decode(record[..., :NOPE_DIMS]).unflatten(-1, (SCALE_GROUPS, SCALE_GROUP))
    nope = (value * e4m3.power_of_two(scale - 127).unsqueeze(-1)).flatten(-2)
    rope = record[..., NOPE_DIMS:].contiguous().view(torch.bfloat16)
    out = torch.cat((nope.to(dtype), rope.to(dtype)), -1)
    return torch.where((slots >= 0).unsqueeze(-1), out, torch.zeros((), dtype=dtype, device=out.device))


def write_indexer(cache: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor) -> None:
    """Quantize and store indexer keys in place: slots int [n] >= 0, keys fp32 [n, 128], already rounded to bf16."""
    layout = layout_of(cache)
    codes, exponent = e4m3.quantize_groups(keys, INDEXER_DIMS)
    view = _bytes_view(cache, layout)
    view[_records(cache, slots, layout)] = codes
    view[_scales(cache, slots, layout)] = e4m3.power_of_two(exponent).contiguous().view(torch.uint8)


def read_indexer(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Indexer keys of slots (int [...], negative reads as zeros) -> fp32 [..., 128]."""
    layout = layout_of(cache)
    view = _bytes_view(cache, layout)
    safe = slots.clamp_min(0)
    codes = view[_records(cache, safe, layout)]
    scale = view[_scales(cache, safe, layout)].contiguous().view(torch.float32)
    out = e4m3.decode(codes) * scale
    return torch.where((slots >= 0).unsqueeze(-1), out, torch.zeros_like(out))


def empty_cache(
    blocks: int, layout: PageLayout, block_stride: int, offset: int = 0, device: str = "cpu", fill: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A pool and a strided cache view in it, as vLLM lays them out: (pool uint8 [bytes], cache)."""
    pool = torch.full((offset + blocks * block_stride,), fill, dtype=torch.uint8, device=device)
    shape = (blocks, layout.entries, layout.entry_bytes)
    return pool, torch.as_strided(pool, shape, (block_stride, layout.entry_bytes, 1), offset)


__all__ = [
    "HEAD_DIMS",
    "empty_cache",
    "layout_of",
    "read_indexer",
    "read_main",
    "write_indexer",
    "write_main",
]
