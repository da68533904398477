"""Type and shape of every tensor that a W4A16 AutoRound checkpoint of DeepSeek-V4 must hold, from its config. Pure.

Shapes follow from vLLM 0.26.0's modules (`models/deepseek_v4/`) and from GPTQ packing: for a linear [out, in] with
four bits and groups of 128, qweight is int32 [in / 8, out], qzeros int32 [in / 128, out / 8], scales fp16
[in / 128, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sm86.weights import names
from sm86.weights.header import Tensor

BITS = 4
GROUP_SIZE = 128
PER_WORD = 32 // BITS

FLOATS = ("BF16", "F16", "F32")
"""Types of an unquantized tensor. vLLM converts while it loads, so any of them serves; 8-bit floats would
need scales."""

HALVES = ("F16", "BF16")
WHOLE = ("I32", "I64")

MOST = 1 << 24
"""No size in a config is larger; it keeps a made-up number from filling the memory with expected names."""

MOST_LAYERS = 512
MOST_EXPERTS = 4096
MOST_LINEARS = 1 << 20


class ConfigFault(ValueError):
    """Why no layout follows from a config, as one sentence."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes in config.json that shapes follow from, under their names there."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    num_hash_layers: int
    moe_intermediate_size: int
    hc_mult: int
    index_n_heads: int
    index_head_dim: int


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """The sizes; raises ConfigFault for one that is missing, no whole number, or out of any model's range."""
    found: dict[str, int] = {}
    for field in fields(Sizes):
        value = config.get(field.name)
        low = 0 if field.name == "num_hash_layers" else 1
        if type(value) is not int or not low <= value <= MOST:
            raise ConfigFault(f"{field.name} is {_shown(value)}, which is no size")
        found[field.name] = value
    sizes = Sizes(**found)
    ratios = config.get("compress_ratios")
    if not isinstance(ratios, list) or not all(type(ratio) is int and ratio in (0, 1, 4, 128) for ratio in ratios):
        raise ConfigFault("compress_ratios is no list of 0, 1, 4 and 128")
    if len(ratios) < sizes.num_hidden_layers:
        raise ConfigFault(f"compress_ratios has {len(ratios)} entries for {sizes.num_hidden_layers} layers")
    if sizes.num_hidden_layers > MOST_LAYERS or sizes.n_routed_experts > MOST_EXPERTS:
        raise ConfigFault(f"{sizes.num_hidden_layers} layers of {sizes.n_routed_experts} experts are no such model")
    if sizes.num_hidden_layers * sizes.n_routed_experts * 3 > MOST_LINEARS:
        raise ConfigFault(f"{sizes.num_hidden_layers} layers of {sizes.n_routed_experts} experts are no such model")
    if sizes.num_attention_heads * sizes.head_dim % sizes.o_groups:
        raise ConfigFault(f"{sizes.num_attention_heads} heads do not divide by {sizes.o_groups} output groups")
    return sizes


def linear_shape(role: str, s: Sizes) -> tuple[int, int]:
    """[out, in] of a quantized linear of that role (see `sm86.weights.names`)."""
    inner, shared = s.num_attention_heads * s.head_dim, s.moe_intermediate_size * s.n_shared_experts
    return {
        "wq_a": (s.q_lora_rank, s.hidden_size),
        "wq_b": (inner, s.q_lora_rank),
        "wkv": (s.head_dim, s.hidden_size),
        "wo_b": (s.hidden_size, s.o_groups * s.o_lora_rank),
        "indexer_wq_b": (s.index_n_heads * s.index_head_dim, s.q_lora_rank),
        "expert_in": (s.moe_intermediate_size, s.hidden_size),
        "expert_out": (s.hidden_size, s.moe_intermediate_size),
        "shared_in": (shared, s.hidden_size),
        "shared_out": (s.hidden_size, shared),
    }[role]


def plain_shape(role: str, ratio: int, s: Sizes) -> tuple[int, ...]:
    """Shape of an unquantized tensor of that role; ratio: its layer's compression ratio."""
    mixes, streams = s.hc_mult * (s.hc_mult + 2), s.hc_mult * s.hidden_size
    # a four-fold compressor looks back over two windows at once, so it is twice as wide
    twice = 2 if ratio == 4 else 1
    return {
        "embedding": (s.vocab_size, s.hidden_size),
        "norm": (s.hidden_size,),
        "hc_head_fn": (s.hc_mult, streams),
        "hc_head_base": (s.hc_mult,),
        "hc_head_scale": (1,),
        "hc_fn": (mixes, streams),
        "hc_base": (mixes,),
        "hc_scale": (3,),
        "q_norm": (s.q_lora_rank,),
        "kv_norm": (s.head_dim,),
        "wo_a": (s.o_groups * s.o_lora_rank, s.num_attention_heads * s.head_dim // s.o_groups),
        "attn_sink": (s.num_attention_heads,),
        "ape": (ratio, s.head_dim * twice),
        "compressor": (s.head_dim * twice, s.hidden_size),
        "compressor_norm": (s.head_dim,),
        "indexer_ape": (ratio, s.index_head_dim * twice),
        "indexer_compressor": (s.index_head_dim * twice, s.hidden_size),
        "indexer_compressor_norm": (s.index_head_dim,),
        "indexer_weights": (s.index_n_heads, s.hidden_size),
        "gate": (s.n_routed_experts, s.hidden_size),
        "gate_bias": (s.n_routed_experts,),
        "routes": (s.vocab_size, s.num_experts_per_tok),
    }[role]


def packed(shape: tuple[int, int]) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Types and shape of each stored part of a quantized linear of `shape` [out, in].

    Raises ConfigFault where the sizes do not divide into whole words and groups.
    """
    rows, columns = shape
    if columns % GROUP_SIZE or rows % PER_WORD:
        raise ConfigFault(f"a linear of {rows} x {columns} does not divide into groups of {GROUP_SIZE}")
    return {
        "qweight": (("I32",), (columns // PER_WORD, rows)),
        "qzeros": (("I32",), (columns // GROUP_SIZE, rows // PER_WORD)),
        "scales": (HALVES, (columns // GROUP_SIZE, rows)),
    }


def expected(config: Mapping[str, Any]) -> dict[str, tuple[Tensor, ...]]:
    """Every tensor the checkpoint must hold: name -> the forms in which it may be stored, the usual one first.

    Raises ConfigFault. The draft layer's tensors are not among them.
    """
    sizes = sizes_of(config)
    forms: dict[str, tuple[Tensor, ...]] = {}
    plain: dict[tuple[str, int], tuple[Tensor, ...]] = {}
    for name, role, ratio in names.plain(config):
        if (role, ratio) not in plain:
            shape = plain_shape(role, ratio, sizes)
            types = WHOLE if role == "routes" else FLOATS
            plain[role, ratio] = tuple(Tensor(dtype, shape) for dtype in types)
        forms[name] = plain[role, ratio]
    parts: dict[str, list[tuple[str, tuple[Tensor, ...]]]] = {}
    for name, role in names.linears(config):
        if role not in parts:
            parts[role] = [
                ("." + part, tuple(Tensor(dtype, shape) for dtype in types))
                for part, (types, shape) in packed(linear_shape(role, sizes)).items()
            ]
        for suffix, stored in parts[role]:
            forms[name + suffix] = stored
    return forms


def is_order(name: str, forms: Mapping[str, tuple[Tensor, ...]]) -> bool:
    """Whether it is the group order (`.g_idx`) of a quantized linear: some exporters write it, and vLLM reads
    and ignores it for symmetric weights without act-order. forms: as `expected` gives them."""
    return name.endswith(".g_idx") and f"{name.removesuffix('.g_idx')}.qweight" in forms


def _shown(value: Any) -> str:
    text = repr(value) if type(value) is not int or value < 10**18 else "a number of too many digits"
    return text if len(text) <= 60 else text[:57] + "..."
