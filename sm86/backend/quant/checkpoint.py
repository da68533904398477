"""What is wrong with a checkpoint of DeepSeek-V4 that is not W4A16 AutoRound in the public layout. Pure.

Which tensors it must hold, and how they are quantized, is known in `sm86.weights`; this says what stops a start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sm86.weights import names as known
from sm86.weights import quantization
from sm86.weights.layout import BITS, GROUP_SIZE
from sm86.weights.names import QUANTIZED_PARTS, ratios_of

__all__ = [
    "BITS",
    "GROUP_SIZE",
    "QUANTIZED_PARTS",
    "plain_tensors",
    "quantization_faults",
    "quantized_linears",
    "ratios_of",
    "tensor_faults",
]

quantization_faults = quantization.faults


def plain_tensors(config: Mapping[str, Any]) -> set[str]:
    """Names of the tensors that must be stored unquantized."""
    return {name for name, _, _ in known.plain(config)}


def quantized_linears(config: Mapping[str, Any]) -> set[str]:
    """Base names of the linears that must be stored in four bits."""
    return {name for name, _ in known.linears(config)}


def tensor_faults(config: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Missing tensors, and tensors quantized that must not be; one line each, at most one per kind of tensor."""
    have = set(names)
    faults = []
    plain, linears = plain_tensors(config), quantized_linears(config)
    for kind, bases in quantization.wrongly_quantized(config, have).items():
        because = f": {kind}" if kind else ""
        faults.append(f"{bases[0]} is quantized and must not be ({len(bases)} such){because}")
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
