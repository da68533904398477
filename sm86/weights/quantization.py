"""What a checkpoint says of its own quantization, and older revisions that say and store it otherwise. Pure.

Quantization is a property of the checkpoint, not a step of this product (docs/runbook.md, provenance). The facts are
those of the published configuration; how vLLM 0.26.0 reads them is in its `quantization/inc/config_parser.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sm86.weights import names
from sm86.weights.layout import BITS, GROUP_SIZE

METHOD = "auto-round"
PACKING = "auto_round:auto_gptq"

_SPECIAL = frozenset(r"*+?^$()[]{}|\\")

_ENDLESS = re.compile(r"\)[*+{]")
"""A group that is repeated: Python may look for it longer than anybody waits, and a checkpoint's config is foreign."""

OLDER_REVISIONS = (
    (
        re.compile(r"layers\.\d+\.ffn\.gate"),
        "the router gates",
        "an older revision of the checkpoint: AutoRound quantized the router gate until May 2026, and vLLM builds it "
        "unquantized",
    ),
    (
        re.compile(r"layers\.\d+\.attn\.(indexer\.)?compressor\.(wkv|wgate)"),
        "the KV compressors",
        "an older revision of the checkpoint: vLLM would stop with KeyError fused_wkv_wgate.qweight",
    ),
    (
        re.compile(r"embed|head"),
        "the embeddings",
        "an older revision of the checkpoint: AutoRound quantized them until May 2026, and vLLM builds them "
        "unquantized",
    ),
    (
        re.compile(r"layers\.\d+\.attn\.wo_a"),
        "the output projections wo_a",
        "another export than the published one: the SM86 kernels read wo_a in 16 bits",
    ),
    (
        re.compile(r"layers\.\d+\.attn\.indexer\.weights_proj"),
        "the indexer's weights_proj",
        "another export than the published one: vLLM builds it unquantized",
    ),
)
"""Base names that some revisions quantize: pattern, what they are, what such a checkpoint is.

Sources: intel/auto-round issue 1776 (gate and embeddings, mended in May 2026), vLLM 0.26.0's module tree.
"""


def faults(quantization: Mapping[str, Any] | None) -> list[str]:
    """What the config's quantization section says that the backend does not serve; one sentence each."""
    if not quantization:
        return ["the checkpoint is not quantized"]
    wrong = []
    wanted = {"quant_method": METHOD, "bits": BITS, "group_size": GROUP_SIZE, "sym": True}
    for key, value in wanted.items():
        found = quantization.get(key)
        if found != value or type(found) is not type(value):
            wrong.append(f"quantization {key} is {found!r}, served is {value!r}")
    return wrong + packing_faults(quantization)


def packing_faults(quantization: Mapping[str, Any]) -> list[str]:
    """The faults of how the four bits are stored, and of which blocks the section claims."""
    wrong = []
    packing = quantization.get("packing_format", PACKING)
    if packing != PACKING:
        wrong.append(f"packing_format is {packing!r}, served is {PACKING!r}")
    blocks = quantization.get("block_name_to_quantize", quantization.get("to_quant_block_names"))
    if "layers" in (blocks.split(",") if isinstance(blocks, str) else blocks if isinstance(blocks, list) else ()):
        wrong.append("block_name_to_quantize is 'layers' without a dot: vLLM would load every layer unquantized")
    return wrong


def words(quantization: Mapping[str, Any]) -> str:
    """The section in words: `auto-round with 4 bits and group size 128`."""
    method = quantization.get("quant_method") or "an unnamed method"
    bits, group = quantization.get("bits"), quantization.get("group_size")
    parts = [f"{bits} bits" if bits is not None else "", f"group size {group}" if group is not None else ""]
    rest = " and ".join(part for part in parts if part)
    return f"{method} with {rest}" if rest else str(method)


def bits_of(quantization: Mapping[str, Any], name: str) -> int | None:
    """Bits that the section gives the linear of that base name; None where `extra_config` cannot be read, or holds a
    pattern that might be looked for without end.

    As vLLM reads it: the exact name first, then the patterns in their order, then the section's own bits. vLLM turns
    `layers.` into `model.layers.` in the names, so a key may have either beginning.
    """
    default = quantization.get("bits")
    own = quantization.get("extra_config") or {}
    if not isinstance(own, dict):
        return None
    for key in (name, f"model.{name}"):
        if key in own:
            return _bits(own[key], default)
    for pattern, entry in own.items():
        if not _SPECIAL.intersection(pattern):
            continue
        if _ENDLESS.search(pattern):
            return None
        try:
            if re.search(pattern, f"model.{name}") or re.search(pattern, name):
                return _bits(entry, default)
        except (re.error, RecursionError):
            continue
    return _bits({}, default)


def _bits(entry: Any, default: Any) -> int | None:
    value = entry.get("bits", default) if isinstance(entry, dict) else None
    return value if type(value) is int else None


def wrongly_quantized(config: Mapping[str, Any], found: Collection[str]) -> dict[str, list[str]]:
    """Base names that are stored in four bits and must not be, by what such a checkpoint is ("" where nobody knows).

    found: the checkpoint's tensor names. The keys are whole sentences; the draft layer is not judged.
    """
    good = {name for name, _ in names.linears(config)}
    bases = sorted(
        name.removesuffix(".qweight")
        for name in found
        if name.endswith(".qweight") and not name.startswith(names.DRAFT_PREFIX)
    )
    kinds: dict[str, list[str]] = {}
    for base in bases:
        if base in good:
            continue
        kind = next(
            (f"{what} are quantized: {why}" for pattern, what, why in OLDER_REVISIONS if pattern.fullmatch(base)), ""
        )
        kinds.setdefault(kind, []).append(base)
    return kinds
