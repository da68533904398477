"""Which tensors a W4A16 AutoRound checkpoint of DeepSeek-V4 holds, by name and role. Pure.

Names are the checkpoint's own (`layers.0.attn.wq_a.qweight`), before vLLM 0.26.0's mapper; source: that mapper and
`load_weights` in its `models/deepseek_v4/nvidia/model.py`. Quantized linears are stored as `.qweight`, `.qzeros` and
`.scales`; all others as `.weight` or under a bare name. Names that begin with `mtp.` belong to the draft layer, which
vLLM skips, and are judged nowhere. A role says what a tensor is; `sm86.weights.layout` knows each role's shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

QUANTIZED_PARTS = ("qweight", "qzeros", "scales")
DRAFT_PREFIX = "mtp."

TOP = {
    "embed.weight": "embedding",
    "head.weight": "embedding",
    "norm.weight": "norm",
    "hc_head_fn": "hc_head_fn",
    "hc_head_base": "hc_head_base",
    "hc_head_scale": "hc_head_scale",
}
COMPRESSOR = {"ape": "ape", "wkv.weight": "compressor", "wgate.weight": "compressor", "norm.weight": "compressor_norm"}


def ratios_of(config: Mapping[str, Any]) -> list[int]:
    """Compression ratio of every served layer: 0 or 1 (window only), 4 or 128."""
    return [int(ratio) for ratio in config["compress_ratios"]][: int(config["num_hidden_layers"])]


def plain(config: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Name, role and the layer's compression ratio of every tensor that must be stored unquantized."""
    yield from ((name, role, 0) for name, role in TOP.items())
    hashed = int(config["num_hash_layers"])
    for layer, ratio in enumerate(ratios_of(config)):
        head = f"layers.{layer}."
        for part in ("attn", "ffn"):
            yield f"{head}{part}_norm.weight", "norm", ratio
            for kind in ("fn", "base", "scale"):
                yield f"{head}hc_{part}_{kind}", f"hc_{kind}", ratio
        yield f"{head}attn.q_norm.weight", "q_norm", ratio
        yield f"{head}attn.kv_norm.weight", "kv_norm", ratio
        yield f"{head}attn.wo_a.weight", "wo_a", ratio
        yield f"{head}attn.attn_sink", "attn_sink", ratio
        if ratio > 1:
            for name, role in COMPRESSOR.items():
                yield f"{head}attn.compressor.{name}", role, ratio
        if ratio == 4:
            yield f"{head}attn.indexer.weights_proj.weight", "indexer_weights", ratio
            for name, role in COMPRESSOR.items():
                yield f"{head}attn.indexer.compressor.{name}", f"indexer_{role}", ratio
        yield f"{head}ffn.gate.weight", "gate", ratio
        yield (
            (f"{head}ffn.gate.tid2eid", "routes", ratio)
            if layer < hashed
            else (
                f"{head}ffn.gate.bias",
                "gate_bias",
                ratio,
            )
        )


def linears(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Base name and role of every linear that must be stored in four bits."""
    experts = [f"experts.{number}" for number in range(int(config["n_routed_experts"]))]
    for layer, ratio in enumerate(ratios_of(config)):
        head = f"layers.{layer}."
        for name in ("wq_a", "wq_b", "wkv", "wo_b"):
            yield f"{head}attn.{name}", name
        if ratio == 4:
            yield f"{head}attn.indexer.wq_b", "indexer_wq_b"
        for expert in experts:
            yield f"{head}ffn.{expert}.w1", "expert_in"
            yield f"{head}ffn.{expert}.w2", "expert_out"
            yield f"{head}ffn.{expert}.w3", "expert_in"
        for name, role in (("w1", "shared_in"), ("w2", "shared_out"), ("w3", "shared_in")):
            yield f"{head}ffn.shared_experts.{name}", role
