"""The references against transformers' own modules, which were written by others from the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sm86.backend.attention.reference import Source, attend
from sm86.backend.kernels import compress, output_projection, pages
from sm86.backend.layout import main_page
from sm86.backend.testing import checkpoint as making

modeling = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
YARN = {
    "rope_type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 65536,
    "beta_fast": 32,
    "beta_slow": 1,
}


def config():
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

    return DeepseekV4Config(
        num_hidden_layers=2,
        hidden_size=256,
        vocab_size=64,
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
        n_routed_experts=4,
        moe_intermediate_size=64,
        rope_parameters=dict(YARN),
        q_lora_rank=64,
        num_attention_heads=8,
        o_groups=2,
    )


def rope_table(rows: int) -> torch.Tensor:
    cos, sin = modeling.DeepseekV4RotaryEmbedding(config())(
        torch.zeros(1), torch.arange(rows).view(1, -1), layer_type="compress"
    )
    return torch.cat([cos[0], sin[0]], -1)


def test_window_only_layers_turn_as_in_transformers() -> None:
    from sm86.backend.hooks.rope_tables import plain_table

    rotary = modeling.DeepseekV4RotaryEmbedding(config())
    cos, sin = rotary(torch.zeros(1), torch.arange(3000).view(1, -1), layer_type="main")
    table = plain_table(3000, 64, 10000.0, "cpu")
    torch.testing.assert_close(table, torch.cat([cos[0], sin[0]], -1), rtol=0, atol=1e-6)
    # what vLLM builds is another table: two degrees apart at the window's far end
    stretched = dict(config().rope_parameters["compress"]) | {"rope_theta": 10000.0}
    other = modeling.DeepseekV4RotaryEmbedding(
        type(config())(rope_parameters={"main": stretched, "compress": stretched})
    )
    angles = (rotary.main_inv_freq - other.main_inv_freq).abs() * 127
    assert 1.5 < float(torch.rad2deg(angles).max()) < 2.5


@pytest.mark.parametrize(("name", "ratio", "overlap", "rows"), [("CSA", 4, True, 4), ("HCA", 128, False, 8)])
def test_compressors(name: str, ratio: int, overlap: bool, rows: int) -> None:
    module = getattr(modeling, f"DeepseekV4{name}Compressor")(config()).float()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    module.kv_norm.weight.data.normal_(1, 0.1)
    length, factor = 300, 2 if overlap else 1
    hidden = torch.randn(1, length, 256)
    positions = torch.arange(length).view(1, -1)
    if overlap:

        class NoIndexer(torch.nn.Module):
            def forward(self, *_: object) -> torch.Tensor:
                return torch.full((1, length, 1), -1)

        module.indexer = NoIndexer()
    want = module(hidden, None, positions, None, 0)[0][0, 0]
    key = module.kv_proj(hidden)[0]
    score = module.gate_proj(hidden)[0] + module.position_bias[torch.arange(length) % ratio]
    blocks = -(-length // rows)
    table = (torch.randperm(blocks) + 1).view(1, -1).int()
    state = torch.full((blocks + 1, rows, 2 * factor * 512), float("nan"))
    at = torch.arange(length)
    state[table[0, at // rows].long(), at % rows] = torch.cat([key, score], -1)
    closes = (at + 1) % ratio == 0
    entries = torch.where(closes, at // ratio, -1)
    window = compress.Window(
        state, table, torch.zeros(length, dtype=torch.int32), at, torch.zeros_like(at), entries, ratio, overlap
    )
    tokens = closes.nonzero().squeeze(-1)
    from sm86.backend.kernels.rope import rotate_tail

    pooled = compress.pooled(window, tokens, 512, module.kv_norm.weight, 1e-6)
    got = rotate_tail(pooled, rope_table(length), at[tokens] // ratio * ratio)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-4)


def test_output_projection() -> None:
    grouped = modeling.DeepseekV4GroupedLinear(8 * 512 // 2, 2 * 32, 2).float()
    out = torch.randn(7, 8, 512).to(torch.bfloat16)
    table = rope_table(7)
    cos, sin = table[:, :32].unsqueeze(0), table[:, 32:].unsqueeze(0)
    turned = modeling.apply_rotary_pos_emb(out.float().view(1, 7, 8, 512).transpose(1, 2), cos, -sin).transpose(1, 2)
    want = grouped(turned.reshape(1, 7, 2, -1)).flatten(2)[0]
    got = output_projection.reference(out, torch.arange(7), table, grouped.weight.data, 2, torch.float64)
    assert float((got - want).norm() / want.norm()) < 5e-3, "the reference rounds to bf16 between rotation and product"


def test_attention_with_a_sink() -> None:
    """transformers' eager attention with sinks, on the dequantized entries."""
    _, cache = pages.empty_cache(2, main_page(64), 37440)
    value = torch.randn(128, 512)
    pages.write_main(cache, torch.arange(128), value[:, :448].bfloat16().float(), value[:, 448:])
    keys = pages.read_main(cache, torch.arange(100)).view(1, 1, 100, 512)
    query, sink = torch.randn(3, 8, 512).to(torch.bfloat16), torch.randn(8)

    class Holder(torch.nn.Module):
        num_key_value_groups = 8
        sinks = sink

    Holder.training = False
    want, _ = modeling.eager_attention_forward(
        Holder().eval(), query.float().transpose(0, 1).unsqueeze(0), keys, keys, None, scaling=512**-0.5
    )
    index = torch.arange(128, dtype=torch.int32).repeat(3, 1)
    got = attend(query, [Source(cache, index, torch.full((3,), 100, dtype=torch.int32))], sink, 512**-0.5)
    torch.testing.assert_close(got.float(), want[0], rtol=1e-3, atol=1e-4)


def test_the_reference_loads_a_made_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor finds its place, and the variants differ as little as their names say."""
    pytest.importorskip("safetensors")
    from sm86.backend.testing import reference as parity

    for name, number in {"HIDDEN": 256, "QUERY_RANK": 128, "OUTPUT_RANK": 128, "EXPERT_WIDTH": 128}.items():
        monkeypatch.setattr(making, name, number)
    monkeypatch.setattr(parity, "EXPERT_WIDTH", 128)
    making.write(tmp_path, making.Shape(4, 6, 320, 1, 2.0, 8, 1), "cpu")
    model = parity.Reference(tmp_path, "cpu")
    tokens = torch.randint(0, 320, (150,)).tolist()
    scores = {}
    for variant in parity.VARIANTS:
        model.use(variant)
        scores[variant] = model.score(tokens).logprob
        assert scores[variant].shape == (149,) and bool(torch.isfinite(scores[variant]).all())

    def distance(a: str, b: str) -> float:
        return float((scores[a] - scores[b]).abs().mean())

    assert distance("plain", "rounded") > 0 and distance("rounded", "bf16") > 0
    assert distance("rounded", "bf16") < 1.0
    assert json.loads((tmp_path / "config.json").read_text())["swiglu_limit"] == 2.0
