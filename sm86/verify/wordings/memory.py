"""Wordings of loading, of memory as the engine plans it, and of memory that ran out."""

from __future__ import annotations

import re

from sm86.verify import events as ev
from sm86.verify.wordings.wording import GIB, At, Wording, count, fixed, values, wording


def _shards(at: At, found: re.Match[str]) -> ev.Event:
    done, total, percent = int(found["done"]), int(found["total"]), int(found["percent"])
    return ev.WeightsProgress(at.line, at.text, at.source, done, total, percent)


def _kv_too_small(at: At, found: re.Match[str]) -> ev.Event:
    sizes = re.search(rf"\({GIB} KV cache is needed.*?memory \({GIB}\)", at.text)
    possible = re.search(r"estimated maximum model length is (\d{1,12})\.", at.text)
    return ev.KvTooSmall(
        at.line,
        at.text,
        at.source,
        count(found["tokens"]),
        float(sizes[1]) if sizes else None,
        float(sizes[2]) if sizes else None,
        int(possible[1]) if possible else None,
    )


def _ran_out(kind: str, needle: str, pattern: str, *, anywhere: bool = True) -> Wording:
    return wording(needle, pattern, fixed(ev.OutOfMemory, kind), anywhere=anywhere, trouble=True)


LOADING: tuple[Wording, ...] = (
    wording("Starting to load model ", r"Starting to load model ", fixed(ev.LoadStarted)),
    wording(
        "% Completed | ",
        r"Loading [^:]*: +(?P<percent>\d+)% Completed \| (?P<done>\d+)/(?P<total>\d+) ",
        _shards,
        heads=("Loading ",),
    ),
    wording("Loading weights took ", r"Loading weights took ([\d.]+) seconds", values(ev.WeightsLoaded, float)),
    wording(
        "Model loading took ",
        rf"Model loading took {GIB} (?:memory )?and ([\d.]+) seconds",  # no "memory" in the V2 runner before 0.28
        values(ev.ModelLoaded, float, float),
    ),
)

MEMORY: tuple[Wording, ...] = (
    wording("Available KV cache memory: ", rf"Available KV cache memory: {GIB}", values(ev.AvailableKv, float)),
    wording(
        " with num_gpu_blocks_override=",
        r"Overriding num_gpu_blocks=(-?\d+) with num_gpu_blocks_override=(\d+)",
        values(ev.KvOverride, int, int),
        heads=("Overriding num_gpu_blocks=",),
        open_end=True,
    ),
    wording(
        "KV cache size: ",
        r"GPU KV cache size: ([\d,]+) tokens",
        values(ev.KvCacheSize, count),
        until=(0, 29),
        heads=("GPU KV cache ",),
    ),
    wording(
        "KV cache size: ",
        r"(?!GPU )(?:[\w+ ]+? )?KV cache size: ([\d,]+) tokens",  # the device's name is a variable since 0.30
        values(ev.KvCacheSize, count),
        since=(0, 30),
    ),
    wording(
        "Maximum concurrency for ",
        r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        values(ev.MaxConcurrency, count, float),
        until=(0, 27),
    ),
    wording(
        "KV cache size: ",
        r"[\w+ ]*KV cache size: .*Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        values(ev.MaxConcurrency, count, float),
        since=(0, 28),
    ),
    wording(
        "max seq len (",
        r"To serve at least one request with the models?'s max seq len \((?P<tokens>[\d,]+)\)",
        _kv_too_small,  # "the models's" in 0.20, "the model's" later
        anywhere=True,
        trouble=True,
    ),
    wording(
        "CUDA graph memory profiling is ",
        r"CUDA graph memory profiling is enabled",
        fixed(ev.MemoryProfilerNotice, True),
        since=(0, 21),
    ),
    wording(
        "CUDA graph memory profiling is ",
        r"CUDA graph memory profiling is disabled",
        fixed(ev.MemoryProfilerNotice, False),
    ),
)

RAN_OUT: tuple[Wording, ...] = (
    _ran_out("gpu", "OutOfMemoryError", r"\bOutOfMemoryError\b"),
    _ran_out("gpu", "CUDA out of memory", r"CUDA out of memory"),
    _ran_out("gpu", "error: out of memory", r"CUDA (?:driver )?error: out of memory"),
    _ran_out("gpu", "CUDA_ERROR_OUT_OF_MEMORY", r"CUDA_ERROR_OUT_OF_MEMORY"),
    _ran_out("gpu", "cudaErrorMemoryAllocation", r"cudaErrorMemoryAllocation"),
    _ran_out("gpu", "_STATUS_ALLOC_FAILED", r"CU\w+_STATUS_ALLOC_FAILED"),
    # NCCL's own line, and the "Last error" below its ncclUnhandledCudaError
    _ran_out("gpu", "uda failure ", r"[Cc]uda failure \d* ?'?out of memory"),
    _ran_out("gpu", "not enough GPU memory", r"not enough GPU memory"),
    _ran_out("kv", "No available memory for the cache blocks", r"No available memory for the cache blocks"),
    _ran_out("kv", "max seq len (", r"with the models?'s max seq len \("),
    _ran_out(
        "busy",
        "less than desired GPU memory utilization",
        r"Free memory on device .* is less than desired GPU memory utilization",
    ),
    _ran_out("host", "allocate memory", r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory"),
    _ran_out("host", "not enough memory: you tried", r"not enough memory: you tried"),
    _ran_out("host", "MemoryError", r"(?:[\w.]+\.)?MemoryError\b", anywhere=False),
    _ran_out("host", "Killed process", r"[Oo]ut of memory: Killed process"),
    _ran_out("host", "oom", r"\boom-kill(?:er)?\b|\boom_reaper\b"),
    _ran_out("host", "OOMKilled", r"\bOOMKilled\b(?!\"?\s*[:=]\s*\"?[Ff]alse)"),
    _ran_out("killed", "Killed", r"(?:.*: line \d+: +\d+ )?Killed(?:\s{2,}.*)?$", anywhere=False),
    _ran_out("killed", "xit", r"\b[Ee]xit(?:ed)?(?: with)?[ _]?code:? ?\(?(?:137|-9)\b"),
    _ran_out(
        "shm",
        "shared memory",
        r"unable to allocate shared memory|insufficient shared memory|unable to open shared memory object"
        r"|[Ee]rror while (?:creating|attaching to) shared memory segment",
    ),
    _ran_out("shm", "No space left on device", r"/dev/shm.*No space left on device|No space left on device.*/dev/shm"),
    _ran_out("shm", "Bus error", r"(?:.* )?Bus error\b", anywhere=False),
)
