"""Which tensors a W4A16 AutoRound checkpoint of DeepSeek-V4 holds, and what is wrong with one that does not. Pure.

Quantized linears are stored as `.qweight`, `.qzeros`, `.scales`; all others as `.weight` (or bare names).
Names starting with `mtp.` belong to the draft layer, which is not served, and are not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

BITS = 4
GROUP_SIZE = 128
QUANTIZED_PARTS = ("qweight", "qzeros", "scales")


def ratios_of(config: Mapping[str, Any]) -> list[int]:
    """Compression ratio of every served layer: 0 or 1 (window only), 4 or 128."""
    return [int(ratio) for ratio in config["compress_ratios"]][: int(config["num_hidden_layers"])]


def plain_tensors(config: Mapping[str, Any]) -> set[str]:
    """Names of the tensors that must be stored unquantized."""
    names = {"embed.weight", "head.weight", "norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"}
    for layer, ratio in enumerate(ratios_of(config)):
        head = f"layers.{layer}."
        names |= {f"{head}{part}_norm.weight" for part in ("attn", "ffn")}
        names |= {f"{head}hc_{part}_{kind}" for part in ("attn", "ffn") for kind in ("fn", "base", "scale")}
        names |= {f"{head}attn.{name}" for name in ("q_norm.weight", "kv_norm.weight", "wo_a.weight", "attn_sink")}
        compressors = ["attn.compressor."] if ratio > 1 else []
        if ratio == 4:
            compressors.append("attn.indexer.compressor.")
            names.add(f"{head}attn.indexer.weights_proj.weight")
        for compressor in compressors:
            names |= {f"{head}{compressor}{name}" for name in ("ape", "wkv.weight", "wgate.weight", "norm.weight")}
        names.add(f"{head}ffn.gate.weight")
        names.add(f"{head}ffn.gate.{'tid2eid' if layer < int(config['num_hash_layers']) else 'bias'}")
    return names


def quantized_linears(config: Mapping[str, Any]) -> set[str]:
    """Base names of the linears that must be stored in four bits."""
    names = set()
    for layer, ratio in enumerate(ratios_of(config)):
        head = f"layers.{layer}."
        names |= {f"{head}attn.{name}" for name in ("wq_a", "wq_b", "wkv", "wo_b")}
        if ratio == 4:
            names.add(f"{head}attn.indexer.wq_b")
        experts = [f"experts.{number}" for number in range(int(config["n_routed_experts"]))]
        names |= {f"{head}ffn.{e}.{w}" for e in [*experts, "shared_experts"] for w in ("w1", "w2", "w3")}
    return names


def quantization_faults(quantization: Mapping[str, Any] | None) -> list[str]:
    """What the config's quantization section says that the backend does not serve."""
    if not quantization:
        return ["the checkpoint is not quantized"]
    faults = []
    wanted = {"quant_method": "auto-round", "bits": BITS, "group_size": GROUP_SIZE, "sym": True}
    for key, value in wanted.items():
        if quantization.get(key) != value:
            faults.append(f"quantization {key} is {quantization.get(key)!r}, served is {value!r}")
    packing = quantization.get("packing_format", "auto_round:auto_gptq")
    if packing != "auto_round:auto_gptq":
        faults.append(f"packing_format is {packing!r}, served is 'auto_round:auto_gptq'")
    if quantization.get("block_name_to_quantize") == "layers":
        faults.append("block_name_to_quantize is 'layers' without a dot: vLLM would load every layer unquantized")
    return faults


def tensor_faults(config: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Missing tensors, and tensors quantized that must not be; one line each, at most one per kind of tensor."""
    have = set(names)
    faults = []
    plain, linears = plain_tensors(config), quantized_linears(config)
    wrongly = sorted(
        {name.rsplit(".", 1)[0] for name in have if name.endswith(".qweight") and not name.startswith("mtp.")} - linears
    )
    if wrongly:
        faults.append(f"{wrongly[0]} is quantized and must not be ({len(wrongly)} such)")
    kept = sorted(name for name in linears if f"{name}.weight" in have)
    if kept:
        faults.append(f"{kept[0]} is not quantized and must be ({len(kept)} such)")
    missing = sorted(plain - have)
    if missing:
        faults.append(f"{missing[0]} is missing ({len(missing)} plain tensors)")
    parts = sorted(f"{name}.{part}" for name in linears for part in QUANTIZED_PARTS if f"{name}.{part}" not in have)
    if parts:
        faults.append(f"{parts[0]} is missing ({len(parts)} parts of quantized linears)")
    return faults
