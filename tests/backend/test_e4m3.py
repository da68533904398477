"""e4m3 by integers against torch's own type, exhaustively."""

from __future__ import annotations

import pytest
import torch

from sm86.backend.kernels import e4m3

ALL_CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8)
FINITE = (ALL_CODES & 0x7F) != 0x7F


def all_bf16() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def torch_encode(values: torch.Tensor) -> torch.Tensor:
    return values.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def same_codes(got: torch.Tensor, values: torch.Tensor) -> bool:
    nan = torch.isnan(values.float()).cpu()
    want = torch_encode(values.cpu())
    got = got.cpu()
    return torch.equal(got[~nan], want[~nan]) and bool(((got[nan] & 0x7F) == 0x7F).all())


def test_decode_all_codes(device: str) -> None:
    want = ALL_CODES.view(torch.float8_e4m3fn).float()
    got = e4m3.decode(ALL_CODES)
    assert torch.equal(got[FINITE], want[FINITE])
    assert bool(torch.isnan(got[~FINITE]).all())
    on_device = e4m3.decode_on_device(ALL_CODES.to(device)).cpu()
    assert torch.equal(on_device[FINITE].view(torch.int32), want[FINITE].view(torch.int32)), "signs of zero included"


def test_encode_all_bf16(device: str) -> None:
    values = all_bf16()
    assert same_codes(e4m3.encode(values), values)
    assert same_codes(e4m3.encode_on_device(values.to(device)), values)


def test_encode_ties_and_their_neighbours(device: str) -> None:
    codes = e4m3.decode(ALL_CODES)[FINITE].unique()
    tie = (codes[1:] + codes[:-1]) / 2
    up, down = torch.nextafter(tie, torch.tensor(1e9)), torch.nextafter(tie, torch.tensor(-1e9))
    values = torch.cat((codes, tie, up, down, torch.tensor([464.0, 465.0, 1e30, -1e30, float("inf"), 0.0, -0.0])))
    assert same_codes(e4m3.encode(values), values)
    assert same_codes(e4m3.encode_on_device(values.to(device)), values)


def test_encode_random_fp32(device: str) -> None:
    values = torch.cat([torch.randn(20000) * 10.0**power for power in range(-6, 4)])
    assert same_codes(e4m3.encode(values), values)
    assert same_codes(e4m3.encode_on_device(values.to(device)), values)


def test_scale_exponent_is_exact_at_powers_of_two() -> None:
    exponent = torch.arange(-20, 40)
    exact = 448.0 * e4m3.power_of_two(exponent)
    above = torch.nextafter(exact, torch.tensor(1e30))
    # 1/448 is not exact, so the product may land a bit off 2^k; what must hold is that the scaled maximum still fits.
    for values in (exact, above, torch.rand(5000) * 1000 + 1e-5):
        scaled = values.clamp_min(1e-4) * e4m3.power_of_two(-e4m3.scale_exponent(values))
        assert float(scaled.max()) <= 448.0001 and float(scaled.min()) >= 223.9


@pytest.mark.parametrize("group", [64, 128])
def test_round_trip_error_is_half_a_step(group: int) -> None:
    values = (torch.randn(64, 4 * group) * torch.rand(64, 1) * 50).bfloat16().float()
    codes, exponent = e4m3.quantize_groups(values, group)
    back = e4m3.decode(codes).unflatten(-1, (-1, group)) * e4m3.power_of_two(exponent).unsqueeze(-1)
    error = (back.flatten(-2) - values).abs()
    step = torch.maximum(values.abs() / 16, (e4m3.power_of_two(exponent) * 2.0**-10).repeat_interleave(group, -1))
    assert bool((error <= step).all())
