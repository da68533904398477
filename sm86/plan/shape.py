"""The shape of a DeepSeek-V4 checkpoint: what its config.json says that decides bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sm86.errors import CouldNotRun

ARCHITECTURE = "DeepseekV4ForCausalLM"
GROUP_SIZE = 128
"""Inputs that share one scale of the four-bit weights; the only size that the backend serves."""

WINDOW_ONLY, C4, C128 = 1, 4, 128


@dataclass(frozen=True)
class Shape:
    """Widths and counts as in config.json. `ratios`: compression of every served layer, 1 for a window only."""

    hidden: int
    ratios: tuple[int, ...]
    heads: int
    head_dim: int
    query_rank: int
    output_rank: int
    output_groups: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_experts: int
    hash_layers: int
    vocabulary: int
    hyper: int
    window: int
    index_heads: int
    index_dim: int
    index_topk: int
    rope_dim: int
    positions: int
    draft_layers: int

    @cached_property
    def layers(self) -> int:
        return len(self.ratios)

    def count(self, ratio: int) -> int:
        """Layers of one kind."""
        return self.ratios.count(ratio)


FLASH = Shape(
    hidden=4096,
    ratios=(WINDOW_ONLY, WINDOW_ONLY, *(C4, C128) * 20, C4),
    heads=64,
    head_dim=512,
    query_rank=1024,
    output_rank=1024,
    output_groups=8,
    experts=256,
    experts_per_token=6,
    expert_width=2048,
    shared_experts=1,
    hash_layers=3,
    vocabulary=129280,
    hyper=4,
    window=128,
    index_heads=64,
    index_dim=128,
    index_topk=512,
    rope_dim=64,
    positions=1_048_576,
    draft_layers=1,
)
"""DeepSeek-V4-Flash. Source: three independent copies of its config.json, consistent with vLLM 0.26.0's model code;
the public checkpoint's own file was not read."""

_FIXED = {"head_dim": 512, "index_head_dim": 128, "sliding_window": 128, "qk_rope_head_dim": 64}
"""What vLLM 0.26.0's cache layout has built in: pages of other widths are none that it could serve."""

_KEYS = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "query_rank": "q_lora_rank",
    "output_rank": "o_lora_rank",
    "output_groups": "o_groups",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "vocabulary": "vocab_size",
    "hyper": "hc_mult",
    "index_heads": "index_n_heads",
    "index_topk": "index_topk",
    "positions": "max_position_embeddings",
}
_MAY_BE_ZERO = {"hash_layers": "num_hash_layers", "draft_layers": "num_nextn_predict_layers"}
_MOST = 2**31
MOST_LAYERS = 1000


def shape_of(config: object, where: str = "config.json") -> Shape:
    """The shape of a checkpoint's parsed config.json.

    Raises CouldNotRun: another architecture, a key missing or impossible, a width that vLLM's page layout does not
    have.
    """

    def fail(what: str, mend: str = "give the config.json of a DeepSeek-V4 checkpoint") -> CouldNotRun:
        return CouldNotRun(f"{where}: {what}", mend)

    if not isinstance(config, Mapping):
        raise fail("is no JSON object")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or ARCHITECTURE not in architectures:
        raise fail(f"architectures is {architectures!r}, not [{ARCHITECTURE!r}]")

    def number(key: str, low: int, default: int | None = None) -> int:
        value: Any = config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MOST:
            raise fail(f"{key} is {value!r}, not a whole number from {low}")
        return value

    for key, fixed in _FIXED.items():
        if number(key, 1) != fixed:
            raise fail(f"{key} is {config[key]}, but the pages of the KV cache are built for {fixed}")
    layers, raw = number("num_hidden_layers", 1), config.get("compress_ratios")
    if layers > MOST_LAYERS:
        raise fail(f"num_hidden_layers is {layers}")
    if not isinstance(raw, list) or len(raw) < layers:
        raise fail(f"compress_ratios does not name one ratio for each of {layers} layers")
    ratios = tuple(1 if ratio == 0 else ratio for ratio in raw[:layers])
    unknown = [ratio for ratio in ratios if isinstance(ratio, bool) or ratio not in (WINDOW_ONLY, C4, C128)]
    if unknown:
        raise fail(f"compress_ratios holds {unknown[0]!r}; known are 0, {C4} and {C128}")
    if C4 not in ratios:
        raise fail(f"no layer compresses {C4}-fold, so vLLM 0.26.0 cannot lay out its cache")
    values = {name: number(key, 1) for name, key in _KEYS.items()}
    values |= {name: number(key, 0, 0) for name, key in _MAY_BE_ZERO.items()}
    for key in ("hidden_size", "q_lora_rank", "o_lora_rank", "moe_intermediate_size"):
        if config[key] % GROUP_SIZE:
            raise fail(f"{key} is {config[key]}, no multiple of the quantization group of {GROUP_SIZE}")
    if values["heads"] % values["output_groups"]:
        raise fail(f"{values['heads']} heads do not divide into {values['output_groups']} output groups")
    return Shape(
        ratios=ratios,
        head_dim=_FIXED["head_dim"],
        index_dim=_FIXED["index_head_dim"],
        window=_FIXED["sliding_window"],
        rope_dim=_FIXED["qk_rope_head_dim"],
        **values,
    )
