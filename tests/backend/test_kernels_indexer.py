"""The indexer: query and logits, kernels against references."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sm86.backend.kernels import indexer_logits, indexer_query, pages
from sm86.backend.layout import indexer_page
from tests.backend.test_kernels_compress import rope_table

POOL_STRIDE = 1_039_680


@pytest.mark.parametrize("through_e4m3", [False, True])
@pytest.mark.parametrize("heads", [64, 24])
def test_query(through_e4m3: bool, heads: int, device: str) -> None:
    query = torch.randn(5, heads + 3, 128, device=device).to(torch.bfloat16)[:, :heads]
    weights = torch.randn(5, heads + 8, device=device).to(torch.bfloat16)[:, 4 : 4 + heads]
    positions = torch.tensor([0, 1, 7, 100, 299], device=device)
    table = rope_table(300, device)
    want, want_weights = indexer_query.reference(query, weights, positions, table, 0.0110, through_e4m3)
    got, got_weights = indexer_query.launch(query, weights, positions, table, 0.0110, through_e4m3)
    torch.testing.assert_close(got_weights, want_weights, rtol=1e-6, atol=0)
    same = got.float() == want.float()
    assert float(same.float().mean()) > 0.998
    tolerance = 0.13 if through_e4m3 else 0.01
    torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=2e-3)
    if not through_e4m3:
        assert torch.equal(got[0, :, :64], query[0, :, :64]), "dims before the rotated ones are untouched"


def filled_cache(blocks: int, device: str) -> torch.Tensor:
    pool, cache = pages.empty_cache(blocks, indexer_page(), POOL_STRIDE, 64)
    keys = (torch.randn(blocks * 64, 128) * 3).bfloat16().float()
    pages.write_indexer(cache, torch.arange(blocks * 64), keys)
    pool = pool.to(device)
    return torch.as_strided(pool, cache.shape, cache.stride(), 64)


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    if not want.numel():
        return got.shape == want.shape
    scale = want.abs().max().clamp_min(1e-6)
    return bool(((got.double() - want.double()).abs() <= 2e-5 * scale + 1e-5 * want.double().abs()).all())


@pytest.mark.parametrize(("per", "heads"), [(1, 64), (2, 64), (1, 24)])
def test_decode_logits(per: int, heads: int, device: str) -> None:
    cache = filled_cache(9, device)
    width = 4 * 64 + 10
    lengths = torch.tensor([[200], [0], [1], [width + 1000], [64], [-3]], dtype=torch.int32).repeat(1, per).to(device)
    if per == 2:
        lengths[0, 0] -= 1
    table = torch.stack([torch.randperm(9)[:5] for _ in range(6)]).int().to(device)
    query = torch.randn(6, per, heads, 128, device=device).to(torch.bfloat16)
    weights = torch.randn(6 * per, heads, device=device)
    want = indexer_logits.decode_reference(query, weights, cache, lengths, table, width, torch.float64)
    for splits in (1, 3, 40):
        topk = torch.full((6 * per, 512), 7, dtype=torch.int32, device=device)
        got = indexer_logits.launch_decode(query, weights, cache, lengths, table, width, splits, topk)
        for row in range(6 * per):
            length = max(0, min(int(lengths.flatten()[row]), width))
            assert close(got[row, :length], want[row, :length]), (row, splits)
        assert bool((topk == -1).all())


def test_decode_touches_only_what_exists(device: str) -> None:
    """Pages beyond a row's length may hold anything, and block numbers there may be garbage."""
    cache = filled_cache(3, device)
    table = torch.tensor([[1, 2**30, -(2**30)]], dtype=torch.int32, device=device)
    lengths = torch.tensor([[50]], dtype=torch.int32, device=device)
    query = torch.randn(1, 1, 64, 128, device=device).to(torch.bfloat16)
    weights = torch.randn(1, 64, device=device)
    got = indexer_logits.launch_decode(query, weights, cache, lengths, table, 190, 3)
    want = indexer_logits.decode_reference(query, weights, cache, lengths, table, 190, torch.float64)
    assert got.shape[1] % 4 == 0 and close(got[0, :50], want[0, :50])


def test_prefill_logits(device: str) -> None:
    cache = filled_cache(8, device)
    per_request = [70, 0, 131]
    starts = torch.tensor([0, 70, 70, 201], dtype=torch.int32)
    spare = 20
    request_of = torch.cat(
        [torch.full((n,), i, dtype=torch.int32) for i, n in enumerate(per_request)]
        + [torch.full((spare,), 2**30, dtype=torch.int32)]
    )
    table = torch.tensor([[3, 1, 0], [0, 0, 0], [7, 2, 5]], dtype=torch.int32)
    columns = indexer_logits.Columns(request_of.to(device), starts.to(device), table.to(device))
    row_start = torch.tensor([0] * 35 + [70] * 40, dtype=torch.int32)
    row_end = torch.cat((torch.arange(36, 71), torch.arange(162, 202))).int()
    row_end[3] = 0
    query = torch.randn(75, 64, 128, device=device).to(torch.bfloat16)
    weights = torch.randn(75, 64, device=device)
    row_start, row_end = row_start.to(device), row_end.to(device)
    want = indexer_logits.prefill_reference(query, weights, cache, columns, row_start, row_end, torch.float64)
    got = indexer_logits.launch_prefill(query, weights, cache, columns, row_start, row_end)
    assert got.shape == (75, 221)
    seen = torch.isfinite(want)
    assert int(seen.sum()) == int((row_end - row_start).clamp_min(0).sum())
    assert close(got[seen], want[seen])


def test_what_no_row_sees_stays_unwritten(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths at the edges of pages and of the row: the next column, or the next row, belongs to somebody else."""
    empty = torch.empty

    def marked(*shape: Any, **given: Any) -> torch.Tensor:
        return empty(*shape, **given).fill_(-12345.0)

    cache = filled_cache(4, device)
    lengths = torch.tensor([[64], [100], [63], [1], [0], [128]], dtype=torch.int32, device=device)
    table = torch.tensor([[1, 2]] * 6, dtype=torch.int32, device=device)
    query = torch.randn(6, 1, 64, 128, device=device).to(torch.bfloat16)
    weights = torch.randn(6, 64, device=device)
    monkeypatch.setattr(indexer_logits.torch, "empty", marked)
    got = indexer_logits.launch_decode(query, weights, cache, lengths, table, 128, 2)
    for row, length in enumerate(lengths.flatten().tolist()):
        assert bool((got[row, length:] == -12345.0).all()) and not bool((got[row, :length] == -12345.0).any()), row
    columns = indexer_logits.Columns(
        torch.zeros(128, dtype=torch.int32, device=device),
        torch.tensor([0, 128], dtype=torch.int32, device=device),
        table[:1],
    )
    start = torch.tensor([0, 1, 64, 63, 127, 5], dtype=torch.int32, device=device)
    end = torch.tensor([128, 64, 65, 63, 128, 100], dtype=torch.int32, device=device)
    got = indexer_logits.launch_prefill(query[:, 0], weights, cache, columns, start, end)
    at = torch.arange(128, device=device)
    seen = (at >= start[:, None]) & (at < end[:, None])
    assert torch.equal(got != -12345.0, seen)


def test_splits_follow_shapes_only() -> None:
    assert indexer_logits.decode_splits(1, 65536, 64, 82) == 164
    assert indexer_logits.decode_splits(4, 65536, 64, 82) == 41
    assert indexer_logits.decode_splits(1, 100, 64, 82) == 2
    assert indexer_logits.decode_splits(1000, 65536, 64, 82) == 1
