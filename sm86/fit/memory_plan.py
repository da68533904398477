"""Envelope + rig + model -> the memory of one GPU part by part, what is left, and whether it fits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sm86.errors import CouldNotRun
from sm86.fit.rig import GpuRoom, PlanRig
from sm86.plan import memory
from sm86.plan.engine_lines import KvLines, predict
from sm86.plan.groups import BLOCK_TOKENS, Group, pool_of
from sm86.plan.kv import BLOCK_STEP
from sm86.plan.memory import SM86, Part, Server, mib
from sm86.plan.shape import FLASH, Shape
from sm86.plan.units import MIB, Bytes, ceil_div, exactly, total
from sm86.plan.weights import require_ranks
from sm86.spec import Envelope

FITS, UNCERTAIN, NO_FIT = "fits", "uncertain", "does not fit"
"""Fits even where every estimate is at its upper end; fits only where some are lower; not even at the lower ends."""

PASS, FAIL = "pass", "fail"

MUCH_HELD = 512 * MIB
"""From here on other users of a GPU are the first thing to mend."""

MAX_LOGITS = "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold. state: PASS, FAIL or UNCERTAIN; mend: what to do where it does not pass."""

    name: str
    state: str
    text: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One group of the KV cache. full: pages of one sequence that is still prefilling; decoding: of one that decodes;
    all: of all sequences, the last one prefilling."""

    group: Group
    full: int
    decoding: int
    all: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The plan of one rank. gpu: the tightest one used; used: bytes by all parts; left: what remains of its free
    memory; lines: what vLLM will print of its cache; loading: bytes at the
    fullest moment of loading, before there is a cache; stack: whose code serves (`plan.memory`)."""

    name: str
    server: Server
    rig: PlanRig
    gpu: GpuRoom
    parts: tuple[Part, ...]
    groups: tuple[GroupUse, ...]
    needed_blocks: int
    lines: KvLines
    checks: tuple[Check, ...]
    utilization: float
    loading: Bytes
    stack: str = SM86

    @property
    def used(self) -> Bytes:
        return total(part.size for part in self.parts)

    @property
    def left(self) -> Bytes:
        return exactly(self.gpu.free) + -self.used

    @property
    def available(self) -> Bytes:
        """What vLLM will print as available for its cache, with graphs left out of its sum (as every envelope has it):
        the share it may use, less weights and their buffers, activations and what kernels and libraries take."""
        parts = {part.name: part.size for part in self.parts}
        kinds = dict(self.by_kind())
        loaded = kinds[memory.WEIGHTS] + parts["RoPE tables"] + parts["model's buffers"] + parts["unsplit blocks"]
        taken = loaded + kinds[memory.ACTIVATIONS] + parts["kernels, libraries"]
        return exactly(-int(-self.gpu.total * self.utilization // 1)) + -taken

    @property
    def room(self) -> Bytes:
        """What remains when it serves, or while it loads where that is less."""
        return less(self.left, exactly(self.gpu.free) + -self.loading)

    @property
    def verdict(self) -> str:
        return verdict(self.room)

    @property
    def passed(self) -> bool:
        return all(check.state == PASS for check in self.checks)

    def by_kind(self) -> tuple[tuple[str, Bytes], ...]:
        """Bytes of each of `plan.memory.KINDS` in that order."""
        return tuple((kind, total(part.size for part in self.parts if part.kind == kind)) for kind in memory.KINDS)


def less(one: Bytes, other: Bytes) -> Bytes:
    """The smaller end of each side."""
    return Bytes(min(one.low, other.low), min(one.high, other.high))


def verdict(left: Bytes) -> str:
    """FITS, UNCERTAIN or NO_FIT by what is left."""
    return FITS if left.low >= 0 else UNCERTAIN if left.high >= 0 else NO_FIT


def require_plannable(envelope: Envelope) -> None:
    """Raise CouldNotRun for an envelope that this memory model does not know."""
    if not envelope.uses_gpu:
        raise CouldNotRun(
            f"{envelope.name} is served on the CPU, there is no GPU memory to plan", "name an envelope of a rig"
        )
    if envelope.serve.block_size != BLOCK_TOKENS or envelope.serve.kv_cache_dtype != "fp8_ds_mla":
        raise CouldNotRun(
            f"{envelope.name} has block size {envelope.serve.block_size} and KV cache {envelope.serve.kv_cache_dtype}",
            f"the model of the cache holds for blocks of {BLOCK_TOKENS} tokens of fp8_ds_mla",
        )


def server_of(envelope: Envelope, shape: Shape = FLASH) -> Server:
    """What decides the memory of the envelope's server; blocks that it leaves open are what it needs at least."""
    require_plannable(envelope)
    serve = envelope.serve
    bound = dict(envelope.environment).get(MAX_LOGITS, str(memory.DEFAULT_MAX_LOGITS_MIB))
    if not bound.isdecimal():
        raise CouldNotRun(f"{envelope.name}: {MAX_LOGITS} is {bound!r}", "write a whole number of MiB")
    server = Server(
        context=serve.context,
        sequences=serve.sequences,
        ranks=serve.tensor_parallel,
        batched_tokens=serve.max_num_batched_tokens,
        async_scheduling=serve.async_scheduling,
        blocks=serve.num_gpu_blocks_override or 0,
        capture_sizes=envelope.graphs.capture_sizes,
        max_logits_mib=int(bound),
    )
    return server if server.blocks else replace(server, blocks=override_for(shape, server))


def override_for(shape: Shape, server: Server) -> int:
    """The block override that this server needs, in the published steps."""
    needed = pool_of(shape).needed_blocks(server.context, server.sequences, server.in_flight)
    return ceil_div(needed, BLOCK_STEP) * BLOCK_STEP


def plan(
    name: str,
    server: Server,
    rig: PlanRig,
    shape: Shape = FLASH,
    utilization: float = 0.95,
    stack: str = SM86,
    pool_bytes: int | None = None,
    pinned: bool = True,
) -> MemoryPlan:
    """Plan one rank's memory.

    utilization: gpu_memory_utilization; pool_bytes: what vLLM measures for its pool, None where that is not known;
    pinned: the server's blocks override it, else they are what fits into pool_bytes. Raises CouldNotRun: too few GPUs,
    a model that cannot be divided so, a context beyond the model's positions.
    """
    require_ranks(shape, server.ranks)
    if not 1 <= server.context <= shape.positions:
        raise CouldNotRun(
            f"the context is {server.context} tokens, the model has {shape.positions} positions",
            f"use 1 to {shape.positions}",
        )
    pool = pool_of(shape)
    if pool_bytes is not None and not pinned:
        server = replace(server, blocks=pool_bytes // pool.bytes_per_block)
    gpu = rig.tightest(server.ranks)
    m = server.in_flight
    lines = predict(pool, server.context, m, server.blocks if pinned else None, pool_bytes)
    found = MemoryPlan(
        name=name,
        server=server,
        rig=rig,
        gpu=gpu,
        parts=memory.parts(shape, pool, server, rig.multiprocessors, stack),
        groups=tuple(_use(group, server) for group in pool.groups),
        needed_blocks=pool.resident_blocks(server.context, server.sequences, m),
        lines=lines,
        checks=(),
        utilization=utilization,
        loading=memory.loading_peak(shape, server, rig.multiprocessors, stack),
        stack=stack,
    )
    return replace(found, checks=_checks(found, utilization))


def plan_envelope(envelope: Envelope, rig: PlanRig, shape: Shape = FLASH, stack: str = SM86) -> MemoryPlan:
    """The plan of an envelope; see `plan`."""
    return plan(envelope.name, server_of(envelope, shape), rig, shape, envelope.serve.gpu_memory_utilization, stack)


def _use(group: Group, server: Server) -> GroupUse:
    full = group.pages(server.context, server.in_flight)
    decoding = group.pages(server.context, 2)
    return GroupUse(group, full, decoding, full + (server.sequences - 1) * decoding)


def _checks(found: MemoryPlan, utilization: float) -> tuple[Check, ...]:
    server, lines, left = found.server, found.lines, found.left
    pinned = f"{server.blocks} KV blocks"
    passes = Check("engine minimum", PASS, f"{pinned}; vLLM starts with {lines.minimum} or more")
    if not lines.passes:
        passes = Check(
            "engine minimum",
            FAIL,
            f"{pinned}, but vLLM does not start below {lines.minimum}",
            f"pin {ceil_div(lines.minimum, BLOCK_STEP) * BLOCK_STEP} blocks, or serve at most {lines.longest} tokens",
        )
    seats = Check("sequences seat", PASS, f"{server.sequences} x {server.context} tokens occupy {found.needed_blocks}")
    if server.blocks < found.needed_blocks:
        seats = Check(
            "sequences seat",
            FAIL,
            f"{server.sequences} x {server.context} tokens occupy {found.needed_blocks} of {pinned}",
            f"pin {ceil_div(found.needed_blocks, BLOCK_STEP) * BLOCK_STEP}, or vLLM preempts sequences",
        )
    return (
        passes,
        seats,
        _start(found, utilization),
        _loading(found),
        _memory(found, left),
        *_capability(found.rig),
    )


def _start(found: MemoryPlan, utilization: float) -> Check:
    gpu = found.gpu
    room = memory.start_check(gpu.total, gpu.used, utilization, found.server.ranks)
    text = (
        f"utilization {utilization:g} of {mib(gpu.total)} MiB must be free beside the CUDA context"
        f"{' and NCCL' if found.server.ranks > 1 else ''}: room of {between(room)} MiB"
    )
    state = {FITS: PASS, UNCERTAIN: UNCERTAIN, NO_FIT: FAIL}[verdict(room)]
    if state == PASS:
        return Check("free at start", PASS, text)
    mend = f"set gpu_memory_utilization to {safe_utilization(found)} or less"
    return Check("free at start", state, text, freeing(gpu) or mend)


def freeing(gpu: GpuRoom) -> str:
    """The mend where others hold much of a GPU: it comes before every other."""
    return f"end what holds {mib(gpu.used)} MiB of {gpu.label} (nvidia-smi names it)" if gpu.used >= MUCH_HELD else ""


def safe_utilization(found: MemoryPlan, most: float = 0.95) -> float:
    """The largest utilization, in hundredths, that vLLM's check at start lets pass for sure; at most `most`."""
    gpu = found.gpu
    room = memory.start_check(gpu.total, gpu.used, 0.0, found.server.ranks).low
    return max(0.05, min(most, int(100 * room / gpu.total) / 100))


def _loading(found: MemoryPlan) -> Check:
    left = exactly(found.gpu.free) + -found.loading
    state = {FITS: PASS, UNCERTAIN: UNCERTAIN, NO_FIT: FAIL}[verdict(left)]
    text = f"{between(found.loading)} MiB at the fullest moment, while experts are repacked: {between(left)} MiB left"
    mend = freeing(found.gpu) or "use more GPUs, or larger ones: the checkpoint decides this"
    return Check("loading", state, text, "" if state == PASS else mend)


def _memory(found: MemoryPlan, left: Bytes) -> Check:
    state = {FITS: PASS, UNCERTAIN: UNCERTAIN, NO_FIT: FAIL}[verdict(left)]
    text = f"{between(found.used)} MiB of {mib(found.gpu.free)} free on {found.gpu.label}: {between(left)} MiB left"
    if state == PASS:
        return Check("memory", PASS, text)
    mend = "see `invoke plan --what-if` for what can shrink, `invoke plan --fit` for what fits this rig"
    mend = freeing(found.gpu) or mend
    return Check("memory", state, text, mend)


def _capability(rig: PlanRig) -> tuple[Check, ...]:
    if rig.capability is None or rig.capability >= (8, 0):
        return ()
    major, minor = rig.capability
    return (
        Check(
            "compute capability",
            FAIL,
            f"{major}.{minor}, below 8.0: neither Marlin nor this backend has code for it",
            "use GPUs of compute capability 8.0 or newer",
        ),
    )


def between(number: Bytes) -> str:
    """`1,285 to 3,090`, or one number where both ends look the same; MiB."""
    low, high = mib(number.low), mib(number.high)
    return low if low == high else f"{low} to {high}"
