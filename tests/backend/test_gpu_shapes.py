"""Kernels at the shapes that serving launches, against float64, with fresh inputs. Needs a GPU."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from sm86.backend.kernels import compress, indexer_logits, mhc_gemm, output_projection, pages
from sm86.backend.layout import indexer_page, main_page
from tests.backend.test_attention_reference import SCALE, random_cache, random_source, relative
from tests.backend.test_kernels_compress import FORMS, rope_table

POOL_STRIDE = 1_039_680


@pytest.fixture(autouse=True)
def gpu_only(device: str) -> None:
    if device != "cuda":
        pytest.skip("real shapes need a GPU (SM86_TEST_DEVICE=cuda)")
    torch.manual_seed(time.time_ns() % 2**31)


@pytest.mark.parametrize("form", FORMS)
def test_compress_a_chunk_far_into_a_sequence(form: str) -> None:
    """512 tokens that end at position 262143, in a pool with entries beyond 2^31 bytes."""
    ratio, overlap, dims, rows = FORMS[form]
    tokens, last = 512, 262144
    width = dims * (2 if overlap else 1)
    layout = indexer_page() if dims == 128 else main_page(64 if ratio == 4 else 2)
    blocks = -(-last // rows)
    table = torch.zeros(1, blocks, dtype=torch.int32, device="cuda")
    live = -(-(tokens + 2 * ratio) // rows) + 2
    table[0, -live:] = torch.randperm(live, device="cuda").int() + 1
    state = torch.randn(live + 1, rows, 2 * width, device="cuda") * 2
    positions = torch.arange(last - tokens, last, device="cuda")
    slots = table[0, positions // rows].long() * rows + positions % rows
    pool_blocks = 2400
    _, cache = pages.empty_cache(pool_blocks, layout, POOL_STRIDE, 576, "cuda")
    count = tokens // ratio
    free = torch.randperm(pool_blocks * layout.entries, device="cuda")[:count]
    free[0] = pool_blocks * layout.entries - 1
    entries = torch.full((tokens,), -1, dtype=torch.int64, device="cuda")
    entries[(positions + 1) % ratio == 0] = free
    weight = (torch.randn(dims, device="cuda") * 0.2 + 1.5).to(torch.bfloat16)
    requests = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    window = compress.Window(state, table, requests, positions, slots, entries, ratio, overlap)
    rope = rope_table(last, "cuda")
    compress.launch(window, cache, rope, weight, 1e-6)
    read = pages.read_indexer if dims == 128 else pages.read_main
    got = read(cache, free).double()
    exact = compress.pooled(
        dataclasses.replace(window, state=state.double()), (entries >= 0).nonzero().squeeze(-1), dims, weight, 1e-6
    )
    head = dims - 64
    error = (got[:, :head] - exact[:, :head]).norm() / exact[:, :head].norm()
    assert float(error) < 0.03, float(error)
    # The rotated tail: bf16 in main pages, e4m3 in indexer pages.
    from sm86.backend.kernels.rope import rotate_tail

    turned = rotate_tail(exact, rope, positions[(positions + 1) % ratio == 0] // ratio * ratio).double()
    tail = (got[:, head:] - turned[:, head:]).norm() / turned[:, head:].norm()
    assert float(tail) < (0.03 if dims == 128 else 3e-3), float(tail)


def indexer_cache(blocks: int) -> torch.Tensor:
    _, cache = pages.empty_cache(blocks, indexer_page(), POOL_STRIDE, 64, "cuda")
    for first in range(0, blocks, 256):
        slots = torch.arange(first * 64, min(blocks, first + 256) * 64, device="cuda")
        keys = (torch.randn(len(slots), 128, device="cuda") * 3).bfloat16().float()
        pages.write_indexer(cache, slots, keys)
    return cache


def close_to(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool(((got.double() - want).abs() <= 2e-5 * want.abs().max() + 1e-5 * want.abs()).all())


@pytest.mark.parametrize("rows", [1, 4])
def test_decode_logits_at_262144_tokens(rows: int) -> None:
    cache = indexer_cache(2300)
    width = 65536
    table = torch.stack([torch.randperm(2300, device="cuda")[:1024] for _ in range(rows)]).int()
    lengths = torch.tensor([[65536], [65535], [12345], [64]][:rows], dtype=torch.int32, device="cuda")
    query = torch.randn(rows, 1, 64, 128, device="cuda").to(torch.bfloat16)
    weights = torch.randn(rows, 64, device="cuda") * 0.01
    splits = indexer_logits.decode_splits(rows, width, 64, 132)
    got = indexer_logits.launch_decode(query, weights, cache, lengths, table, width, splits)
    want = indexer_logits.decode_reference(query, weights, cache, lengths, table, width, torch.float64)
    for row in range(rows):
        length = int(lengths[row])
        assert close_to(got[row, :length], want[row, :length])


def test_prefill_logits_of_a_chunk_at_65536_tokens() -> None:
    cache = indexer_cache(600)
    count, rows = 16384, 512
    table = torch.randperm(600, device="cuda")[:256].int().unsqueeze(0)
    columns = indexer_logits.Columns(
        torch.zeros(count, dtype=torch.int32, device="cuda"),
        torch.tensor([0, count], dtype=torch.int32, device="cuda"),
        table,
    )
    ends = ((torch.arange(65536 - rows, 65536, device="cuda") + 1) // 4).int()
    query = torch.randn(rows, 64, 128, device="cuda").to(torch.bfloat16)
    weights = torch.randn(rows, 64, device="cuda") * 0.01
    got = indexer_logits.launch_prefill(query, weights, cache, columns, torch.zeros_like(ends), ends)
    picked = [0, 1, 17, 255, 511]
    want = indexer_logits.prefill_reference(
        query[picked], weights[picked], cache, columns, torch.zeros_like(ends[picked]), ends[picked], torch.float64
    )
    seen = torch.isfinite(want)
    assert close_to(got[picked][seen], want[seen])


@pytest.mark.parametrize(("kind", "tokens"), [("c4", 512), ("c128", 64), ("window", 512)])
def test_attention_of_a_prefill_chunk(kind: str, tokens: int) -> None:
    from sm86.backend.attention import native
    from sm86.backend.attention.reference import attend

    cache = random_cache(300, 64, POOL_STRIDE, "cuda")
    window = random_source(cache, tokens, 128, [128])
    extra = random_source(cache, tokens, 512, [512]) if kind == "c4" else None
    if kind == "c128":
        extra = random_source(random_cache(2200, 2, 1728, "cuda"), tokens, 3072, [3072, 2048, 17])
    query = torch.randn(tokens, 8, 512, device="cuda").to(torch.bfloat16)
    sink = torch.randn(8, device="cuda")
    out = torch.empty_like(query)
    native.attend(query, window, extra, sink, SCALE, out)
    for first in range(0, tokens, 64):
        rows = slice(first, first + 64)
        sources = [dataclasses.replace(s, index=s.index[rows], length=s.length[rows]) for s in (window, extra) if s]
        assert relative(out[rows], attend(query[rows], sources, sink, SCALE)) < 6e-3


@pytest.mark.parametrize(("heads", "groups"), [(8, 1), (64, 8)])
@pytest.mark.parametrize("tokens", [1, 512])
def test_output_projection_at_real_widths(heads: int, groups: int, tokens: int) -> None:
    attention = torch.randn(tokens, heads, 512, device="cuda").to(torch.bfloat16)
    positions = torch.randint(0, 262144, (tokens,), device="cuda")
    weight = (torch.randn(groups * 1024, heads * 512 // groups, device="cuda") * 0.05).to(torch.bfloat16)
    table = rope_table(262144, "cuda")
    want = output_projection.reference(attention, positions, table, weight, groups, torch.float64)
    got = output_projection.launch(attention, positions, table, weight, groups)
    assert float((got.double() - want).norm() / want.norm()) < 4e-3


@pytest.mark.parametrize("tokens", [1, 512])
def test_mhc_gemm_at_real_widths(tokens: int) -> None:
    hidden, matrix = torch.randn(tokens, 4096, device="cuda").to(torch.bfloat16), torch.randn(24, 4096, device="cuda")
    out, squares = torch.empty(16, tokens, 24, device="cuda"), torch.empty(16, tokens, device="cuda")
    mhc_gemm.launch(hidden, matrix, out, squares, 16)
    want = hidden.double() @ matrix.double().t()
    assert float((out.double().sum(0) - want).norm() / want.norm()) < 1e-6
    assert float((squares.double().sum(0) - hidden.double().square().sum(1)).norm()) < 1e-2
