"""Bounds on weights that keep every cache entry within what the attention's decode represents."""

from __future__ import annotations

import math
from typing import Any

from sm86.backend.layout import E4M3_MAX, HEAD_DIMS, MAX_SCALE_BYTE
from sm86.backend.refusal import Refused

CACHE_WRITERS = {"Sm86Attention": "kv_norm.weight", "DeepseekCompressor": "norm.weight"}
"""Classes of modules that write cache entries, and the norm that bounds what they write."""

NORMS = (".kv_norm.weight", ".compressor.norm.weight")

LARGEST_VALUE = E4M3_MAX * 2.0 ** (MAX_SCALE_BYTE - 127)


def largest_normed(weight_absmax: float, dims: int = HEAD_DIMS) -> float:
    """The largest value an RMS-normalised vector of `dims` values can hold after its weight; rotation adds sqrt(2)."""
    return math.sqrt(dims) * weight_absmax * math.sqrt(2.0)


def check_norm(name: str, absmax: float) -> None:
    """Raise Refused for a norm weight that is not finite or lets a cache entry exceed the decode's range."""
    if not math.isfinite(absmax):
        raise Refused(f"{name} holds values that are not finite", "download the checkpoint again")
    if largest_normed(absmax) > LARGEST_VALUE:
        raise Refused(
            f"{name} reaches {absmax:.4g}: entries could exceed {LARGEST_VALUE:g} (scale byte {MAX_SCALE_BYTE})",
            "this checkpoint cannot be served by the SM86 attention",
        )


def check_weights(model: Any) -> None:
    """Check every norm that feeds the cache, after loading. Reads one number per norm from the GPU.

    Raises Refused for a norm beyond its bounds, and for an attention layer whose norm is not found by its name: what
    was not looked at is not within its bounds.
    """
    checked = set()
    for name, parameter in model.named_parameters():
        if name.endswith(NORMS):
            check_norm(name, float(parameter.detach().abs().max()))
            checked.add(name)
    for name, module in model.named_modules():
        if type(module).__name__ in CACHE_WRITERS:
            wanted = f"{name}.{CACHE_WRITERS[type(module).__name__]}"
            if wanted not in checked:
                raise Refused(f"{wanted} is not among the model's weights", "report the model that was served")
    if not checked:
        raise Refused("no norm of a cache's keys is among the model's weights", "report the model that was served")
