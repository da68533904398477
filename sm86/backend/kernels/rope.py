"""The rotation all operations share: interleaved pairs (GPT-J style) of the last 64 dims.

A cos/sin table is fp32 [positions, 64]: 32 cosines, then 32 sines, one per pair.
"""

from __future__ import annotations

import torch

from sm86.backend.layout import ROPE_DIMS


def rotate_tail(x: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """x float [n, ..., D] with one position per leading row -> fp32 [n, ..., D], last 64 dims rotated.

    positions: int [n]; inverse: by the negative angle.
    """
    angles = table[positions.long()].float().view(positions.shape[0], *([1] * (x.dim() - 2)), ROPE_DIMS)
    half = ROPE_DIMS // 2
    cos, sin = angles[..., :half], angles[..., half:]
    if inverse:
        sin = -sin
    value = x.float()
    head, tail = value[..., :-ROPE_DIMS], value[..., -ROPE_DIMS:]
    even, odd = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((head, turned), dim=-1)
