"""Facts of a checkpoint -> findings, rule by rule. Pure: the facts come from `folder`, `tokenizer` and `hashing`.

Every rule answers. What applies and could not be seen, because a file before it could not be read, is "not seen".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sm86.weights import quantization
from sm86.weights.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding, some
from sm86.weights.folder import INDEX, ModelFolder
from sm86.weights.tensors import judge_tensors

FETCH = "fetch the checkpoint again: invoke model.fetch goes on where it stopped"
READABLE = "let this user read it (chmod -R a+rX FOLDER)"
LINKS = "the link's target is gone: fetch the file again"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The checkpoint that an envelope means. Empty values mean: nothing is known, do not compare.

    quantized: it must be AutoRound W4A16 in the layout of `sm86.weights.layout`. config: values of config.json.
    """

    repository: str
    architecture: str
    quantized: bool
    packing_format: str = ""
    autoround_version: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def judge(found: ModelFolder, wanted: Wanted, tokenizer: Finding) -> list[Finding]:
    """Every finding but the lock file's (`sm86.weights.locked`), in reading order. tokenizer: its own finding."""
    config = found.config
    findings = [_config(found)]
    if config is None:
        rules = ("architecture", "quantization", "packing", "autoround-version", "config-values")
        findings += [
            Finding(rule, NOT_SEEN, "config.json could not be read", _mend(found.config_problem)) for rule in rules
        ]
    else:
        findings += [
            _architecture(config, wanted),
            *_quantization(config, wanted),
            _config_values(config, wanted),
        ]
    findings += [_index(found), _weight_files(found), *judge_tensors(found, wanted.quantized), tokenizer]
    return findings


def _mend(problem: str) -> str:
    if "link" in problem:
        return LINKS
    return READABLE if "ermission" in problem else FETCH


def _config(found: ModelFolder) -> Finding:
    if found.config is None:
        return Finding("config", FAIL, found.config_problem, _mend(found.config_problem))
    return Finding("config", PASS, f"config.json is read: {len(found.config)} values")


def _architecture(config: Mapping[str, Any], wanted: Wanted) -> Finding:
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
    if architecture != wanted.architecture:
        holds = architecture or "a model of no named architecture"
        return Finding(
            "architecture", FAIL, f"it is {holds}, served is {wanted.architecture}", f"use {wanted.repository}"
        )
    return Finding("architecture", PASS, wanted.architecture)


def _quantization(config: Mapping[str, Any], wanted: Wanted) -> list[Finding]:
    section = config.get("quantization_config")
    if not wanted.quantized:
        state = "is not quantized" if not section else "is quantized, and its envelope does not ask how"
        text = f"the checkpoint {state}"
        return [Finding(rule, NOT_APPLICABLE, text) for rule in ("quantization", "packing", "autoround-version")]
    mend = f"use {wanted.repository}: quantization is a property of the checkpoint, nothing here can change it"
    if not isinstance(section, dict) or not section:
        dtype = config.get("torch_dtype") or config.get("dtype") or "of an unnamed type"
        return [
            Finding("quantization", FAIL, f"the checkpoint is not quantized ({dtype})", mend),
            Finding("packing", NOT_SEEN, "there is no quantization_config", mend),
            Finding("autoround-version", NOT_SEEN, "there is no quantization_config", mend),
        ]
    packing = quantization.packing_faults(section)
    method = [fault for fault in quantization.faults(section) if fault not in packing]
    words = quantization.words(section)
    return [
        Finding("quantization", FAIL, "; ".join(method), mend)
        if method
        else Finding("quantization", PASS, f"{words}, symmetric"),
        _packing(section, packing, wanted, mend),
        _version(section, wanted),
    ]


def _packing(section: Mapping[str, Any], faults: list[str], wanted: Wanted, mend: str) -> Finding:
    packing = section.get("packing_format")
    if faults:
        return Finding("packing", FAIL, "; ".join(faults), mend)
    if packing is None and wanted.packing_format:
        return Finding("packing", NOT_SEEN, "the config names no packing_format", mend)
    return Finding("packing", PASS, str(packing))


def _version(section: Mapping[str, Any], wanted: Wanted) -> Finding:
    rule, version = "autoround-version", section.get("autoround_version")
    if not wanted.autoround_version:
        return Finding(rule, NOT_APPLICABLE, f"{version}; none is published to compare it with")
    if version is None:
        return Finding(
            rule, NOT_SEEN, "the config names no autoround_version", "use a revision whose config.json names it"
        )
    if version != wanted.autoround_version:
        return Finding(
            rule,
            FAIL,
            f"written by AutoRound {str(version)[:40]}, the published checkpoint by {wanted.autoround_version}",
            "it is another revision or another checkpoint: fetch the published one, or name this beside every number",
        )
    return Finding(rule, PASS, f"written by AutoRound {version}")


def _config_values(config: Mapping[str, Any], wanted: Wanted) -> Finding:
    rule = "config-values"
    if not wanted.config:
        return Finding(rule, NOT_APPLICABLE, "the envelope's family names no values to compare")
    different = [key for key, value in wanted.config.items() if not _same(config.get(key), value)]
    if different:
        shown = tuple(
            f"{key} is {_short(config.get(key)) if key in config else 'missing'}, the family has "
            f"{_short(wanted.config[key])}"
            for key in different[:8]
        )
        count = f"{len(different)} of {len(wanted.config)} values differ from the family's"
        return Finding(rule, FAIL, count, f"use {wanted.repository}", shown)
    return Finding(rule, PASS, f"all {len(wanted.config)} values are the family's")


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_same, found, wanted))
    return bool(found == wanted)


def _short(value: Any) -> str:
    if type(value) is int and abs(value) >= 10**18:
        return "a number of too many digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _index(found: ModelFolder) -> Finding:
    rule = "index"
    if found.index_problem:
        return Finding(rule, FAIL, found.index_problem, _mend(found.index_problem))
    if found.index is None:
        if len(found.shards) > 1:
            return Finding(rule, FAIL, f"{len(found.shards)} weight files, but no {INDEX}", FETCH)
        return Finding(rule, NOT_APPLICABLE, "one weight file needs no index")
    sound = [shard for shard in found.shards if not shard.problem]
    where: dict[str, str] = {}
    twice = []
    for shard in sound:
        twice += [name for name in shard.tensors if name in where]
        where |= dict.fromkeys(shard.tensors, shard.name)
    readable = {shard.name for shard in sound}
    wrong = [name for name, file in found.index.items() if file in readable and where.get(name) != file]
    unnamed = [name for name in where if name not in found.index]
    if wrong or unnamed or twice:
        lines = [
            f"{len(wrong):,} tensors are not in the file that the index names" if wrong else "",
            f"{len(unnamed):,} tensors stand in the files and not in the index" if unnamed else "",
            f"{len(twice):,} tensors stand in two files" if twice else "",
        ]
        text = "the index disagrees with the files' headers: " + ", ".join(line for line in lines if line)
        return Finding(rule, FAIL, text, "take index and files from one revision", some({*wrong, *unnamed, *twice}))
    if len(sound) < len(found.shards):
        return Finding(rule, NOT_SEEN, "not every weight file that the index names could be read", FETCH)
    total = sum(shard.data_bytes for shard in sound)
    if found.index_total is not None and found.index_total != total:
        return Finding(
            rule,
            FAIL,
            f"the index claims {_short(found.index_total)} bytes of tensors, the headers have {total:,}",
            "take index and files from one revision",
        )
    return Finding(rule, PASS, f"{len(found.index):,} tensors in {len(found.shards)} files, as their headers say")


def _weight_files(found: ModelFolder) -> Finding:
    rule = "weight-files"
    bad = [shard for shard in found.shards if shard.problem]
    if bad:
        lines = tuple(f"{shard.name} {shard.problem}" for shard in bad[:8])
        text = f"{len(bad)} of {len(found.shards)} weight files are not whole"
        return Finding(rule, FAIL, text, _mend(bad[0].problem), lines)
    if not found.shards:
        return Finding(rule, NOT_SEEN, "no weight file is known", FETCH)
    if found.strangers:
        return Finding(
            rule,
            FAIL,
            f"{len(found.strangers)} weight files are in no index",
            "they are left over from another revision, or the index is: take both from one",
            found.strangers[:8],
        )
    size = sum(shard.size for shard in found.shards)
    return Finding(rule, PASS, f"{len(found.shards)} files, {size / 2**30:,.2f} GiB, every header whole")
