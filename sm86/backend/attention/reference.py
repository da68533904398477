"""Sparse MLA attention in plain torch: what every GPU form is held to.

Keys equal values: one shared latent of 512 dims per cache entry. The sink joins the denominator only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sm86.backend.kernels import pages


@dataclass(frozen=True, slots=True)
class Source:
    """Where a token's keys lie.

    cache: uint8 [blocks, entries, 584]; index: int32 [tokens, width] of global entries, negative: no key;
    length: int32 [tokens], how many of the row's indices count (values outside 0..width are clamped).
    """

    cache: torch.Tensor
    index: torch.Tensor
    length: torch.Tensor


def attend(
    query: torch.Tensor,
    sources: list[Source],
    sink: torch.Tensor,
    scale: float,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """query bf16 [tokens, heads, 512], sink fp32 [heads] -> `dtype`, query's shape; no key and no sink gives zeros."""
    keys, valid = [], []
    for source in sources:
        width = source.index.shape[1]
        inside = torch.arange(width, device=query.device) < source.length.clamp(0, width).unsqueeze(1)
        ok = inside & (source.index >= 0)
        keys.append(pages.read_main(source.cache, torch.where(ok, source.index, -1), dtype))
        valid.append(ok)
    key, ok = torch.cat(keys, 1), torch.cat(valid, 1)
    score = torch.einsum("thd,tkd->thk", query.to(dtype), key) * scale
    score = score.masked_fill(~ok.unsqueeze(1), float("-inf"))
    joined = torch.cat((score, sink.to(dtype).view(1, -1, 1).expand(score.shape[0], -1, 1)), -1)
    top = joined.amax(-1, keepdim=True)
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    share = torch.exp(joined - top)
    total = share.sum(-1, keepdim=True)
    out = torch.einsum("thk,tkd->thd", share[..., :-1], key)
    return torch.where(total > 0, out / total, torch.zeros_like(out))
