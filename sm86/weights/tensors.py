"""The tensors that the headers name, against those that the config asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sm86.weights import layout, names, quantization
from sm86.weights.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding, some
from sm86.weights.folder import ModelFolder
from sm86.weights.header import Tensor

RULES = ("tensors", "shapes", "unquantized")

_WHOLE = "fetch the checkpoint again: invoke model.fetch goes on where it stopped"
_REVISION = "fetch the published revision: invoke model.fetch --revision main"


def judge_tensors(found: ModelFolder, quantized: bool) -> list[Finding]:
    """Findings of RULES. quantized: the checkpoint must be W4A16 AutoRound of DeepSeek-V4."""
    if not quantized:
        text = "the layout is known for W4A16 checkpoints of DeepSeek-V4 only"
        return [Finding(rule, NOT_APPLICABLE, text) for rule in RULES]
    if found.config is None:
        return _unseen("config.json could not be read")
    try:
        wanted = layout.expected(found.config)
    except layout.ConfigFault as fault:
        return _unseen(f"no layout follows from config.json: {fault}")
    have = {name: tensor for shard in found.shards for name, tensor in shard.tensors.items()}
    unread = [shard.name for shard in found.shards if shard.problem]
    known = {*have, *(found.index or {})}
    if not known:
        return _unseen("no header could be read")
    wrongly = quantization.wrongly_quantized(found.config, known)
    section = found.config.get("quantization_config")
    return [
        _names(have, wanted, unread, wrongly),
        _shapes(have, wanted, unread),
        _unquantized(found.config, section if isinstance(section, dict) else {}, known, wrongly),
    ]


def _unseen(why: str) -> list[Finding]:
    return [Finding(rule, NOT_SEEN, why, _WHOLE) for rule in RULES]


def _names(
    have: Mapping[str, Tensor], wanted: Mapping[str, Any], unread: list[str], wrongly: Mapping[str, list[str]]
) -> Finding:
    rule = "tensors"
    in_four_bits = {f"{base}.{part}" for bases in wrongly.values() for base in bases for part in names.QUANTIZED_PARTS}
    missing = [name for name in wanted if name not in have]
    strange = [
        name
        for name in have
        if name not in wanted
        and name not in in_four_bits
        and not name.startswith(names.DRAFT_PREFIX)
        and not layout.is_order(name, wanted)
    ]
    if strange:
        text = f"{len(strange):,} tensors are none of this model's: vLLM would stop at the first"
        return Finding(rule, FAIL, text, _REVISION, some(strange))
    if missing and unread:
        text = f"{len(missing):,} of {len(wanted):,} tensors are not seen: {len(unread)} weight files could not be read"
        return Finding(rule, NOT_SEEN, text, _WHOLE)
    if missing:
        return Finding(rule, FAIL, f"{len(missing):,} of {len(wanted):,} tensors are missing", _REVISION, some(missing))
    draft = sum(name.startswith(names.DRAFT_PREFIX) for name in have)
    also = f"; {draft:,} more of the draft layer, which is not served and not judged" if draft else ""
    return Finding(rule, PASS, f"all {len(wanted):,} tensors that the config asks for{also}")


def _shapes(have: Mapping[str, Tensor], wanted: Mapping[str, tuple[Tensor, ...]], unread: list[str]) -> Finding:
    rule = "shapes"
    wrong = []
    seen = 0
    for name, forms in wanted.items():
        tensor = have.get(name)
        if tensor is None:
            continue
        seen += 1
        if tensor not in forms:
            types = " or ".join(form.dtype for form in forms)
            wrong.append(f"{name} is {tensor.dtype} {_size(tensor)}, wanted is {types} {_size(forms[0])}")
    if wrong:
        text = f"{len(wrong):,} of {seen:,} tensors have another type or shape than the config asks for"
        return Finding(rule, FAIL, text, _REVISION, some(wrong))
    if seen < len(wanted):
        why = "weight files could not be read" if unread else "tensors are missing"
        return Finding(rule, NOT_SEEN, f"only {seen:,} of {len(wanted):,} tensors are seen, all right: {why}", _WHOLE)
    return Finding(rule, PASS, f"type and shape of all {seen:,} tensors follow from the config")


def _size(tensor: Tensor) -> str:
    shown = [str(extent) if extent < 10**18 else "a number of too many digits" for extent in tensor.shape[:6]]
    return f"[{', '.join(shown)}{', ...' if len(tensor.shape) > 6 else ''}]"


def _unquantized(
    config: Mapping[str, Any], section: Mapping[str, Any], known: set[str], wrongly: Mapping[str, list[str]]
) -> Finding:
    """What must stay in 16 bits does, in the files and in what the config says of them."""
    rule = "unquantized"
    if wrongly:
        texts = [kind or f"{len(bases)} modules are quantized and must not be" for kind, bases in wrongly.items()]
        bases = [base for some_bases in wrongly.values() for base in some_bases]
        return Finding(rule, FAIL, "; ".join(texts), _REVISION, some(bases))
    kept = [name for name, _ in names.linears(config) if f"{name}.weight" in known]
    if kept:
        text = f"{len(kept):,} linears are stored unquantized that the kernels read in four bits"
        return Finding(rule, FAIL, text, _REVISION, some(kept))
    odd = list(_misnamed(config, section))
    if odd:
        text = "quantization_config names other bits than the files have: vLLM would build these layers wrongly"
        return Finding(rule, FAIL, text, _REVISION, some(odd))
    return Finding(rule, PASS, "router gates, embeddings, compressors and wo_a are in 16 bits, as in the published one")


def _misnamed(config: Mapping[str, Any], section: Mapping[str, Any]) -> Iterator[str]:
    # wo_a is the one unquantized module that vLLM builds from the section; the others it builds without asking
    for layer in range(len(names.ratios_of(config))):
        name = f"layers.{layer}.attn.wo_a"
        bits = quantization.bits_of(section, name)
        if bits is None or bits < 16:
            yield f"{name}: the config says {bits or 'nothing readable'}, the files have 16 bits"
    own = section.get("extra_config")
    if not isinstance(own, dict) or not own:
        return
    for name, role in names.linears(config):
        if role.startswith("expert"):
            continue  # vLLM 0.26.0 gives the experts the section's own bits, whatever is said of one of them
        bits = quantization.bits_of(section, name)
        if bits != layout.BITS:
            yield f"{name}: the config says {bits or 'nothing readable'}, the files have {layout.BITS} bits"
