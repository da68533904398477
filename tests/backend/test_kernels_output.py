"""The output projection and the first layer's hyper-connection GEMM."""

from __future__ import annotations

import pytest
import torch

from sm86.backend.kernels import mhc_gemm, output_projection
from sm86.backend.kernels.rope import rotate_tail
from tests.backend.test_kernels_compress import rope_table


@pytest.mark.parametrize(("heads", "groups"), [(8, 1), (16, 2), (64, 8)])
def test_output_projection(heads: int, groups: int, device: str) -> None:
    rank = 32
    wide = torch.randn(6, heads + 8, 512, device=device).to(torch.bfloat16)
    attention = wide[:, :heads]
    positions = torch.tensor([0, 1, 2, 50, 128, 299], device=device)
    weight = (torch.randn(groups * rank, heads * 512 // groups, device=device) * 0.05).to(torch.bfloat16)
    table = rope_table(300, device)
    want = output_projection.reference(attention, positions, table, weight, groups, torch.float64)
    spare = wide[:, heads:].clone()
    got = output_projection.launch(attention, positions, table, weight, groups)
    assert got.shape == (6, groups * rank) and got.dtype == torch.bfloat16
    assert float((got.double() - want).norm() / want.norm()) < 4e-3
    assert torch.equal(wide[:, heads:], spare), "padding heads are untouched"


def test_undoing_a_rotation_gives_the_value_back(device: str) -> None:
    value = torch.randn(9, 8, 512, device=device)
    positions = torch.arange(9, device=device) * 30
    table = rope_table(300, device)
    turned = rotate_tail(value, table, positions).to(torch.bfloat16)
    output_projection.undo_rotation(turned, positions, table)
    assert float((turned.float() - value).norm() / value.norm()) < 4e-3


@pytest.mark.parametrize(("tokens", "splits"), [(1, 1), (1, 16), (5, 3), (0, 2)])
@pytest.mark.parametrize("size", [4096, 1000])
def test_mhc_gemm(tokens: int, splits: int, size: int, device: str) -> None:
    hidden = torch.randn(tokens, size, device=device).to(torch.bfloat16)
    matrix = torch.randn(24, size, device=device)
    out = torch.full((splits, tokens, 24), float("nan"), device=device)
    squares = torch.full((splits, tokens), float("nan"), device=device)
    want, want_squares = torch.empty_like(out), torch.empty_like(squares)
    mhc_gemm.reference(hidden, matrix, want, want_squares)
    mhc_gemm.launch(hidden, matrix, out, squares, splits)
    torch.testing.assert_close(out.sum(0), want.sum(0), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(squares.sum(0), want_squares.sum(0), rtol=1e-5, atol=1e-4)
