"""Every wording the reader knows, as data: what it looks like, in which vLLM releases, and which event it makes.

A wording is matched on the message alone: prefixes and the logger's header (with its file names and line numbers,
which move every release) are gone by then. `needle` is a literal that every match contains; it lets the reader pass
over lines cheaply. Ranges are inclusive release numbers; they say where the wording was read in vLLM's sources
(0.20 to 0.33), not where it is accepted: an unexpected version that uses a known wording is read all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sm86 import manifest
from sm86.verify import events as ev
from sm86.verify.config_text import dict_fields, keyword_fields
from sm86.verify.lines import Source

FIRST, LAST = (0, 20), (0, 33)
"""The releases whose sources were read."""


@dataclass(frozen=True, slots=True)
class At:
    """Where a message stands: what every event starts with."""

    line: int
    text: str
    source: Source | None


Build = Callable[[At, re.Match[str]], ev.Event | None]


@dataclass(frozen=True, slots=True)
class Wording:
    """One wording. anywhere: may stand inside a message (errors quoted by others), else only at its start.

    open_end: its value reaches to the end of the line, so a line that the log cuts off may hold a part of it.
    """

    needle: str
    pattern: re.Pattern[str]
    build: Build
    since: tuple[int, int] = FIRST
    until: tuple[int, int] = LAST
    anywhere: bool = False
    open_end: bool = False
    traffic: bool = False

    def read(self, at: At) -> ev.Event | None:
        """The event in this message, or None."""
        found = self.pattern.search(at.text) if self.anywhere else self.pattern.match(at.text)
        return self.build(at, found) if found else None


def _simple(kind: Callable[..., ev.Event], *converters: Callable[[str], object]) -> Build:
    """An event whose further fields are the pattern's groups, in order, each through its converter."""

    def build(at: At, found: re.Match[str]) -> ev.Event:
        values = [convert(found[index]) for index, convert in enumerate(converters, 1)]
        return kind(at.line, at.text, at.source, *values)

    return build


def _fixed(kind: Callable[..., ev.Event], *values: object) -> Build:
    return lambda at, found: kind(at.line, at.text, at.source, *values)


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _launcher_line(at: At, found: re.Match[str]) -> ev.Event | None:
    item = manifest.parse_line(at.text)
    if isinstance(item, manifest.Mark):
        return ev.ManifestMark(at.line, at.text, at.source, item.begin, item.version)
    if isinstance(item, manifest.Entry):
        return ev.ManifestEntry(at.line, at.text, at.source, item.section, item.key, item.value)
    return None


def _engine(at: At, found: re.Match[str]) -> ev.Event:
    config = keyword_fields(found["config"])
    compilation = config.get("compilation_config") or _unfinished(found["config"], "compilation_config=")
    return ev.EngineInitialised(at.line, at.text, at.source, found["version"], config, dict_fields(compilation))


def _unfinished(text: str, name: str) -> str:
    # a cut config line still says what it says: take the entries of the compilation config that are whole
    return text.partition(name)[2]


def _arguments(at: At, found: re.Match[str]) -> ev.Event:
    return ev.NonDefaultArgs(at.line, at.text, at.source, dict_fields(found["args"]))


def _dispatch(at: At, found: re.Match[str]) -> ev.Event:
    said = re.search(r"\buniform(?:_decode)?=(True|False|true|false|1|0)\b", found["rest"])
    uniform = None if said is None else said[1] in ("True", "true", "1")
    return ev.DispatchLine(at.line, at.text, at.source, found["outcome"], uniform)


def _progress(at: At, found: re.Match[str]) -> ev.Event:
    family = found["family"] or ""
    return ev.GraphProgress(
        at.line, at.text, at.source, family, int(found["done"]), int(found["total"]), int(found["percent"])
    )


def _graphs(at: At, found: re.Match[str]) -> ev.Event:
    graphs = {name: int(number) for name, number in re.findall(r"([A-Z_]+)=(\d+)", found[1])}
    return ev.GraphProfile(at.line, at.text, at.source, graphs)


def _kv_too_small(at: At, found: re.Match[str]) -> ev.Event:
    sizes = re.search(r"\((?P<needed>[\d.]+) GiB KV cache is needed.*?memory \((?P<there>[\d.]+) GiB\)", at.text)
    possible = re.search(r"estimated maximum model length is (\d+)\.", at.text)
    return ev.KvTooSmall(
        at.line,
        at.text,
        at.source,
        _count(found["tokens"]),
        float(sizes["needed"]) if sizes else None,
        float(sizes["there"]) if sizes else None,
        int(possible[1]) if possible else None,
    )


def _hybrid_off(at: At, found: re.Match[str]) -> ev.Event:
    return ev.HybridKvDisabled(at.line, at.text, at.source, at.text[found.start() :][:200])


def _fits(at: At, found: re.Match[str]) -> ev.Event:
    return ev.ContextReduced(at.line, at.text, at.source, int(found[1]), int(found[1]))


def _moe(at: At, found: re.Match[str]) -> ev.Event | None:
    return None if found["kind"] and "LoRA" in found["kind"] else ev.MoeBackend(at.line, at.text, at.source, found[1])


def _wording(needle: str, pattern: str, build: Build, **more: object) -> Wording:
    return Wording(needle, re.compile(pattern), build, **more)  # type: ignore[arg-type]


_GIB = r"(-?[\d.]+) GiB"
_EXCEPTION = r"(?P<exception>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (?P<message>.*)"

WORDINGS: tuple[Wording, ...] = (
    # the launcher and the plugin
    _wording("[sm86] ", r"\[sm86\] ", _launcher_line, open_end=True),
    _wording(
        "SM86 cudagraph ", r"SM86 cudagraph (?P<outcome>hit|miss|skip|eager)\b(?P<rest>.*)", _dispatch, anywhere=True
    ),
    # configuration
    _wording("  version ", r"[ ▄█▀]+  version (\S+)", _simple(ev.VersionBanner, str), open_end=True),
    _wording("non-default args: ", r"non-default args: (?P<args>\{.*)", _arguments),
    _wording(
        "Initializing a V1 LLM engine ",
        r"Initializing a V1 LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)",
        _engine,
    ),
    _wording(
        " data type to store kv cache",
        r"Using (\S+) data type to store kv cache",
        _simple(ev.KvCacheDtype, str),
    ),
    _wording(
        "fp8_ds_mla KV cache format",
        r"Using DeepSeek's (fp8_ds_mla) KV cache format",
        _simple(ev.KvCacheDtype, str),
    ),
    _wording("Using max model len ", r"Using max model len (\d+)", _simple(ev.ContextChosen, int), open_end=True),
    _wording(
        "Auto-fit max_model_len: ",
        r"Auto-fit max_model_len: reduced from (\d+) to (\d+) ",
        _simple(ev.ContextReduced, int, int),
    ),
    _wording("Auto-fit max_model_len: ", r"Auto-fit max_model_len: full model context length (\d+) fits", _fits),
    _wording(
        " backend.",
        r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]*) backend\.",
        _simple(ev.AttentionBackend, str),
    ),
    _wording(
        " attention backend out of potential backends",
        r"Using ([A-Z][A-Z0-9_]*) attention backend out of potential backends",
        _simple(ev.AttentionBackend, str),
    ),
    _wording(" MoE backend", r"Using '?(\w+)'? (?P<kind>[\w ]+? )?MoE backend", _moe),
    _wording(" backend for ", r"Using (\w+) backend for \w+ MoE", _simple(ev.MoeBackend, str), until=(0, 21)),
    _wording("world_size=", r"world_size=(\d+) rank=(\d+) local_rank=", _simple(ev.WorkerStarted, int, int)),
    _wording("vLLM is using nccl==", r"vLLM is using nccl==(\S+)", _simple(ev.NcclVersion, str), open_end=True),
    _wording(
        "Unknown vLLM environment variable detected: ",
        r"(?:ValueError: )?Unknown vLLM environment variable detected: (\S+)",
        _simple(ev.UnknownEnvironment, str),
        open_end=True,
    ),
    _wording(
        "ybrid KV cache manager ",
        r"Hybrid KV cache manager (?:is disabled|was explicitly enabled but is not)",
        _hybrid_off,
        anywhere=True,
    ),
    _wording("Turning off hybrid kv cache manager", r"Turning off hybrid kv cache manager", _hybrid_off),
    _wording(
        "regression when using chunked local attention",
        r"There is a latency regression when using chunked local attention with the hybrid KV cache manager",
        _hybrid_off,
    ),
    _wording(
        "setting cudagraph_mode=",
        r"CUDAGraphMode\.\w+ is not supported .*; setting cudagraph_mode=(\w+)",
        _simple(ev.GraphModeChanged, str),
        open_end=True,
    ),
    _wording(
        "verriding cudagraph_mode ",
        r".*Overriding cudagraph_mode (?:from \w+ )?to (\w+)",
        _simple(ev.GraphModeChanged, str),
    ),
    _wording(
        " is not compatible with compilation mode ",
        r"Cudagraph mode \S+ is not compatible with compilation mode .*Overriding to (\w+)",
        _simple(ev.GraphModeChanged, str),
    ),
    _wording(
        "Cudagraph is disabled under eager mode",
        r"Cudagraph is disabled under eager mode",
        _fixed(ev.GraphModeChanged, "NONE"),
    ),
    _wording(
        "Enforce eager set, disabling ",
        r"Enforce eager set, disabling torch\.compile and CUDAGraphs",
        _fixed(ev.GraphModeChanged, "NONE"),
    ),
    _wording(
        "cudagraph_capture_size",
        r"cudagraph_capture_sizes specified in compilation_config .* is overridden by|"
        r"Truncating max_cudagraph_capture_size to ",
        _fixed(ev.GraphSizesChanged),
    ),
    # loading
    _wording("Starting to load model ", r"Starting to load model ", _fixed(ev.LoadStarted)),
    _wording(
        "% Completed | ",
        r"Loading [^:]*: +(?P<percent>\d+)% Completed \| (?P<done>\d+)/(?P<total>\d+) ",
        lambda at, m: ev.WeightsProgress(
            at.line, at.text, at.source, int(m["done"]), int(m["total"]), int(m["percent"])
        ),
    ),
    _wording("Loading weights took ", r"Loading weights took ([\d.]+) seconds", _simple(ev.WeightsLoaded, float)),
    _wording(
        "Model loading took ",
        rf"Model loading took {_GIB} (?:memory )?and ([\d.]+) seconds",  # "memory" is missing in the V2 runner to 0.27
        _simple(ev.ModelLoaded, float, float),
    ),
    # memory
    _wording("Available KV cache memory: ", rf"Available KV cache memory: {_GIB}", _simple(ev.AvailableKv, float)),
    _wording(
        " with num_gpu_blocks_override=",
        r"Overriding num_gpu_blocks=(-?\d+) with num_gpu_blocks_override=(\d+)",
        _simple(ev.KvOverride, int, int),
        open_end=True,
    ),
    _wording(
        "KV cache size: ",
        r"GPU KV cache size: ([\d,]+) tokens",
        _simple(ev.KvCacheSize, _count),
        until=(0, 29),
    ),
    _wording(
        "KV cache size: ",
        r"(?!GPU )(?:[\w+ ]+? )?KV cache size: ([\d,]+) tokens",  # the device's name is a variable since 0.30
        _simple(ev.KvCacheSize, _count),
        since=(0, 30),
    ),
    _wording(
        "Maximum concurrency for ",
        r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        _simple(ev.MaxConcurrency, _count, float),
        until=(0, 27),
    ),
    _wording(
        "Maximum concurrency for ",
        r"[^,]*KV cache size: [\d,]+ tokens[^M]*Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        _simple(ev.MaxConcurrency, _count, float),
        since=(0, 28),
    ),
    _wording(
        "max seq len (",
        r"To serve at least one request with the models?'s max seq len \((?P<tokens>[\d,]+)\)",
        _kv_too_small,
        anywhere=True,  # "the models's" in 0.20, "the model's" later
    ),
    _wording(
        "CUDA graph memory profiling is ",
        r"CUDA graph memory profiling is enabled",
        _fixed(ev.MemoryProfilerNotice, True),
        since=(0, 21),
    ),
    _wording(
        "CUDA graph memory profiling is ",
        r"CUDA graph memory profiling is disabled",
        _fixed(ev.MemoryProfilerNotice, False),
    ),
    # memory that ran out, in all its guises
    _wording(
        "OutOfMemoryError", r"\bOutOfMemoryError\b|\bOutOfMemoryError:", _fixed(ev.OutOfMemory, "gpu"), anywhere=True
    ),
    _wording("CUDA out of memory", r"CUDA out of memory", _fixed(ev.OutOfMemory, "gpu"), anywhere=True),
    _wording("out of memory", r"CUDA (?:driver )?error: out of memory", _fixed(ev.OutOfMemory, "gpu"), anywhere=True),
    _wording("CUDA_ERROR_OUT_OF_MEMORY", r"CUDA_ERROR_OUT_OF_MEMORY", _fixed(ev.OutOfMemory, "gpu"), anywhere=True),
    _wording("cudaErrorMemoryAllocation", r"cudaErrorMemoryAllocation", _fixed(ev.OutOfMemory, "gpu"), anywhere=True),
    _wording("_STATUS_ALLOC_FAILED", r"CU\w+_STATUS_ALLOC_FAILED", _fixed(ev.OutOfMemory, "gpu"), anywhere=True),
    _wording(
        "failure",
        r"[Cc]uda failure \d* ?'?out of memory",  # NCCL's "Last error", below its ncclUnhandledCudaError
        _fixed(ev.OutOfMemory, "gpu"),
        anywhere=True,
    ),
    _wording("not enough GPU memory", r"not enough GPU memory", _fixed(ev.OutOfMemory, "gpu"), anywhere=True),
    _wording(
        "No available memory for the cache blocks",
        r"No available memory for the cache blocks",
        _fixed(ev.OutOfMemory, "kv"),
        anywhere=True,
    ),
    _wording("max seq len (", r"with the models?'s max seq len \(", _fixed(ev.OutOfMemory, "kv"), anywhere=True),
    _wording(
        "less than desired GPU memory utilization",
        r"Free memory on device .* is less than desired GPU memory utilization",
        _fixed(ev.OutOfMemory, "busy"),
        anywhere=True,
    ),
    _wording(
        "allocate memory",
        r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory",
        _fixed(ev.OutOfMemory, "host"),
        anywhere=True,
    ),
    _wording(
        "not enough memory: you tried", r"not enough memory: you tried", _fixed(ev.OutOfMemory, "host"), anywhere=True
    ),
    _wording("MemoryError", r"(?:[\w.]+\.)?MemoryError\b", _fixed(ev.OutOfMemory, "host")),
    _wording("Killed process", r"[Oo]ut of memory: Killed process", _fixed(ev.OutOfMemory, "host"), anywhere=True),
    _wording("oom", r"\boom-kill(?:er)?\b|\boom_reaper\b", _fixed(ev.OutOfMemory, "host"), anywhere=True),
    _wording("OOMKilled", r"\bOOMKilled\b(?!\"?\s*[:=]\s*\"?[Ff]alse)", _fixed(ev.OutOfMemory, "host"), anywhere=True),
    _wording("Killed", r"(?:.*: line \d+: +\d+ )?Killed\b(?:\s.*)?$", _fixed(ev.OutOfMemory, "killed")),
    _wording(
        "xit",
        r"[Ee]xit(?:ed)?(?: with)?(?: |_)?code:? ?\(?(?:137|-9)\b",
        _fixed(ev.OutOfMemory, "killed"),
        anywhere=True,
    ),
    _wording(
        "shared memory",
        r"unable to allocate shared memory|insufficient shared memory|unable to open shared memory object"
        r"|[Ee]rror while (?:creating|attaching to) shared memory segment",
        _fixed(ev.OutOfMemory, "shm"),
        anywhere=True,
    ),
    _wording(
        "No space left on device", r".*/dev/shm.*No space left on device", _fixed(ev.OutOfMemory, "shm"), anywhere=True
    ),
    _wording("Bus error", r"(?:.* )?Bus error\b", _fixed(ev.OutOfMemory, "shm")),
    # graphs
    _wording("Profiling CUDA graph memory: ", r"Profiling CUDA graph memory: (.+)", _graphs, open_end=True),
    _wording(
        "Estimated CUDA graph memory: ", rf"Estimated CUDA graph memory: {_GIB}", _simple(ev.GraphEstimate, float)
    ),
    _wording(
        "CUDA graph",
        r"Capturing (?:[\w-]+ )?CUDA graph(?:s| shapes)(?: \((?P<family>[^()]*)\))?: +"
        r"(?P<percent>\d+)%\|[^|]*\| *(?P<done>\d+)/(?P<total>\d+) ",
        _progress,
    ),
    _wording(
        "Graph capturing finished in ",
        rf"Graph capturing finished in (\d+) secs, took {_GIB}",
        _simple(ev.GraphCaptureFinished, float, float),
    ),
    _wording(
        "CUDA graph pool memory: ",
        rf"CUDA graph pool memory: {_GIB} \(actual\), {_GIB} \(estimated\)",
        _simple(ev.GraphPool, float, float),
    ),
    # life and death
    _wording("init engine (", r"init engine \([^)]*\) took ([\d.]+) s", _simple(ev.EngineInitTook, float)),
    _wording(
        "Starting vLLM ",
        r"Starting vLLM (?:API )?server(?: \d+)? on (\S+)",
        _simple(ev.ServerStarting, str),
        open_end=True,
    ),
    _wording("Application startup complete", r"Application startup complete\.", _fixed(ev.StartupComplete)),
    _wording(
        "[shutdown] API server",
        r"\[shutdown\] API server: shutdown triggered",
        _fixed(ev.ShutdownStarted),
        since=(0, 22),
    ),
    _wording(
        "[shutdown] EngineCore",
        r"\[shutdown\] EngineCore: trigger received signal",
        _fixed(ev.ShutdownStarted),
        since=(0, 22),
    ),
    _wording("Shutdown initiated", r"Shutdown initiated", _fixed(ev.ShutdownStarted), until=(0, 25)),
    _wording("Shutting down", r"Shutting down$", _fixed(ev.ShutdownStarted)),
    _wording("Traceback (most recent call last)", r"Traceback \(most recent call last\)", _fixed(ev.Traceback)),
    _wording(
        ": ",
        _EXCEPTION,
        lambda at, m: ev.ErrorRaised(at.line, at.text, at.source, m["exception"], m["message"]),
    ),
    _wording("failed to start", r"EngineCore failed to start", _fixed(ev.EngineDead, "start")),
    _wording("WorkerProc failed to start", r"WorkerProc failed to start", _fixed(ev.EngineDead, "start")),
    _wording(
        "Engine core initialization failed",
        r"Engine core initialization failed",
        _fixed(ev.EngineDead, "start"),
        anywhere=True,
    ),
    _wording("encountered a fatal error", r"EngineCore encountered a fatal error", _fixed(ev.EngineDead, "engine")),
    _wording("EngineDeadError", r"(?:[\w.]+\.)?EngineDeadError\b", _fixed(ev.EngineDead, "engine")),
    _wording(
        "died unexpectedly",
        r"(?:Worker proc|Engine core process|Engine core proc) .*died unexpectedly",
        _fixed(ev.EngineDead, "worker"),
        anywhere=True,
    ),
    _wording("died with exit code", r"Process .* died with exit code", _fixed(ev.EngineDead, "worker"), anywhere=True),
    _wording("WorkerProc hit an exception", r"WorkerProc hit an exception", _fixed(ev.EngineDead, "worker")),
    _wording(
        "engine core exited unexpectedly",
        r"\[shutdown\] MPClient: engine core exited unexpectedly",
        _fixed(ev.EngineDead, "engine"),
    ),
    _wording("Application startup failed", r"Application startup failed\.", _fixed(ev.EngineDead, "server")),
    _wording(
        "No available shared memory broadcast block",
        r"No available shared memory broadcast block found",
        _fixed(ev.CollectiveStall),
    ),
    # traffic
    _wording(
        "GET /health ",
        r'\S+ - "GET /health HTTP/[\d.]+" (\d+)',
        _simple(ev.HealthLine, int),
        traffic=True,
    ),
    _wording(
        " throughput: ",
        r"Engine \d+: Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
        r"Running: (\d+) reqs, Waiting: (\d+) reqs,.*KV cache usage: ([\d.]+)%",
        _simple(ev.EngineStats, float, float, int, int, float),
        traffic=True,
    ),
)
