"""Refusals at start: configuration, checkpoint names, weights. Pure, on plain mappings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm86.backend.hooks.rope_tables import rows_kept
from sm86.backend.quant import checkpoint, limits, startup
from sm86.backend.refusal import Refused

CONFIG = {
    "num_hidden_layers": 4,
    "compress_ratios": [0, 0, 4, 128, 0],
    "num_hash_layers": 1,
    "n_routed_experts": 2,
    "num_attention_heads": 64,
    "o_groups": 8,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "sliding_window": 128,
    "max_position_embeddings": 1048576,
    "quantization_config": {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "packing_format": "auto_round:auto_gptq",
    },
}


def names() -> set[str]:
    linears = checkpoint.quantized_linears(CONFIG)
    parts = {f"{base}.{part}" for base in linears for part in checkpoint.QUANTIZED_PARTS}
    return checkpoint.plain_tensors(CONFIG) | parts | {"mtp.0.e_proj.qweight"}


def test_the_public_checkpoint_has_the_known_number_of_quantized_tensors() -> None:
    real = {
        **CONFIG,
        "num_hidden_layers": 43,
        "n_routed_experts": 256,
        "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0],
    }
    assert len(checkpoint.quantized_linears(real)) == 43 * (768 + 4 + 3) + 21


def test_a_whole_checkpoint_passes() -> None:
    assert checkpoint.tensor_faults(CONFIG, names()) == []
    assert checkpoint.quantization_faults(CONFIG["quantization_config"]) == []


@pytest.mark.parametrize(
    ("remove", "add", "words"),
    [
        (["layers.0.ffn.gate.weight"], ["layers.0.ffn.gate.qweight"], "layers.0.ffn.gate is quantized and must not be"),
        ([], ["layers.2.attn.wo_a.qweight"], "layers.2.attn.wo_a is quantized"),
        ([], ["layers.2.attn.compressor.wkv.qweight"], "compressor.wkv is quantized"),
        (["layers.3.ffn.experts.1.w2.qweight"], ["layers.3.ffn.experts.1.w2.weight"], "is not quantized and must be"),
        (["layers.2.attn.indexer.compressor.ape"], [], "layers.2.attn.indexer.compressor.ape is missing"),
        (["layers.1.attn.wq_b.scales"], [], "layers.1.attn.wq_b.scales is missing"),
        (["layers.0.ffn.gate.tid2eid"], [], "tid2eid is missing"),
    ],
)
def test_wrong_checkpoints(remove: list[str], add: list[str], words: str) -> None:
    faults = checkpoint.tensor_faults(CONFIG, (names() - set(remove)) | set(add))
    assert any(words in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_size": 64}, "group_size is 64"),
        ({"bits": 8}, "bits is 8"),
        ({"sym": False}, "sym is False"),
        ({"quant_method": "gptq"}, "quant_method is 'gptq'"),
        ({"packing_format": "auto_round:auto_awq"}, "packing_format"),
        ({"block_name_to_quantize": "layers"}, "without a dot"),
    ],
)
def test_wrong_quantization(changes: dict, words: str) -> None:
    faults = checkpoint.quantization_faults({**CONFIG["quantization_config"], **changes})
    assert any(words in fault for fault in faults)
    assert checkpoint.quantization_faults(None) == ["the checkpoint is not quantized"]


def engine(**changes: object) -> SimpleNamespace:
    values = {
        "backend": "FLASHINFER_MLA_SPARSE_DSV4",
        "fp4": False,
        "dtype": "fp8_ds_mla",
        "tp": 8,
        "dcp": 1,
        "pcp": 1,
        "context": 262144,
        "batched": 512,
        "config": {},
    } | changes
    return SimpleNamespace(
        attention_config=SimpleNamespace(
            backend=values["backend"] and SimpleNamespace(name=values["backend"]), use_fp4_indexer_cache=values["fp4"]
        ),
        cache_config=SimpleNamespace(cache_dtype=values["dtype"]),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=values["dcp"],
            prefill_context_parallel_size=values["pcp"],
            tensor_parallel_size=values["tp"],
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=values["batched"]),
        model_config=SimpleNamespace(max_model_len=values["context"], hf_config={**CONFIG, **values["config"]}),
    )


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_configurations_that_are_served(tp: int) -> None:
    startup.check_config(engine(tp=tp))
    startup.check_config(engine(tp=tp, backend=None, dtype="fp8"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "FLASHMLA_SPARSE_DSV4"}, "FLASHMLA_SPARSE_DSV4"),
        ({"dtype": "auto"}, "kv-cache-dtype auto"),
        ({"fp4": True}, "Blackwell"),
        ({"dcp": 2}, "context parallel"),
        ({"pcp": 2}, "context parallel"),
        ({"tp": 3}, "do not divide by tensor parallel 3"),
        ({"tp": 16}, "tensor parallel 16"),
        ({"context": 1048577}, "beyond 1048576 positions"),
        ({"batched": 65536}, "65536 batched tokens"),
        ({"config": {"head_dim": 256}}, "head_dim is 256"),
        ({"config": {"compress_ratios": [0, 8, 4, 128]}}, "compression ratio 8"),
        ({"config": {"index_topk": 2048}}, "index_topk is 2048"),
    ],
)
def test_configurations_that_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(Refused, match=words):
        startup.check_config(engine(**changes))


@pytest.mark.parametrize(
    ("heads", "groups", "tp", "words"),
    [
        (64, 8, 8, []),
        (64, 8, 1, []),
        (60, 8, 8, ["60 attention heads do not divide by tensor parallel 8"]),
        (64, 6, 4, ["6 output groups do not divide by tensor parallel 4"]),
        (64, 8, 0, ["tensor parallel 0 is not between 1 and 8"]),
        (144, 16, 16, ["tensor parallel 16 is not between 1 and 8"]),
        (256, 8, 1, ["256 heads per rank are more than 128"]),
        (256, 8, 2, []),
    ],
)
def test_tensor_parallel_sizes(heads: int, groups: int, tp: int, words: list[str]) -> None:
    assert startup.parallel_faults(heads, groups, tp) == words


@pytest.mark.parametrize("key", startup.SHAPES)
def test_every_shape_that_a_kernel_has_built_in_is_checked(key: str) -> None:
    assert startup.shape_faults(CONFIG) == []
    for other in (CONFIG[key] * 2, None):
        assert startup.shape_faults({**CONFIG, key: other}) == [f"{key} is {other}, the kernels are for {CONFIG[key]}"]
    assert set(startup.SHAPES) == {"head_dim", "qk_rope_head_dim", "index_head_dim", "index_topk", "sliding_window"}


def test_a_folder_is_judged_by_its_index(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names(), "a.safetensors")}))
    startup.check_model_folder(str(tmp_path), CONFIG)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names() - {"head.weight"}, "a.safetensors")}))
    with pytest.raises(Refused, match=r"head\.weight is missing"):
        startup.check_model_folder(str(tmp_path), CONFIG)


def weight_file(path: Path, name: str) -> None:
    header = json.dumps({"__metadata__": {}, name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")


def test_a_single_file_is_judged_by_its_header(tmp_path: Path) -> None:
    weight_file(tmp_path / "model.safetensors", "embed.weight")
    assert startup.names_in(tmp_path) == {"embed.weight"}
    assert startup.names_in(tmp_path / "nowhere") is None


def test_files_without_an_index_are_judged_by_all_their_headers(tmp_path: Path) -> None:
    weight_file(tmp_path / "a.safetensors", "embed.weight")
    weight_file(tmp_path / "b.safetensors", "head.weight")
    assert startup.names_in(tmp_path) == {"embed.weight", "head.weight"}
    with pytest.raises(Refused, match="is missing"):
        startup.check_model_folder(str(tmp_path), CONFIG)


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("model.safetensors.index.json", b"", "model.safetensors.index.json"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "b"}', "model.safetensors.index.json"),
        ("model.safetensors.index.json", b"[" * 100000, "model.safetensors.index.json"),
        ("model.safetensors.index.json", b"{}", "no weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": []}', "no weight_map"),
        ("model.safetensors.index.json", b"\xff\xfe{}", "model.safetensors.index.json"),
        ("model.safetensors", b"", "is empty"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "no safetensors file"),
        ("model.safetensors", (2**40).to_bytes(8, "little") + b"{}", "no safetensors file"),
        ("model.safetensors", (64).to_bytes(8, "little") + b"{}", "cut short"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_in_words(
    file: str, data: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(data)
    with pytest.raises(Refused, match=words) as caught:
        startup.check_model_folder(str(tmp_path), CONFIG)
    assert "\n" not in str(caught.value)


def test_an_index_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").symlink_to(tmp_path / "gone")
    with pytest.raises(Refused, match="which is not there"):
        startup.names_in(tmp_path)


class Sm86Attention:
    """Named as the class of the layers; the checks find it so."""

    def __init__(self, kv_norm: object) -> None:
        self.kv_norm = kv_norm


class DeepseekCompressor:
    """Named as vLLM's."""

    def __init__(self, norm: object) -> None:
        self.norm = norm


def model(attention: object, main: object, indexer: object) -> SimpleNamespace:
    """One layer with a compressor and an indexer, as vLLM names them."""
    modules = {
        "layers.2": object(),
        "layers.2.attn": Sm86Attention(attention),
        "layers.2.attn.compressor": DeepseekCompressor(main),
        "layers.2.attn.indexer.compressor": DeepseekCompressor(indexer),
    }
    return SimpleNamespace(named_modules=modules.items)


class Weight(float):
    """A parameter of one value."""

    def detach(self) -> Weight:
        return self

    def abs(self) -> Weight:
        return Weight(abs(self))

    def max(self) -> Weight:
        return self


NORMS = ("attn.kv_norm", "attn.compressor.norm", "attn.indexer.compressor.norm")


@pytest.mark.parametrize("at", range(3))
def test_every_norm_that_feeds_the_cache_is_looked_at(at: int) -> None:
    good = [SimpleNamespace(weight=Weight(1.5)) for _ in NORMS]
    limits.check_weights(model(*good))
    for bad in (math.nan, -1e9):
        norms = [*good[:at], SimpleNamespace(weight=Weight(bad)), *good[at + 1 :]]
        with pytest.raises(Refused, match=rf"layers\.2\.{NORMS[at]}\.weight"):
            limits.check_weights(model(*norms))
    for absent in (None, SimpleNamespace(weight=None)):
        with pytest.raises(Refused, match="which bounds its cache entries"):
            limits.check_weights(model(*good[:at], absent, *good[at + 1 :]))


def test_a_model_without_any_known_layer_is_refused() -> None:
    with pytest.raises(Refused, match="no layer of the model"):
        limits.check_weights(SimpleNamespace(named_modules=lambda: [("a", object())]))


def test_norm_weights_keep_entries_decodable() -> None:
    # 512 values of root mean square 1 may all be in one place: sqrt(512), and a rotation may add sqrt(2): 32 in all
    assert abs(limits.largest_normed(1.0) - 32.0) < 1e-9 and limits.LARGEST_VALUE == 57344.0
    limits.check_norm("kv_norm", 1791.0)
    with pytest.raises(Refused, match="kv_norm reaches 1793"):
        limits.check_norm("kv_norm", 1793.0)
    limits.check_norm("kv_norm", 1.5)
    edge = limits.LARGEST_VALUE / limits.largest_normed(1.0)
    limits.check_norm("kv_norm", edge * 0.999)
    for bad in (edge * 1.001, math.nan, math.inf):
        with pytest.raises(Refused):
            limits.check_norm("kv_norm", bad)


def test_rope_rows() -> None:
    assert rows_kept(1048576, 262144) == 262144 + 256
    assert rows_kept(1000, 900) == 1000
    with pytest.raises(Refused, match="beyond the RoPE table"):
        rows_kept(1000, 1001)
