"""Bounds on weights that keep every cache entry within what the attention's decode represents."""

from __future__ import annotations

import math
from typing import Any

from sm86.backend.layout import E4M3_MAX, HEAD_DIMS, MAX_SCALE_BYTE
from sm86.backend.refusal import Refused

CACHE_WRITERS = {"Sm86Attention": "kv_norm", "DeepseekCompressor": "norm"}
"""Classes of modules that write cache entries, and the norm of each that bounds what it writes."""

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

    Raises Refused for a norm beyond its bounds, and where one is not found: what was not looked at is within none.
    """
    seen = 0
    for name, module in model.named_modules():
        norm = CACHE_WRITERS.get(type(module).__name__)
        if norm is None:
            continue
        weight = getattr(getattr(module, norm, None), "weight", None)
        if weight is None:
            raise Refused(f"{name} has no {norm}.weight, which bounds its cache entries", "report this model")
        check_norm(f"{name}.{norm}.weight", float(weight.detach().abs().max()))
        seen += 1
    if not seen:
        raise Refused("no layer of the model writes cache entries that the backend knows", "report this model")
