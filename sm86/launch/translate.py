"""Overrides -> what the engine understands: changed arguments, changed environment, and for each override whether it
has an effect here and why. Pure.

Every "why" was read in the sources of vLLM 0.26.0 (0.28.0 for the CPU engine) and NCCL 2.28.9.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sm86.errors import CouldNotRun
from sm86.launch import arguments, nccl_lists
from sm86.launch.overrides import Given

EFFECTIVE = "effective"
INERT = "inert"

FLASHINFER_TABLE: Mapping[tuple[int, int], tuple[int, ...]] = {
    (9, 0): (2, 4, 8),
    (10, 0): (2, 4, 8, 16),
    (10, 3): (2, 4, 8, 16),
}
"""Compute capability -> ranks for which vLLM has a size table of FlashInfer's all-reduce (allreduce_rms_fusion.py)."""

PROFILE_DELAY = 5
"""Steps after /start_profile that are not recorded."""

NO_CPU_COLLECTIVE = "the CPU engine is one process and has no all-reduce"
NO_CPU_GRAPHS = "the CPU engine captures no CUDA graphs"
ONE_RANK = "with one GPU there is no all-reduce"
# NCCL 2.28.9 has all-reduce kernels of its own name for LL alone; they run LL128 and Simple as well
WHAT_RAN = "invoke comm says what runs (a kernel's name in a trace tells Ring from Tree, and never the protocol)"
NO_PLUGIN = "the sm86 plugin, which prints these lines, is not installed in this engine"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run's overrides meet. engine: "cuda" or "cpu". capability: of the GPUs, None where not known (then 8.6 is
    taken). plugin: whether the sm86 plugin will be loaded; trace_dir: where the profiler would write. Graphs come from
    the arguments."""

    engine: str
    capability: tuple[int, int] | None = None
    plugin: bool = False
    trace_dir: str = "/cache/traces"


@dataclass(frozen=True, slots=True)
class State:
    """What became of an override: EFFECTIVE or INERT, and why."""

    value: str
    state: str
    why: str

    def entry(self) -> dict[str, str]:
        return {"value": self.value, "state": self.state, "why": self.why}


@dataclass(frozen=True, slots=True)
class Change:
    """An argument that an override changed; "" where it was or is absent."""

    argument: str
    was: str
    now: str
    override: str

    def entry(self) -> dict[str, str]:
        return {"argument": self.argument, "was": self.was, "now": self.now, "by": self.override}


@dataclass(slots=True)
class Run:
    """Arguments and environment while the overrides are applied one after another."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    setting: Setting
    given: Mapping[str, Given]
    states: dict[str, State] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    @property
    def facts(self) -> arguments.Facts:
        return arguments.facts_of(self.argv)

    @property
    def on_cpu(self) -> bool:
        return self.setting.engine == "cpu"

    def change(self, argv: tuple[str, ...], flag: str, override: str) -> None:
        was, now = _shown(self.argv, flag), _shown(argv, flag)
        self.argv = argv
        if was != now:
            self.changes.append(Change(flag, was, now, override))


def _shown(argv: Sequence[str], flag: str) -> str:
    if flag in arguments.SWITCHES:
        return {True: flag, False: "--no-" + flag[2:], None: ""}[arguments.switch_of(argv, flag)]
    if flag in arguments.JSON_FLAGS:
        value = arguments.json_of(argv, flag)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False) if value else ""
    return arguments.value_of(argv, flag) or ""


def apply(
    argv: Sequence[str], environment: Mapping[str, str], given: Mapping[str, Given], setting: Setting
) -> tuple[tuple[str, ...], dict[str, str], dict[str, State], tuple[Change, ...]]:
    """Arguments, environment, states by name and the changed arguments. Raises CouldNotRun: an override that would
    end the server (no algorithm left for a collective, fewer batched tokens than sequences)."""
    run = Run(tuple(argv), dict(environment), setting, given)
    for name, override in given.items():
        run.environment[name] = override.text
        run.states[name] = _RULES[name](run, override)
    return run.argv, run.environment, run.states, tuple(run.changes)


def _effective(override: Given, why: str) -> State:
    return State(override.text, EFFECTIVE, why)


def _inert(override: Given, why: str) -> State:
    return State(override.text, INERT, why)


def _no_collective(run: Run, override: Given) -> State | None:
    if run.on_cpu:
        return _inert(override, NO_CPU_COLLECTIVE)
    return _inert(override, ONE_RANK) if run.facts.ranks == 1 else None


def _nccl_algo(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    # NCCL 2.28 applies a list without a collective to every collective, and has no Tree for the all-gather of the
    # logits: the communicator would then end with "no algorithm/protocol available for function AllGather"
    choices = tuple(
        nccl_lists.Choice(choice.collective or "AllReduce", choice.excludes, choice.names) for choice in override.value
    )
    for collective in nccl_lists.COLLECTIVES:
        usable = nccl_lists.USABLE_WITHOUT_SWITCH if collective == "AllReduce" else ("Ring",)
        left = nccl_lists.allowed_for(collective, choices, nccl_lists.ALGORITHMS)
        if not set(usable) & set(left):
            raise CouldNotRun(
                f"NCCL_ALGO={override.text} leaves {collective} no algorithm: on GPUs without NVSwitch NCCL has "
                f"{' and '.join(usable)} for it",
                f"allow {' or '.join(usable)} for {collective}",
            )
    text = nccl_lists.text_of(choices)
    run.environment["NCCL_ALGO"] = text
    scoped = "" if text == override.text else f", set as {text}: NCCL 2.28 has Ring alone for the other collectives"
    return _effective(override, f"every worker's NCCL reads it{scoped}; {WHAT_RAN}")


def _nccl_proto(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    for collective in nccl_lists.COLLECTIVES:
        if not nccl_lists.allowed_for(collective, override.value, nccl_lists.PROTOCOLS):
            raise CouldNotRun(f"NCCL_PROTO={override.text} leaves {collective} no protocol", "allow at least one")
    why = f"every worker's NCCL reads it; {WHAT_RAN}"
    named = {name for choice in override.value if not choice.excludes for name in choice.names}
    if "LL128" in named:
        why += "; NCCL never chooses LL128 on this architecture by itself, where it is not validated: check the output"
    return _effective(override, why)


def _nccl_plain(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    return _effective(override, "every worker's NCCL reads it; it holds for every collective, prefill's too")


def _no_peer_access(run: Run, override: Given) -> State:
    state = _nccl_plain(run, override)
    # on more than two PCIe GPUs vLLM's own all-reduce is off by itself
    if state.state == INERT or not override.value or run.facts.tensor_parallel != 2:
        return state
    flag = "--disable-custom-all-reduce"
    asked = arguments.switch_of(run.argv, flag)
    if asked is None:
        run.change(arguments.with_switch(run.argv, flag, True), flag, override.name)
        words = f"{flag} is added, as vLLM's own all-reduce of two GPUs would go on with peer access"
    elif asked:
        words = f"{flag} was given, so vLLM's own all-reduce uses none either"
    else:
        words = f"{_shown(run.argv, flag)} was given, so vLLM's own all-reduce uses peer access all the same"
    return _effective(override, f"{state.why}; {words}")


def _nccl_debug(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    return _effective(override, "every worker's NCCL writes it to the server's log; it changes no collective")


def _profile(run: Run, override: Given) -> State:
    config = {
        "profiler": "torch",
        "torch_profiler_dir": run.setting.trace_dir,
        # Python stacks and the table of sums would be most of the trace, and minutes of its export
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
        # it starts while decoding: the first steps show what starting it costs, not what a step costs
        "delay_iterations": PROFILE_DELAY,
        "max_iterations": override.value,
    }
    flag = "--profiler-config"
    run.change(arguments.with_json(run.argv, flag, config), flag, override.name)
    return _effective(override, f"passed as {flag}; costs nothing until invoke trace.capture starts it")


def _speculative(run: Run, override: Given) -> State:
    config: dict[str, Any] | None = override.value
    if config is None:
        return _effective(override, "no drafting")
    facts = run.facts
    run.change(arguments.with_json(run.argv, "--speculative-config", config), "--speculative-config", override.name)
    why = "a probe: drafting cut 56 tok/s to about 20 on the published rig, and is no published envelope"
    sizes = facts.graphs.sizes
    if sizes and facts.graphs.mode != "NONE" and not run.on_cpu:
        # a decode step then holds 1 + n tokens a sequence; vLLM ends where no size is a multiple of that
        step = 1 + config["num_speculative_tokens"]
        compilation = arguments.json_of(run.argv, "--compilation-config")
        compilation["cudagraph_capture_sizes"] = [size * step for size in sizes]
        compilation["max_cudagraph_capture_size"] = max(sizes) * step
        argv = arguments.with_json(run.argv, "--compilation-config", compilation)
        run.change(argv, "--compilation-config", override.name)
        why += f"; capture sizes are multiplied by {step}, the tokens of a sequence in one step"
    return _effective(override, why)


def _fuse(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    compilation = arguments.json_of(run.argv, "--compilation-config")
    compilation["pass_config"] = {**compilation.get("pass_config", {}), "fuse_allreduce_rms": override.value}
    argv = arguments.with_json(run.argv, "--compilation-config", compilation)
    run.change(argv, "--compilation-config", override.name)
    if not override.value:
        return _inert(override, "passed as pass_config.fuse_allreduce_rms=false, which is what vLLM does here anyway")
    return _inert(
        override,
        "passed as pass_config.fuse_allreduce_rms, but DeepSeek-V4 runs without the Inductor passes that would fuse, "
        "its all-reduce is followed by mHC and not by an RMS norm, and vLLM 0.26.0 has no size table for SM86",
    )


def _flashinfer_runs(run: Run) -> bool:
    return run.facts.ranks in FLASHINFER_TABLE.get(run.setting.capability or (8, 6), ())


def _flashinfer(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    if not override.value:
        return _effective(override, "off, which is the default; NCCL does the all-reduce")
    if _flashinfer_runs(run):
        return _effective(override, "vLLM has a size table for these GPUs")
    return _inert(override, "vLLM 0.26.0 has no size table for SM86, warns and leaves the all-reduce to NCCL")


def _flashinfer_backend(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    asked = run.given.get("VLLM_ALLREDUCE_USE_FLASHINFER")
    if _flashinfer_runs(run) and asked and asked.value:
        return _effective(override, "read when FlashInfer's workspace is made")
    return _inert(override, "only read when FlashInfer's workspace is made, which does not happen on SM86")


def _host_allreduce(run: Run, override: Given) -> State:
    nowhere = _no_collective(run, override)
    if nowhere:
        return nowhere
    if not run.setting.plugin:
        return _inert(override, "the sm86 plugin, which has this all-reduce, is not installed in this engine")
    if override.value == "0":
        return _effective(override, "off; NCCL does every all-reduce")
    chosen = "values and times at start decide" if override.value == "auto" else "taken for every decode message"
    return _effective(override, f"{chosen}; the log's [sm86] collectives lines say what was chosen and why")


def _indexer_query(run: Run, override: Given) -> State:
    if run.on_cpu:
        return _inert(override, "the CPU engine's model has no indexer")
    if not run.setting.plugin:
        return _inert(override, "the sm86 plugin, whose indexer this is, is not installed in this engine")
    if override.value == "bf16":
        return _effective(override, "the query is not rounded further, as without this setting")
    return _effective(override, "the query goes through e4m3, so other keys may be chosen at near ties")


def _dispatch_debug(run: Run, override: Given) -> State:
    if run.on_cpu:
        return _inert(override, NO_CPU_GRAPHS)
    if not override.value:
        return _effective(override, "off")
    if run.facts.graphs.mode == "NONE":
        return _inert(override, "no graphs are captured: the mode is NONE")
    # vLLM's own table counts how often each size ran in which mode; it does not say why one missed
    argv = arguments.with_switch(run.argv, "--cudagraph-metrics", True)
    run.change(argv, "--cudagraph-metrics", override.name)
    if run.setting.plugin:
        return _effective(override, "the sm86 plugin logs skips and misses; --cudagraph-metrics adds vLLM's own table")
    return _inert(override, f"{NO_PLUGIN}; --cudagraph-metrics is added, vLLM's own table of modes")


def _spec_debug(run: Run, override: Given) -> State:
    if run.on_cpu:
        return _inert(override, NO_CPU_GRAPHS)
    if not override.value:
        return _effective(override, "off")
    drafting = run.given.get("SPECULATIVE_CONFIG")
    if not (drafting and drafting.value):
        return _inert(override, "nothing drafts: SPECULATIVE_CONFIG is none")
    if run.facts.graphs.mode == "NONE":
        return _inert(override, "no graphs are captured: the mode is NONE")
    if not run.setting.plugin:
        return _inert(override, NO_PLUGIN)
    return _effective(override, "the sm86 plugin logs that many dispatches of the draft")


def _gpus(run: Run, override: Given) -> State:
    if run.on_cpu:
        return _inert(override, "the CPU engine uses no GPU")
    return _effective(override, "set as CUDA_VISIBLE_DEVICES, in the order named")


def _batched_tokens(run: Run, override: Given) -> State:
    sequences = run.facts.max_num_seqs
    if sequences and override.value < sequences:
        raise CouldNotRun(
            f"{override.name}={override.text} is less than one token for each of {sequences} sequences",
            f"use at least {sequences}",
        )
    flag = "--max-num-batched-tokens"
    run.change(arguments.with_value(run.argv, flag, str(override.value)), flag, override.name)
    return _effective(override, f"passed as {flag}")


def _async(run: Run, override: Given) -> State:
    if run.on_cpu:
        return _inert(override, "vLLM's CPU platform always turns asynchronous scheduling off")
    flag = "--async-scheduling"
    run.change(arguments.with_switch(run.argv, flag, override.value), flag, override.name)
    return _effective(override, f"passed as {_shown(run.argv, flag)}")


def _blocks(run: Run, override: Given) -> State:
    flag = "--num-gpu-blocks-override"
    run.change(arguments.with_value(run.argv, flag, str(override.value)), flag, override.name)
    return _effective(override, f"passed as {flag}")


_RULES: Mapping[str, Callable[[Run, Given], State]] = {
    "NCCL_ALGO": _nccl_algo,
    "NCCL_PROTO": _nccl_proto,
    "NCCL_MAX_NCHANNELS": _nccl_plain,
    "NCCL_NTHREADS": _nccl_plain,
    "NCCL_P2P_DISABLE": _no_peer_access,
    "NCCL_P2P_LEVEL": _nccl_plain,
    "NCCL_DEBUG": _nccl_debug,
    "SPECULATIVE_CONFIG": _speculative,
    "FUSE_ALLREDUCE_RMS": _fuse,
    "VLLM_ALLREDUCE_USE_FLASHINFER": _flashinfer,
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND": _flashinfer_backend,
    "SM86_HOST_ALLREDUCE": _host_allreduce,
    "SM86_INDEXER_QUERY": _indexer_query,
    "CUDAGRAPH_DISPATCH_DEBUG": _dispatch_debug,
    "SPEC_CUDAGRAPH_DEBUG": _spec_debug,
    "SM86_PROFILE_STEPS": _profile,
    "SM86_GPUS": _gpus,
    "SM86_MAX_NUM_BATCHED_TOKENS": _batched_tokens,
    "SM86_ASYNC_SCHEDULING": _async,
    "SM86_NUM_GPU_BLOCKS": _blocks,
}
