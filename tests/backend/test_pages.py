"""Page layouts: what is written is read back, byte positions are the ones vLLM's kernels use, any block stride."""

from __future__ import annotations

import pytest
import torch

from sm86.backend.kernels import e4m3, pages
from sm86.backend.layout import indexer_page, main_page

POOL_STRIDE = 1_039_680


@pytest.mark.parametrize(("entries", "bytes_"), [(64, 37440), (2, 1728)])
def test_page_sizes_of_the_real_caches(entries: int, bytes_: int) -> None:
    assert main_page(entries).padded_bytes == bytes_
    assert indexer_page(64).padded_bytes == 8640


@pytest.mark.parametrize("entries", [64, 2])
@pytest.mark.parametrize("stride", ["raw", "padded", "odd", "pool"])
def test_main_round_trip(entries: int, stride: str) -> None:
    layout = main_page(entries)
    step = {"raw": layout.raw_bytes, "padded": layout.padded_bytes, "odd": layout.padded_bytes + 7, "pool": POOL_STRIDE}
    pool, cache = pages.empty_cache(5, layout, step[stride], offset=1728 * 3, fill=0xA5)
    slots = torch.randperm(5 * entries)[: max(4, 3 * entries)]
    nope = (torch.randn(len(slots), 448) * torch.rand(len(slots), 1) * 9).bfloat16().float()
    rope = torch.randn(len(slots), 64).bfloat16()
    before = pool.clone()
    pages.write_main(cache, slots, nope, rope)
    got = pages.read_main(cache, slots)
    codes, exponent = e4m3.quantize_groups(nope, 64)
    want = (e4m3.decode(codes).unflatten(-1, (7, 64)) * e4m3.power_of_two(exponent).unsqueeze(-1)).flatten(-2)
    assert torch.equal(got[:, :448], want) and torch.equal(got[:, 448:], rope.float())
    assert torch.equal(pages.read_main(cache, slots, torch.bfloat16).float(), got), "exact in bf16"
    touched = torch.zeros_like(pool, dtype=torch.bool)
    for slot in slots.tolist():
        base = 1728 * 3 + slot // entries * step[stride]
        entry = slot % entries
        touched[base + layout.record_offset(entry) :][:576] = True
        touched[base + layout.scale_offset(entry) :][:8] = True
    assert torch.equal(pool[~touched], before[~touched]), "nothing outside the entries is written"


def test_main_entry_byte_by_byte() -> None:
    pool, cache = pages.empty_cache(3, main_page(64), POOL_STRIDE, offset=37440)
    nope = torch.randn(1, 448).bfloat16().float()
    rope = torch.randn(1, 64).bfloat16()
    pages.write_main(cache, torch.tensor([64 + 5]), nope, rope)
    record = 37440 + POOL_STRIDE + 5 * 576
    scale = 37440 + POOL_STRIDE + 64 * 576 + 5 * 8
    assert torch.equal(pool[record + 448 : record + 576].view(torch.bfloat16), rope[0])
    for group in range(7):
        byte = int(pool[scale + group])
        absmax = float(nope[0, group * 64 : group * 64 + 64].abs().max())
        assert 2.0 ** (byte - 127) * 448 >= absmax > 2.0 ** (byte - 128) * 448
    assert int(pool[scale + 7]) == 0


def test_negative_slots_read_as_zeros() -> None:
    _, cache = pages.empty_cache(1, main_page(64), 37440)
    pages.write_main(cache, torch.arange(64), torch.ones(64, 448), torch.ones(64, 64))
    got = pages.read_main(cache, torch.tensor([[3, -1]]))
    assert float(got[0, 0].min()) == 1.0 and float(got[0, 1].abs().max()) == 0.0


@pytest.mark.parametrize("stride", [8448, 8640, 8643 + 1, POOL_STRIDE])
def test_indexer_round_trip(stride: int) -> None:
    pool, cache = pages.empty_cache(4, indexer_page(), stride, offset=64)
    slots = torch.randperm(256)[:100]
    keys = (torch.randn(100, 128) * 3).bfloat16().float()
    pages.write_indexer(cache, slots, keys)
    got = pages.read_indexer(cache, slots)
    assert bool(((got - keys).abs() <= keys.abs() / 16 + 1e-4).all())
    slot = int(slots[7])
    base = 64 + slot // 64 * stride
    scale = pool[base + 8192 + slot % 64 * 4 :][:4].clone().view(torch.float32)
    raw = pool[base + slot % 64 * 128 :][:128].view(torch.float8_e4m3fn).float()
    assert torch.equal(raw * scale, got[7])


def test_a_scale_beyond_the_decode_is_refused() -> None:
    _, cache = pages.empty_cache(1, main_page(2), 1728)
    pages.write_main(cache, torch.tensor([0]), torch.full((1, 448), 57344.0), torch.zeros(1, 64))
    with pytest.raises(ValueError, match="scale byte 135"):
        pages.write_main(cache, torch.tensor([0]), torch.full((1, 448), 57856.0), torch.zeros(1, 64))


@pytest.mark.parametrize("shape", [(1, 64, 576), (1, 64, 512), (1, 4, 100)])
def test_unknown_widths_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="entries of"):
        pages.layout_of(torch.zeros(shape, dtype=torch.uint8))


def test_overlapping_pages_are_refused() -> None:
    pool = torch.zeros(100000, dtype=torch.uint8)
    with pytest.raises(ValueError, match="block stride"):
        pages.layout_of(torch.as_strided(pool, (2, 64, 584), (30000, 584, 1)))
