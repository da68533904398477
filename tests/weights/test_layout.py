"""Which tensors the published checkpoint holds, with shapes written down by hand from the model's sizes."""

from __future__ import annotations

from typing import Any

import pytest

from sm86.weights import layout, names, quantization
from sm86.weights.layout import ConfigFault
from tests.weights.checkpoints import QUANTIZATION, config, small

PUBLISHED = layout.expected(config())


@pytest.mark.parametrize(
    ("name", "types", "shape"),
    [
        ("embed.weight", "BF16 F16 F32", (129280, 4096)),
        ("head.weight", "BF16 F16 F32", (129280, 4096)),
        ("hc_head_fn", "BF16 F16 F32", (4, 16384)),
        ("layers.0.hc_attn_fn", "BF16 F16 F32", (24, 16384)),
        ("layers.42.hc_ffn_base", "BF16 F16 F32", (24,)),
        ("layers.0.attn.wq_a.qweight", "I32", (512, 1024)),
        ("layers.0.attn.wq_b.qweight", "I32", (128, 32768)),
        ("layers.0.attn.wq_b.scales", "F16 BF16", (8, 32768)),
        ("layers.0.attn.wkv.qzeros", "I32", (32, 64)),
        ("layers.0.attn.wo_a.weight", "BF16 F16 F32", (8192, 4096)),
        ("layers.0.attn.wo_b.qweight", "I32", (1024, 4096)),
        ("layers.0.attn.attn_sink", "BF16 F16 F32", (64,)),
        ("layers.2.attn.compressor.wkv.weight", "BF16 F16 F32", (1024, 4096)),
        ("layers.2.attn.compressor.ape", "BF16 F16 F32", (4, 1024)),
        ("layers.3.attn.compressor.wgate.weight", "BF16 F16 F32", (512, 4096)),
        ("layers.3.attn.compressor.ape", "BF16 F16 F32", (128, 512)),
        ("layers.2.attn.indexer.compressor.wkv.weight", "BF16 F16 F32", (256, 4096)),
        ("layers.2.attn.indexer.wq_b.qweight", "I32", (128, 8192)),
        ("layers.2.attn.indexer.weights_proj.weight", "BF16 F16 F32", (64, 4096)),
        ("layers.0.ffn.gate.weight", "BF16 F16 F32", (256, 4096)),
        ("layers.2.ffn.gate.tid2eid", "I32 I64", (129280, 6)),
        ("layers.3.ffn.gate.bias", "BF16 F16 F32", (256,)),
        ("layers.42.ffn.experts.255.w1.qweight", "I32", (512, 2048)),
        ("layers.42.ffn.experts.255.w2.qweight", "I32", (256, 4096)),
        ("layers.42.ffn.experts.255.w2.qzeros", "I32", (16, 512)),
        ("layers.42.ffn.shared_experts.w3.scales", "F16 BF16", (32, 2048)),
    ],
)
def test_shapes_of_the_published_checkpoint(name: str, types: str, shape: tuple[int, ...]) -> None:
    assert " ".join(form.dtype for form in PUBLISHED[name]) == types
    assert {form.shape for form in PUBLISHED[name]} == {shape}


def test_how_many_there_are() -> None:
    qweights = [name for name in PUBLISHED if name.endswith(".qweight")]
    # 43 layers of 256 experts and one shared with three linears each, four of attention; 21 indexers
    assert len(qweights) == 43 * (3 * 257 + 4) + 21 == 33_346
    compressors = [name for name in PUBLISHED if name.endswith("attn.compressor.wkv.weight")]
    indexers = [name for name in PUBLISHED if name.endswith("indexer.weights_proj.weight")]
    assert (len(compressors), len(indexers)) == (41, 21)
    assert not any(name.startswith(("layers.0.attn.compressor", "layers.1.attn.compressor")) for name in PUBLISHED)
    assert not any(name.startswith("layers.3.attn.indexer") for name in PUBLISHED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"vocab_size": 10**30}, "too many digits"),
        ({"n_routed_experts": 0}, "n_routed_experts is 0"),
        ({"num_hidden_layers": 5000}, "5000 layers"),
        ({"compress_ratios": [0, 3]}, "compress_ratios"),
        ({"compress_ratios": [4]}, "1 entries for 4 layers"),
        ({"compress_ratios": 7}, "compress_ratios"),
        ({"num_hidden_layers": 500, "n_routed_experts": 4000, "compress_ratios": [0] * 500}, "no such model"),
        ({"hidden_size": 100}, "does not divide"),
        ({"o_groups": 3}, "do not divide by 3"),
    ],
)
def test_configs_that_no_layout_follows_from(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        layout.expected(small(**changes))


@pytest.mark.parametrize(
    ("extra", "bits"),
    [
        (None, 4),
        ({}, 4),
        ({"layers.0.attn.wo_a": {"bits": 16}}, 16),
        ({"model.layers.0.attn.wo_a": {"bits": 16}}, 16),
        ({"layers.1.attn.wo_a": {"bits": 16}}, 4),
        ({r".*\.wo_a": {"bits": 16}}, 16),
        ({r".*wo_a": {"group_size": 32}}, 4),
        # a dot alone makes no pattern for vLLM
        ({"attn.wo_a": {"bits": 16}}, 4),
        ({"(": {"bits": 16}}, 4),
        ({"layers.0.attn.wo_a": 16}, None),
        ([], 4),
        ("x", None),
    ],
)
def test_bits_are_read_as_vllm_reads_them(extra: Any, bits: int | None) -> None:
    assert quantization.bits_of({**QUANTIZATION, "extra_config": extra}, "layers.0.attn.wo_a") == bits


@pytest.mark.parametrize("blocks", ["layers", "layers,mtp.", ["layers"]])
def test_a_block_name_without_its_dot(blocks: Any) -> None:
    assert "without a dot" in quantization.packing_faults({**QUANTIZATION, "block_name_to_quantize": blocks})[0]
    assert quantization.packing_faults({**QUANTIZATION, "block_name_to_quantize": "layers."}) == []


def test_the_draft_layer_is_nobody_s_business() -> None:
    assert quantization.wrongly_quantized(small(), ["mtp.0.ffn.gate.qweight"]) == {}
    assert not any(name.startswith(names.DRAFT_PREFIX) for name in PUBLISHED)


@pytest.mark.parametrize("pattern", ["([a-z.0-9_]+)*Z", "((a|a))+Z", "(x){2,}"])
def test_a_pattern_that_might_be_looked_for_without_end_is_none(pattern: str) -> None:
    """The first takes longer for one name than anybody waits."""
    section = {**QUANTIZATION, "extra_config": {pattern: {"bits": 16}}}
    assert quantization.bits_of(section, "layers.0.attn.indexer.compressor.wkv") is None
