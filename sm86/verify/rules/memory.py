"""Rules on memory: what was reserved, the pool of KV blocks, the context served, and memory that ran out."""

from __future__ import annotations

from sm86.verify import events as ev
from sm86.verify.boots import Trouble
from sm86.verify.case import (
    MEND_BOOT,
    MEND_CUT,
    Case,
    failed,
    first_lines,
    is_on,
    not_applicable,
    not_seen,
    passed,
    text_of,
)
from sm86.verify.findings import Finding

_PROFILER = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


def memory_profiler(case: Case) -> Finding:
    """vLLM does (or does not) subtract its estimate of graph memory, as the spec's environment says."""
    wanted = dict(case.envelope.environment).get(_PROFILER)
    entry, notices = case.entry(_PROFILER), case.boot.all(ev.MemoryProfilerNotice)
    if wanted is None:
        return not_applicable(f"the spec leaves {_PROFILER} to vLLM")
    other = [notice for notice in notices if notice.enabled != is_on(wanted)]
    if other:
        state = "on" if other[0].enabled else "off"
        return failed(
            f"the estimate of graph memory is {state}, the spec sets {_PROFILER}={wanted}",
            f"see why the engine's environment lacks {_PROFILER}={wanted}, and start it again",
            [*first_lines(other), entry],
        )
    if entry is not None and text_of(entry.value) != wanted:
        return failed(
            f"the manifest claims {text_of(entry.value)}, the spec sets {_PROFILER}={wanted}", MEND_BOOT, [entry]
        )
    if notices:
        said = "on" if notices[0].enabled else "off"
        return passed(
            f"{said}, as {case.boot.count(ev.MemoryProfilerNotice)} worker(s) say", [*first_lines(notices), entry]
        )
    nothing = [line for line in case.boot.all(ev.GraphEstimate) if line.gib == 0]
    if nothing:
        return not_seen(
            "vLLM measured 0 GiB for graphs and then says nothing of the setting",
            "look for memory that runs out at capture: the estimate is of no use in this run",
            nothing,
        )
    claims = f"; the manifest claims {wanted}" if entry else ""
    return not_seen(f"no worker says whether the estimate is on{claims}", MEND_CUT, [entry])


def block_override(case: Case) -> Finding:
    """Every worker's pool was set to the spec's number of KV blocks: the engine says so once for each of them."""
    wanted = case.wanted().serve.num_gpu_blocks_override
    workers = case.envelope.serve.tensor_parallel
    entry, lines = case.entry("num_gpu_blocks_override"), case.boot.all(ev.KvOverride)
    if wanted is None:
        if lines:
            return failed(
                f"the pool was set to {lines[0].to} blocks, the spec sets none",
                "leave the override out",
                first_lines(lines),
            )
        return not_applicable("the spec lets vLLM size the pool")
    other = [line for line in lines if line.to != wanted]
    if other:
        return failed(
            f"a worker's pool was set to {other[0].to} blocks, the spec wants {wanted}",
            f"start vLLM with --num-gpu-blocks-override {wanted}",
            [*first_lines(other), entry],
        )
    if entry is not None and text_of(entry.value) != str(wanted):
        return failed(f"the manifest claims {text_of(entry.value)}, the spec wants {wanted}", MEND_BOOT, [entry])
    seen = case.boot.count(ev.KvOverride)
    if seen >= workers:
        changed = " (an override of this run)" if wanted != case.envelope.serve.num_gpu_blocks_override else ""
        return passed(f"{wanted} blocks{changed}, set {seen} times for {workers} worker(s)", [*lines, entry])
    if seen and case.boot.count(ev.EngineInitTook):
        return failed(
            f"the pool was set to {wanted} blocks for {seen} of {workers} workers only",
            "see whether all workers belong to this engine, and whether lines of the log were lost",
            [*lines, entry],
        )
    if case.arguments is not None and case.argument("num_gpu_blocks_override") is None:
        return failed(
            f"the server was not asked for a block override, the spec wants {wanted}",
            f"start vLLM with --num-gpu-blocks-override {wanted}",
            [case.arguments, entry],
        )
    claims = f"; the manifest claims {wanted}" if entry else ""
    count = f"only {seen} of {workers} workers" if seen else "no worker"
    return not_seen(f"the override was seen for {count}, which vLLM always prints{claims}", MEND_CUT, [*lines, entry])


def context_served(case: Case) -> Finding:
    """The engine serves the spec's context: after fitting it to its memory, not only as it was asked."""
    wanted = case.envelope.serve.context
    boot, entry, engine = case.boot, case.entry("max_model_len"), case.engine
    refused = boot.last(ev.ContextRefused)
    if refused is not None:
        return failed(
            f"vLLM refuses a context of {refused.asked} tokens, which is longer than the model's",
            "serve the model that the envelope names",
            [refused],
        )
    small = boot.last(ev.KvTooSmall)
    if small is not None:
        possible = f"; it estimates {small.possible_tokens}" if small.possible_tokens else ""
        return failed(
            f"one sequence of {small.tokens} tokens does not fit the KV pool{possible}",
            "raise the block override to what the KV model says (table in docs/runbook.md), or free GPU memory",
            [small],
        )
    final, reduced = boot.last(ev.MaxConcurrency), boot.last(ev.ContextReduced)
    config = case.config("max_seq_len")
    said: list[tuple[str, str, ev.Event | None]] = [
        (str(chosen.tokens), "chose", chosen) for chosen in boot.all(ev.ContextChosen)
    ]
    if config is not None:
        said.append((config, "was configured for", engine))
    if reduced is not None:
        said.append((str(reduced.tokens), "fitted to its memory", reduced))
    if final is not None:
        said.append((str(final.tokens), "serves", final))
    for tokens, verb, line in reversed(said):
        if tokens != str(wanted):
            return failed(
                f"the engine {verb} a context of {tokens} tokens, the spec wants {wanted}",
                f"start vLLM with --max-model-len {wanted}, with enough KV blocks for it",
                [line, entry],
                "max_seq_len",
            )
    if entry is not None and text_of(entry.value) != str(wanted):
        return failed(f"the manifest claims {text_of(entry.value)}, the spec wants {wanted}", MEND_BOOT, [entry])
    if final is None or config is None:
        what = "its config line" if config is None else "the KV cache line, which has the last word on the context,"
        return not_seen(f"{what} is not in the log", MEND_CUT, [line for _, _, line in said])
    return passed(f"{wanted} tokens, {final.times:.2f} such requests fit", [engine, final, entry], "max_seq_len")


def hybrid_kv(case: Case) -> Finding:
    """The hybrid KV cache manager is on: asked for by name, and not turned off by the engine."""
    if not case.envelope.serve.hybrid_kv_cache:
        return not_applicable("the spec does not ask for the hybrid KV cache manager")
    entry, off = case.entry("hybrid_kv"), case.boot.last(ev.HybridKvDisabled)
    mend = "leave --disable-hybrid-kv-cache-manager out; the compressed groups, and with them the context, are lost"
    if off is not None:
        return failed("the engine says that the hybrid KV cache manager is off or refused", mend, [off, entry])
    asked = case.argument("disable_hybrid_kv_cache_manager")
    if asked == "True":
        return failed(
            "the server was told to disable the hybrid KV cache manager",
            mend,
            [case.arguments],
            "disable_hybrid_kv_cache_manager",
        )
    if entry is not None and not is_on(text_of(entry.value)):
        return failed("the manifest claims that hybrid KV is off", MEND_BOOT, [entry])
    if asked is None:
        claims = "; the manifest claims it" if entry else ""
        return not_seen(
            f"the server does not say that it was asked for hybrid KV{claims}",
            "start vLLM with --no-disable-hybrid-kv-cache-manager, or give the whole log",
            [case.arguments, entry],
        )
    built = case.boot.last(ev.EngineInitTook) or case.boot.last(ev.KvCacheSize)
    if built is None:
        return not_seen("asked for, but the log ends before the KV cache was built", MEND_CUT, [case.arguments])
    return passed(
        "asked for by name (vLLM refuses to start where it cannot), and not turned off",
        [case.arguments, built, entry],
        "disable_hybrid_kv_cache_manager",
    )


_KIND = {
    "gpu": "GPU memory ran out",
    "kv": "the KV cache has too little memory",
    "busy": "the GPU had less free memory than asked for",
    "host": "the machine's or the container's RAM ran out",
    "shm": "shared memory ran out",
    "killed": "a process was killed from outside, as an out-of-memory killer does",
}
_MEND = {
    "gpu": "free the GPUs, check the block override against docs/runbook.md, and keep the spec's batch and graph sizes",
    "kv": "raise the block override to what the KV model says (table in docs/runbook.md), or free GPU memory",
    "busy": "end what else uses the GPUs (nvidia-smi names it), such as workers of an earlier server",
    "host": "give the container more RAM or the host more swap; loading needs some GiB for each worker",
    "shm": "give the container the host's shared memory (ipc: host), or a larger shm_size",
    "killed": "look for an out-of-memory killer (`dmesg`, `docker inspect`), and give the host more RAM or swap",
}
_PHASE = {
    "start": "at the start",
    "load": "while loading weights",
    "profile": "while profiling memory",
    "capture": "while capturing graphs",
    "serve": "while serving",
}


def out_of_memory(case: Case) -> Finding:
    """Memory did not run out, in any of its guises and phases."""
    found = [trouble for trouble in case.boot.troubles if isinstance(trouble.event, ev.OutOfMemory)]
    if found:
        cause = _cause(found)
        kind = cause.event.kind if isinstance(cause.event, ev.OutOfMemory) else ""
        return failed(
            f"{_KIND[kind]} {_PHASE[cause.phase]}", _MEND[kind], [cause.event, *(other.event for other in found)]
        )
    ready = case.boot.last(ev.StartupComplete)
    if ready is None:
        return not_seen(f"no sign of it, but the log ends {_PHASE[case.boot.phase]}", MEND_CUT)
    return passed("no sign of it up to the end of the log", [ready])


def _cause(found: list[Trouble]) -> Trouble:
    # a killed process is often the echo of a message that says more
    telling = [one for one in found if isinstance(one.event, ev.OutOfMemory) and one.event.kind != "killed"]
    return (telling or found)[0]
