"""The converter on a tiny GGUF file: values, names, tokenizer, and everything that must be refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from sm86.embedded import convert as module
from sm86.embedded.convert import convert, main
from sm86.embedded.safetensors_file import to_bfloat16, write_safetensors
from sm86.errors import CouldNotRun
from tests.embedded.tiny_llama import CONTROL, HEADS, KV_HEADS, LAYERS, TOKENS, WIDTH


def bfloat16_values(raw: bytes, shape: tuple[int, ...]) -> numpy.ndarray:
    bits = numpy.frombuffer(raw, dtype="<u2").astype(numpy.uint32) << 16
    return bits.view(numpy.float32).reshape(shape)


def read_back(folder: Path) -> dict[str, numpy.ndarray]:
    """Every tensor, read by the safetensors library."""
    from safetensors import deserialize

    return {
        name: bfloat16_values(bytes(found["data"]), tuple(found["shape"]))
        for name, found in deserialize((folder / "model.safetensors").read_bytes())
        if found["dtype"] == "BF16"
    }


def test_every_tensor_arrives_under_its_name_with_its_values(make_gguf, tmp_path):
    path, stored = make_gguf()
    convert(path, tmp_path / "out")
    found = read_back(tmp_path / "out")
    assert len(found) == 2 + 9 * LAYERS
    close = {"rtol": 2**-8, "atol": 1e-6}
    same = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }
    for name, gguf_name in same.items():
        numpy.testing.assert_allclose(found[name], stored[gguf_name], **close)
    for block in range(LAYERS):
        for ours, theirs, heads in (("q_proj", "attn_q", HEADS), ("k_proj", "attn_k", KV_HEADS)):
            rows = stored[f"blk.{block}.{theirs}.weight"]
            expected = numpy.concatenate(
                [numpy.concatenate([head[0::2], head[1::2]]) for head in numpy.split(rows, heads)]
            )
            name = f"model.layers.{block}.self_attn.{ours}.weight"
            numpy.testing.assert_allclose(found[name], expected, **close)


def test_the_configuration_says_what_the_file_says(make_gguf, tmp_path):
    path, _ = make_gguf()
    convert(path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (WIDTH, LAYERS)
    assert config["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5, "float32 noise of the file must not reach the configuration"
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2
    card = (tmp_path / "out" / "README.md").read_text()
    assert "tiny.gguf" in card and "quantized" in card and "not the original weights" in card


def test_a_file_with_an_output_projection_is_not_tied(make_gguf, tmp_path):
    path, _ = make_gguf(add={"output.weight": numpy.ones((len(TOKENS), WIDTH), numpy.float32)})
    assert convert(path, tmp_path / "out")["tie_word_embeddings"] is False
    assert "lm_head.weight" in read_back(tmp_path / "out")


def test_the_tokenizer_splits_digits_merges_and_knows_its_special_tokens(make_gguf, tmp_path):
    from tokenizers import Tokenizer

    path, _ = make_gguf()
    convert(path, tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode(" the").tokens == ["Ġthe"]
    assert tokenizer.encode("12").tokens == ["1", "2"], "digits are split off before any merge"
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids[0] == 1
    for text in (" the 12 naïve — 日本\n\t x", "a<b>c"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == CONTROL[2] and settings["chat_template"].startswith("{% for m")


def test_two_conversions_give_the_same_bytes(make_gguf, tmp_path):
    path, _ = make_gguf()
    convert(path, tmp_path / "one")
    convert(path, tmp_path / "two")
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "two").iterdir())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_former_conversion_is_replaced_and_nothing_else(make_gguf, tmp_path):
    path, _ = make_gguf()
    convert(path, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text("old")
    convert(path, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "diary.txt").write_text("mine")
    with pytest.raises(CouldNotRun, match="not empty"):
        convert(path, foreign)
    assert (foreign / "diary.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"general.architecture": "qwen2"}, "not a llama"),
        ({"llama.attention.head_count": None}, "lacks llama.attention.head_count"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.rope.dimension_count": 8}, "a part of each head"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "splitting rules 'llama-bpe'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer is 'llama'"),
        ({"tokenizer.ggml.merges": None}, "tokenizer is damaged"),
        ({"llama.block_count": 3}, "lacks model.layers.2"),
        ({"llama.block_count": 1}, "which its own configuration does not"),
        ({"llama.feed_forward_length": 128}, "by its own configuration"),
    ],
)
def test_another_kind_of_file_is_refused_and_leaves_nothing(make_gguf, tmp_path, change, words):
    path, _ = make_gguf(change=change)
    with pytest.raises(CouldNotRun, match=words):
        convert(path, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_missing_and_an_unknown_tensor_are_named(make_gguf, tmp_path):
    path, _ = make_gguf(drop=("blk.1.ffn_up.weight",))
    with pytest.raises(CouldNotRun, match=r"lacks model\.layers\.1\.mlp\.up_proj"):
        convert(path, tmp_path / "out")
    path, _ = make_gguf(add={"blk.0.attn_q.bias": numpy.ones(WIDTH, numpy.float32)})
    with pytest.raises(CouldNotRun, match="no llama has"):
        convert(path, tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "missing"])
def test_a_damaged_file_is_one_line(make_gguf, tmp_path, capsys, damage):
    path, _ = make_gguf()
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("this is no model " * 100)
    else:
        path.unlink()
    assert main([str(tmp_path / "out"), "--gguf", str(path)]) == 2
    words = capsys.readouterr().err
    assert len(words.splitlines()) == 2 and "Traceback" not in words
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_no_folder(make_gguf, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path, _ = make_gguf()
    monkeypatch.setattr(module, "write_safetensors", full)
    with pytest.raises(CouldNotRun, match="No space left"):
        convert(path, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_the_package_that_carries_the_model_is_asked_for_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", "no-such-package-of-models")
    assert main([str(tmp_path / "out")]) == 2
    assert "no-such-package-of-models is not installed" in capsys.readouterr().err


def test_bfloat16_is_the_nearest_with_ties_to_even():
    values = numpy.array([1.0, 1.00390625, 1.01171875, -3.3, 0.0, numpy.inf, 3.4028235e38], numpy.float32)
    back = bfloat16_values(to_bfloat16(values).tobytes(), values.shape)
    assert back[0] == 1.0
    assert back[1] == 1.0, "halfway goes to the even neighbour below"
    assert back[2] == 1.015625, "halfway goes to the even neighbour above"
    assert abs(back[3] + 3.3) <= 3.3 * 2**-9
    assert back[4] == 0.0 and numpy.isinf(back[5])
    assert numpy.isnan(bfloat16_values(to_bfloat16(numpy.array([numpy.nan], numpy.float32)).tobytes(), (1,)))[0]


def test_a_tensor_out_of_order_is_not_written_under_another_name(tmp_path):
    shapes = {"a": (2,), "b": (2,)}
    ones = numpy.ones(2, numpy.float32)
    with pytest.raises(ValueError, match="tensor b"):
        write_safetensors(tmp_path / "x", shapes, iter([("b", ones), ("a", ones)]))
    with pytest.raises(ValueError, match="shape"):
        write_safetensors(tmp_path / "x", shapes, iter([("a", numpy.ones(3, numpy.float32)), ("b", ones)]))
