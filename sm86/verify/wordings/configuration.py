"""Wordings of what the launcher, the plugin and the engine say they were told and chose."""

from __future__ import annotations

import re

from sm86 import manifest
from sm86.verify import events as ev
from sm86.verify.config_text import dict_fields, keyword_fields
from sm86.verify.wordings.wording import At, Wording, fixed, values, wording


def _launcher_line(at: At, found: re.Match[str]) -> ev.Event | None:
    item = manifest.parse_line(at.text)
    if isinstance(item, manifest.Mark):
        return ev.ManifestMark(at.line, at.text, at.source, item.begin, item.version)
    if isinstance(item, manifest.Entry):
        return ev.ManifestEntry(at.line, at.text, at.source, item.section, item.key, item.value)
    return None


def _engine(at: At, found: re.Match[str]) -> ev.Event:
    config = keyword_fields(found["config"])
    # a line beyond the reader's limit is cut: the entries of the compilation config that are whole still count
    compilation = config.get("compilation_config") or found["config"].partition("compilation_config=")[2]
    return ev.EngineInitialised(at.line, at.text, at.source, found["version"], config, dict_fields(compilation))


def _arguments(at: At, found: re.Match[str]) -> ev.Event:
    return ev.NonDefaultArgs(at.line, at.text, at.source, dict_fields(found["args"]))


def _fits(at: At, found: re.Match[str]) -> ev.Event:
    return ev.ContextReduced(at.line, at.text, at.source, int(found[1]), int(found[1]))


def _moe(at: At, found: re.Match[str]) -> ev.Event | None:
    return None if "LoRA" in (found["kind"] or "") else ev.MoeBackend(at.line, at.text, at.source, found[1])


def _hybrid_off(at: At, found: re.Match[str]) -> ev.Event:
    return ev.HybridKvDisabled(at.line, at.text, at.source, at.text[found.start() :][:200])


LAUNCHER = wording("[sm86] ", r"\[sm86\] ", _launcher_line, open_end=True)
"""Lines that begin so are the launcher's or the plugin's; no other wording is looked for in them."""

CONFIGURATION: tuple[Wording, ...] = (
    wording("sm86: ", r"sm86: (\S.*)", values(ev.LauncherRefused, str), open_end=True),
    wording(
        "  version ",
        r" ▄▄ ▄█[ ▄█▀]+  version (\S+)",
        values(ev.VersionBanner, str),
        open_end=True,
        heads=(" ▄▄ ▄█",),
    ),
    wording("non-default args: ", r"non-default args: (?P<args>\{.*)", _arguments, open_end=True),
    wording(
        "Initializing a V1 LLM engine ",
        r"Initializing a V1 LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)",
        _engine,
        open_end=True,
    ),
    wording(
        " data type to store kv cache",
        r"Using (\S+) data type to store kv cache",
        values(ev.KvCacheDtype, str),
        heads=("Using ",),
    ),
    wording(
        "fp8_ds_mla KV cache format",
        r"Using DeepSeek's (fp8_ds_mla) KV cache format",
        values(ev.KvCacheDtype, str),
        heads=("Using DeepSeek's ",),
    ),
    wording("Using max model len ", r"Using max model len (\d+)", values(ev.ContextChosen, int), open_end=True),
    wording(
        "Auto-fit max_model_len: ",
        r"Auto-fit max_model_len: reduced from (\d+) to (\d+) ",
        values(ev.ContextReduced, int, int),
    ),
    wording("Auto-fit max_model_len: ", r"Auto-fit max_model_len: full model context length (\d+) fits", _fits),
    wording(
        "User-specified max_model_len (",
        r"User-specified max_model_len \((\d+)\) is greater than the derived",
        values(ev.ContextRefused, int),
        anywhere=True,
        trouble=True,
    ),
    wording(
        " backend.",
        r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]*) backend\.",
        values(ev.AttentionBackend, str),
        heads=("Using ",),
    ),
    wording(
        " attention backend out of potential backends",
        r"Using ([A-Z][A-Z0-9_]*) attention backend out of potential backends",
        values(ev.AttentionBackend, str),
        heads=("Using ",),
    ),
    wording(" MoE backend", r"Using '?(\w+)'? (?P<kind>[\w ]+? )?MoE backend", _moe, heads=("Using ",)),
    wording(
        " backend for ",
        r"Using (\w+) backend for \w+ MoE",
        values(ev.MoeBackend, str),
        until=(0, 21),
        heads=("Using ",),
    ),
    wording("world_size=", r"world_size=(\d+) rank=(\d+) local_rank=", values(ev.WorkerStarted, int, int)),
    wording("vLLM is using nccl==", r"vLLM is using nccl==(\S+)", values(ev.NcclVersion, str), open_end=True),
    wording(
        "Unknown vLLM environment variable detected: ",
        r"(?:ValueError: )?Unknown vLLM environment variable detected: (\S+)",
        values(ev.UnknownEnvironment, str),
        open_end=True,
        heads=("Unknown vLLM ", "ValueError: "),
    ),
    wording(
        "ybrid KV cache manager ",
        r"Hybrid KV cache manager (?:is disabled|was explicitly enabled but is not)",
        _hybrid_off,
        anywhere=True,
        trouble=True,
    ),
    wording("Turning off hybrid kv cache manager", r"Turning off hybrid kv cache manager", _hybrid_off),
    wording(
        "regression when using chunked local attention",
        r"There is a latency regression when using chunked local attention with the hybrid KV cache manager",
        _hybrid_off,
        heads=("There is a latency ",),
    ),
    wording(
        "setting cudagraph_mode=",
        r"CUDAGraphMode\.\w+ is not supported .*; setting cudagraph_mode=(\w+)",
        values(ev.GraphModeChanged, str),
        heads=("CUDAGraphMode.",),
        open_end=True,
    ),
    wording(
        "verriding cudagraph_mode ",
        r"(?:Dynamic speculative|Pooling models|Encoder-decoder models|KV connector ).*"
        r"Overriding cudagraph_mode (?:from \w+ )?to (\w+)",
        values(ev.GraphModeChanged, str),
        open_end=True,
        heads=("Dynamic ", "Pooling ", "Encoder-decoder ", "KV connector "),
    ),
    wording(
        " is not compatible with compilation mode ",
        r"Cudagraph mode \S+ is not compatible with compilation mode .*Overriding to (\w+)",
        values(ev.GraphModeChanged, str),
        heads=("Cudagraph mode ",),
        open_end=True,
    ),
    wording(
        "Cudagraph is disabled under eager mode",
        r"Cudagraph is disabled under eager mode",
        fixed(ev.GraphModeChanged, "NONE"),
    ),
    wording(
        "Enforce eager set, disabling ",
        r"Enforce eager set, disabling torch\.compile and CUDAGraphs",
        fixed(ev.GraphModeChanged, "NONE"),
    ),
    wording(
        "cudagraph_capture_size",
        r"cudagraph_capture_sizes specified in compilation_config .* is overridden by"
        r"|Truncating max_cudagraph_capture_size to ",
        fixed(ev.GraphSizesChanged),
        heads=("cudagraph_capture_sizes ", "Truncating "),
    ),
    wording(
        "DSA indexer decode path: ",
        r"DSA indexer decode path: .*\bnext_n=(\d+)",
        values(ev.DecodeQueryLength, int),
        since=(0, 24),
        open_end=True,
    ),
)
