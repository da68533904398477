"""Shapes of the checkpoints behind the recorded boots, and their config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sm86.plan.shape import FLASH, Shape


def ratios(layers: int) -> tuple[int, ...]:
    return tuple([1, 1, *[4, 128] * layers][:layers])


def small(layers: int, experts: int = 16, vocabulary: int = 4096) -> Shape:
    """A proof checkpoint: real widths, few layers and experts (`sm86.backend.testing.checkpoint`)."""
    return replace(
        FLASH,
        ratios=ratios(layers),
        experts=experts,
        vocabulary=vocabulary,
        hash_layers=min(3, layers),
    )


GRAPH, DEEP, PIECEWISE = small(8), small(43, 8, 8192), small(4)
"""What the recorded boots served, by their checkpoints' sizes: 2.62, 9.85 and 1.33 GiB."""


def config_of(shape: Shape = FLASH) -> dict[str, Any]:
    """config.json of a checkpoint of this shape."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "moe_intermediate_size": shape.expert_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "head_dim": shape.head_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "q_lora_rank": shape.query_rank,
        "o_lora_rank": shape.output_rank,
        "o_groups": shape.output_groups,
        "num_experts_per_tok": shape.experts_per_token,
        "n_routed_experts": shape.experts,
        "n_shared_experts": shape.shared_experts,
        "num_hash_layers": shape.hash_layers,
        "compress_ratios": [*(0 if ratio == 1 else ratio for ratio in shape.ratios), 0],
        "hc_mult": shape.hyper,
        "sliding_window": shape.window,
        "index_n_heads": shape.index_heads,
        "index_head_dim": shape.index_dim,
        "index_topk": shape.index_topk,
        "max_position_embeddings": shape.positions,
        "num_nextn_predict_layers": shape.draft_layers,
    }
