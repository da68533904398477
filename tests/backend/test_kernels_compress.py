"""The compressors: the kernel against its reference, at real widths, with scattered pages and a strided pool."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sm86.backend.kernels import compress, pages
from sm86.backend.layout import indexer_page, main_page

FORMS = {"c4": (4, True, 512, 4), "c128": (128, False, 512, 8), "indexer": (4, True, 128, 4)}
POOL_STRIDE = 1_039_680


def rope_table(rows: int, device: str) -> torch.Tensor:
    angle = torch.arange(rows).unsqueeze(1) * (10000.0 ** (-torch.arange(32) / 32))
    return torch.cat((angle.cos(), angle.sin()), -1).to(device)


def build(form: str, lengths: list[int], device: str) -> tuple[compress.Window, torch.Tensor, torch.Tensor]:
    """Requests prefilled from position 0, their state and entry pages scattered over one strided pool each."""
    ratio, overlap, dims, rows = FORMS[form]
    width = dims * (2 if overlap else 1)
    layout = indexer_page() if dims == 128 else main_page(64 if ratio == 4 else 2)
    blocks = [-(-n // rows) for n in lengths]
    order = (torch.randperm(sum(blocks)) + 1).tolist()
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    positions, requests, state_slots, entry_slots = [], [], [], []
    entries_per_request = -(-max(lengths) // ratio // layout.entries) + 1
    for request, length in enumerate(lengths):
        mine = order[sum(blocks[:request]) : sum(blocks[: request + 1])]
        table[request, : len(mine)] = torch.tensor(mine)
        for position in range(length):
            positions.append(position)
            requests.append(request)
            state_slots.append(mine[position // rows] * rows + position % rows)
            closes = (position + 1) % ratio == 0
            entry = position // ratio
            block = request * entries_per_request + entry // layout.entries
            entry_slots.append(block * layout.entries + entry % layout.entries if closes else -1)
    pool = torch.full(((sum(blocks) + 1) * (2 * width * rows + 36),), float("nan"))
    state = torch.as_strided(pool, (sum(blocks) + 1, rows, 2 * width), (2 * width * rows + 36, 2 * width, 1), 0)
    for block, row in ((slot // rows, slot % rows) for slot in state_slots):
        state[block, row] = torch.randn(2 * width) * 2
    _, cache = pages.empty_cache(len(lengths) * entries_per_request, layout, POOL_STRIDE, 576, device)
    window = compress.Window(
        state=state.to(device),
        block_table=table.to(device),
        requests=torch.tensor(requests, dtype=torch.int32, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        state_slots=torch.tensor(state_slots, dtype=torch.int64, device=device),
        entry_slots=torch.tensor(entry_slots, dtype=torch.int64, device=device),
        ratio=ratio,
        overlap=overlap,
    )
    weight = (torch.randn(dims) * 0.2 + 1.5).to(torch.bfloat16).to(device)
    return window, cache, weight


def blank(cache: torch.Tensor) -> torch.Tensor:
    """A cache of zeros, laid out as `cache` in a pool of its own."""
    pool = torch.zeros(cache.untyped_storage().nbytes(), dtype=torch.uint8, device=cache.device)
    return torch.as_strided(pool, cache.shape, cache.stride(), cache.storage_offset())


def written(window: compress.Window) -> torch.Tensor:
    return window.entry_slots[window.entry_slots >= 0]


@pytest.mark.parametrize("form", FORMS)
def test_kernel_against_reference(form: str, device: str) -> None:
    lengths = [9, 4, 130] if form != "c128" else [256, 130]
    window, cache, weight = build(form, lengths, device)
    want, got = blank(cache), cache
    table = rope_table(300, device)
    compress.reference(window, want, table, weight, 1e-6)
    compress.launch(window, got, table, weight, 1e-6)
    read = pages.read_indexer if FORMS[form][2] == 128 else pages.read_main
    slots = written(window)
    a, b = read(want, slots).double(), read(got, slots).double()
    # Both round the same fp32 value; a last-bit difference may flip one e4m3 code to its neighbour, rarely.
    step = a.abs() / 8 + 1e-6
    assert bool(((a - b).abs() <= step).all())
    assert float(((a - b) != 0).double().mean()) < 2e-3
    exact = compress.pooled(
        dataclasses.replace(window, state=window.state.double()),
        (window.entry_slots >= 0).nonzero().squeeze(-1),
        FORMS[form][2],
        weight,
        1e-6,
    )
    head = exact[:, : FORMS[form][2] - 64]
    error = (b[:, : head.shape[1]] - head).norm() / head.norm()
    assert float(error) < 0.03, "e4m3 keeps four significant bits"


@pytest.mark.parametrize("form", FORMS)
def test_only_closing_tokens_write(form: str, device: str) -> None:
    window, cache, weight = build(form, [131], device)
    silent = dataclasses.replace(window, entry_slots=torch.where(window.entry_slots >= 0, -1, window.entry_slots))
    before = cache.clone()
    compress.launch(silent, cache, rope_table(300, device), weight, 1e-6)
    assert torch.equal(cache, before)
    padded = dataclasses.replace(window, state_slots=torch.full_like(window.state_slots, -1))
    compress.launch(padded, cache, rope_table(300, device), weight, 1e-6)
    assert torch.equal(cache, before)
    compress.launch(window, cache, rope_table(300, device), weight, 1e-6)
    assert not torch.equal(cache, before)


def test_the_first_c4_window_has_no_past(device: str) -> None:
    """At position 3 the window's first half lies before the sequence: the unused block must not leak in."""
    window, cache, weight = build("c4", [4], device)
    table = rope_table(300, device)
    compress.launch(window, cache, table, weight, 1e-6)
    first = pages.read_main(cache, written(window)).clone()
    assert bool(torch.isfinite(first).all()), "rows before the sequence are NaN in this pool"
    key = window.state[window.block_table[0, 0], :4, 512:1024]
    score = window.state[window.block_table[0, 0], :4, 1024 + 512 :]
    mean = (key * torch.softmax(score, 0)).sum(0)
    want = mean * torch.rsqrt(mean.square().mean() + 1e-6) * weight.float()
    assert float((first[0, :448] - want[:448]).norm() / want[:448].norm()) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_every_byte_of_an_entry_and_none_beside_it(form: str, device: str) -> None:
    """On pages full of other bytes: each closed window's entry is whole, its padding zero, the rest as before."""
    window, strided, weight = build(form, [131], device)
    layout = pages.layout_of(strided)
    pool, cache = pages.empty_cache(strided.shape[0], layout, strided.stride(0), 576, device, fill=0xA5)
    compress.launch(window, cache, rope_table(300, device), weight, 1e-6)
    touched = torch.zeros_like(pool, dtype=torch.bool)
    for slot in written(window).tolist():
        base, entry = 576 + slot // layout.entries * cache.stride(0), slot % layout.entries
        touched[base + layout.record_offset(entry) :][: layout.record_bytes] = True
        touched[base + layout.scale_offset(entry) :][: layout.scale_bytes] = True
        if layout.name == "main":
            assert int(pool[base + layout.scale_offset(entry) + 7]) == 0, "the eighth scale byte"
    assert bool((pool[~touched] == 0xA5).all()) and int(touched.sum()) == len(written(window)) * layout.entry_bytes
    assert float((pool[touched] == 0xA5).float().mean()) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_small_values_are_normalised_with_epsilon(form: str, device: str) -> None:
    window, cache, weight = build(form, [130], device)
    quiet = dataclasses.replace(window, state=window.state.nan_to_num() * 1e-2)
    want = blank(cache)
    table = rope_table(300, device)
    compress.reference(quiet, want, table, weight, 1e-3)
    compress.launch(quiet, cache, table, weight, 1e-3)
    read = pages.read_indexer if FORMS[form][2] == 128 else pages.read_main
    a, b = read(want, written(window)).double(), read(cache, written(window)).double()
    assert float((a - b).norm() / a.norm()) < 1e-2
    assert float(a.square().mean().sqrt()) < 0.8 * float(weight.float().mean()), "epsilon counts here"


@pytest.mark.parametrize("form", FORMS)
def test_a_scale_has_a_least_value(form: str, device: str) -> None:
    """Values so small that the scale is the least the cache knows, 2^-22, as vLLM's own writers bound it."""
    window, cache, weight = build(form, [130], device)
    silent = dataclasses.replace(window, state=window.state.nan_to_num() * 1e-7)
    compress.launch(silent, cache, rope_table(300, device), weight, 1.0)
    layout = pages.layout_of(cache)
    slot = int(written(window)[0])
    at = 576 + slot // layout.entries * cache.stride(0) + layout.scale_offset(slot % layout.entries)
    bytes_ = torch.as_strided(cache, (layout.scale_bytes,), (1,), at).contiguous()
    if layout.name == "main":
        assert bytes_.tolist() == [127 - 22] * 7 + [0]
    else:
        assert float(bytes_.view(torch.float32)) == 2.0**-22
