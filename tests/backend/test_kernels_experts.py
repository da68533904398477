"""The routed experts in a fixed order: right against float64, clamped, and the same bits for a token in any company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from sm86.backend.kernels import routed_experts
from sm86.backend.testing.checkpoint import FourBit, pack, unpack


@dataclass
class Layer:
    """Random packed experts as vLLM holds them before Marlin repacks them."""

    size: int
    width: int
    count: int
    device: str

    def __post_init__(self) -> None:
        self.gate_up, self.gate_up_scales = self.packed(2 * self.width, self.size)
        self.down, self.down_scales = self.packed(self.size, self.width)

    def packed(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.randint(-8, 8, (self.count, rows, columns), dtype=torch.int8)
        scales = torch.rand(self.count, columns // 128, rows) * 0.02 + 0.005
        parts = [pack(FourBit(v, s)) for v, s in zip(values, scales, strict=True)]
        words = torch.stack([part["qweight"] for part in parts]).to(self.device)
        return words, torch.stack([part["scales"] for part in parts]).to(self.device, torch.bfloat16)

    def run(self, form, hidden, weights, experts, limit, **more):  # type: ignore[no-untyped-def]
        parts = (self.gate_up, self.gate_up_scales, self.down, self.down_scales)
        return form(hidden, *parts, weights, experts, limit, **more)


def inputs(layer: Layer, tokens: int, chosen: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(tokens, layer.size, device=layer.device).to(torch.bfloat16)
    experts = (
        torch.stack([torch.randperm(layer.count)[:chosen] for _ in range(tokens)]) if tokens else torch.empty(0, 2)
    )
    weights = torch.rand(tokens, chosen, device=layer.device)
    return hidden, weights, experts.reshape(tokens, chosen).to(layer.device, torch.int32)


@pytest.fixture(autouse=True)
def wide_programs(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time for each program, not for each column; one test keeps the served width."""
    if device == "cpu" and request.node.name != "test_it_writes_where_it_is_told":
        monkeypatch.setattr(routed_experts, "COLUMNS", 128)


def test_the_packing_is_the_checkpoints(device: str) -> None:
    layer = Layer(256, 128, 2, device)
    for expert in range(2):
        mine = routed_experts.dequantized(layer.down[expert], layer.down_scales[expert])
        assert torch.equal(mine, unpack(layer.down[expert], layer.down_scales[expert]).t())


@pytest.mark.parametrize("limit", [None, 10.0, 0.5])
@pytest.mark.parametrize(("tokens", "chosen"), [(1, 2), (3, 2), (2, 1), (0, 2)])
def test_against_float64(tokens: int, chosen: int, limit: float | None, device: str) -> None:
    layer = Layer(256, 128, 4, device)
    hidden, weights, experts = inputs(layer, tokens, chosen)
    want = layer.run(routed_experts.reference, hidden, weights, experts, limit, dtype=torch.float64).double()
    got = layer.run(routed_experts.launch, hidden, weights, experts, limit)
    assert got.shape == hidden.shape and got.dtype == torch.bfloat16
    if tokens:
        assert float((got.double() - want).norm() / want.norm()) < 4e-3


def test_the_limit_bites(device: str) -> None:
    layer = Layer(256, 128, 4, device)
    hidden, weights, experts = inputs(layer, 2, 2)
    free, cut = (layer.run(routed_experts.launch, hidden, weights, experts, limit) for limit in (None, 0.5))
    assert float((free - cut).norm() / free.norm()) > 0.3


def test_a_token_has_the_same_bits_in_any_company(device: str) -> None:
    layer = Layer(256, 128, 6, device)
    hidden, weights, experts = inputs(layer, 4, 3)
    together = layer.run(routed_experts.launch, hidden, weights, experts, 0.7)
    parts = [slice(0, 1), slice(1, 3), slice(3, 4)]
    split = [layer.run(routed_experts.launch, hidden[p], weights[p], experts[p], 0.7) for p in parts]
    assert torch.equal(torch.cat(split), together)


def test_it_writes_where_it_is_told(device: str) -> None:
    layer = Layer(256, 128, 3, device)
    hidden, weights, experts = inputs(layer, 1, 2)
    wide = torch.full((1, 512), 7.0, dtype=torch.bfloat16, device=device)
    out = layer.run(routed_experts.launch, hidden, weights, experts.long(), 1.0, out=wide[:, :256])
    assert out.data_ptr() == wide.data_ptr() and torch.all(wide[:, 256:] == 7.0)
    assert torch.equal(wide[:, :256], layer.run(routed_experts.launch, hidden, weights, experts, 1.0))
