"""A llama model in GGUF terms -> the same model in Hugging Face terms. Pure: arrays and dictionaries only.

GGUF stores the rows of the q and k projections in the order of interleaved rotation, in which the pair
(2i, 2i+1) of a head turns together; Hugging Face's llama turns the pair (i, i + d/2). Everything else
keeps its values and changes its name only. Source: llama.cpp's `convert_hf_to_gguf.py` (the permutation
it applies, undone here) and the GGUF specification's key names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sm86.errors import CouldNotRun

if TYPE_CHECKING:
    import numpy

ARCHITECTURE = "LlamaForCausalLM"
_MEND = "the converter knows small llama models such as SmolLM2; give such a GGUF file"

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.weight")
_TOP = re.compile(r"([a-z_]+)\.weight")


def undo_interleaving(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Rows of a q or k projection from interleaved pairs to halves.

    weight: [heads * d, width], d even; row 2i + j of a head becomes its row i + j * d/2. Same shape and type.
    """
    rows, width = weight.shape
    half = rows // heads // 2
    return weight.reshape(heads, half, 2, width).swapaxes(1, 2).reshape(rows, width)


def config_of(metadata: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    """`config.json` of the model; `tied`: the output projection is the embedding itself.

    Raises CouldNotRun for another architecture, or one with features that the conversion does not carry.
    """
    architecture = _need(metadata, "general.architecture")
    if architecture != "llama":
        raise CouldNotRun(f"the GGUF file holds a {architecture!r} model, not a llama", _MEND)
    for key in sorted(metadata):
        if key.startswith("llama.rope.scaling.") or key == "llama.expert_count":
            raise CouldNotRun(f"the GGUF file sets {key}, which the conversion does not carry", _MEND)
    width = _need(metadata, "llama.embedding_length")
    heads = _need(metadata, "llama.attention.head_count")
    head_dim = metadata.get("llama.attention.key_length", width // heads)
    if metadata.get("llama.rope.dimension_count", head_dim) != head_dim or head_dim % 2:
        raise CouldNotRun("the GGUF file rotates a part of each head only", _MEND)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": metadata.get("llama.vocab_size") or len(_need(metadata, "tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": _need(metadata, "llama.feed_forward_length"),
        "num_hidden_layers": _need(metadata, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _need(metadata, "llama.context_length"),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10000.0)),
        "rms_norm_eps": _shortest(_need(metadata, "llama.attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def expected_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor that a model of this configuration has."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    of_a_block = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{block}.{name}.weight": shape
        for block in range(config["num_hidden_layers"])
        for name, shape in of_a_block.items()
    }
    shapes["model.embed_tokens.weight"] = (config["vocab_size"], width)
    shapes["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def tensor_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor; CouldNotRun for one that a llama does not have."""
    block = _BLOCK.fullmatch(gguf_name)
    if block and block[2] in _BLOCK_NAMES:
        return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.weight"
    top = _TOP.fullmatch(gguf_name)
    if top and top[1] in _TOP_NAMES:
        return f"{_TOP_NAMES[top[1]]}.weight"
    raise CouldNotRun(f"the GGUF file has a tensor {gguf_name!r} that no llama has", _MEND)


def to_hugging_face(name: str, values: numpy.ndarray, config: Mapping[str, Any]) -> numpy.ndarray:
    """The tensor in Hugging Face's order; `name` is its Hugging Face name, `values` are dequantized."""
    if name.endswith("self_attn.q_proj.weight"):
        return undo_interleaving(values, config["num_attention_heads"])
    if name.endswith("self_attn.k_proj.weight"):
        return undo_interleaving(values, config["num_key_value_heads"])
    return values


def _need(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise CouldNotRun(f"the GGUF file lacks {key}", "the file is damaged or not a model; install the package again")
    return metadata[key]


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, where GGUF's float32 reads back as 9.99999974e-06."""
    import numpy

    return float(str(numpy.float32(value)))
