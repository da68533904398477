"""Which envelopes fit a rig: the longest contexts for one, two, three sequences and so on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sm86.errors import CheckFailed, CouldNotRun
from sm86.fit.memory_plan import (
    FITS,
    NO_FIT,
    MemoryPlan,
    between,
    freeing,
    override_for,
    plan,
    safe_utilization,
)
from sm86.fit.rig import PlanRig
from sm86.plan import memory
from sm86.plan.groups import pool_of
from sm86.plan.memory import Server, mib
from sm86.plan.shape import FLASH, Shape
from sm86.plan.units import MIB, Bytes, ceil_div, total
from sm86.plan.weights import divides

STEP_TOKENS = 1024
"""Contexts are tried in steps of this, as the published ones are (80K is 80 x 1024)."""

LEAST_CONTEXT = 8192
"""Below this the model is of little use: such envelopes are not offered."""

SEQUENCES = (1, 2, 3, 4, 6, 8)
"""Numbers of sequences that are offered without being asked for."""

MOST_SEQUENCES = 64

SURELY, LIKELY, HARDLY = 1.0, 0.5, 0.0
"""Where in its interval every estimate is taken: at the upper end, in the middle, at the lower end."""

BATCHED_TOKENS = (512, 256, 128)
"""Sizes of a batch, the published one first; smaller ones cost speed in prefill and are tried where it does not fit."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is fixed beforehand; None where the search may choose. tensor_parallel: ranks; batched_tokens: the size of
    a batch; async_scheduling: as served."""

    context: int | None = None
    sequences: int | None = None
    tensor_parallel: int | None = None
    batched_tokens: int | None = None
    async_scheduling: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One envelope that could be written, with its plan. utilization: the gpu_memory_utilization to write."""

    plan: MemoryPlan
    utilization: float

    @property
    def server(self) -> Server:
        return self.plan.server

    @property
    def sure(self) -> bool:
        return self.plan.verdict == FITS


@dataclass(frozen=True, slots=True)
class Search:
    """What was found, best first: candidates of one, two, ... sequences, each with the longest context that fits.

    ranks: GPUs that a server uses; idle: GPUs that nothing can use, with the reason in `why_idle`.
    """

    rig: PlanRig
    ranks: int
    candidates: tuple[Candidate, ...]
    idle: int
    why_idle: str

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def possible_ranks(shape: Shape, gpus: int) -> tuple[int, ...]:
    """Tensor parallel sizes for so many GPUs, the largest first."""
    return tuple(ranks for ranks in range(gpus, 0, -1) if divides(shape, ranks))


def search(rig: PlanRig, wish: Wish = Wish(), shape: Shape = FLASH) -> Search:
    """The best envelopes for a rig.

    Raises CouldNotRun where the wish is none that any rig could fulfil, CheckFailed where nothing fits even if every
    estimate is at its lower end, with the reason and the nearest that fits.
    """
    _require_sane(wish, shape)
    ranks = wish.tensor_parallel or next(iter(possible_ranks(shape, rig.count)), 0)
    if wish.tensor_parallel and not divides(shape, wish.tensor_parallel):
        possible = ", ".join(str(n) for n in reversed(possible_ranks(shape, 128)))
        raise CouldNotRun(f"the model cannot be divided over {wish.tensor_parallel} GPUs", f"use {possible}")
    rig.tightest(ranks)
    found = list(_candidates(rig, wish, shape, ranks))
    if not found:
        raise _nothing(rig, wish, shape, ranks)
    found.sort(key=lambda candidate: not candidate.sure)
    idle = rig.count - ranks
    heads = (
        f"{shape.heads} heads in {shape.output_groups} output groups divide over {_listed(possible_ranks(shape, 128))}"
    )
    why = f"{heads} GPUs; pipeline parallelism is not served by this backend's envelopes" if idle else ""
    return Search(rig, ranks, tuple(found), idle, why)


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = sorted(numbers)
    return f"{', '.join(str(n) for n in first)} or {last}" if first else str(last)


def _require_sane(wish: Wish, shape: Shape) -> None:
    if wish.context is not None and not 1 <= wish.context <= shape.positions:
        raise CouldNotRun(
            f"a context of {wish.context} tokens: the model has {shape.positions} positions",
            f"use 1 to {shape.positions}",
        )


def _candidates(rig: PlanRig, wish: Wish, shape: Shape, ranks: int) -> Iterator[Candidate]:
    if wish.context is not None and wish.sequences is None:
        most = _most_sequences(rig, wish, shape, ranks)
        numbers: tuple[int, ...] = tuple(n for n in (most, *reversed(SEQUENCES)) if 0 < n <= most)
    else:
        numbers = (wish.sequences,) if wish.sequences else SEQUENCES
    for sequences in dict.fromkeys(numbers):
        candidate = _of_sequences(rig, wish, shape, ranks, sequences)
        if candidate is not None:
            yield candidate


def _of_sequences(rig: PlanRig, wish: Wish, shape: Shape, ranks: int, sequences: int) -> Candidate | None:
    """The longest context for so many sequences: surely with the published batch, else with a smaller one, else where
    the middle of all estimates fits; else the smallest, which has the best chance; None where not even that fits."""
    batches = (wish.batched_tokens,) if wish.batched_tokens else BATCHED_TOKENS
    for weight in (SURELY, LIKELY, HARDLY):
        for batched in reversed(batches) if weight == HARDLY else batches:
            server = Server(0, sequences, ranks, batched, wish.async_scheduling, 0, capture_sizes(sequences))
            context = _longest(rig, server, shape, wish.context, weight)
            if context:
                return _candidate(rig, with_context(shape, server, context), shape)
    return None


def capture_sizes(sequences: int) -> tuple[int, ...]:
    """Graph sizes for so many sequences, as the published envelopes have them: one, and all."""
    return (1,) if sequences == 1 else (1, sequences)


def with_context(shape: Shape, server: Server, context: int) -> Server:
    """The server at another context, with the blocks that it then needs."""
    changed = replace(server, context=context)
    return replace(changed, blocks=override_for(shape, changed))


def _longest(rig: PlanRig, server: Server, shape: Shape, fixed: int | None, weight: float) -> int:
    """The longest context, in steps of STEP_TOKENS, whose use fits with every estimate at `weight` of its interval; for
    HARDLY the shortest; the fixed one if it fits; 0: none."""
    free = rig.tightest(server.ranks).free

    def fits(context: int) -> bool:
        used = used_bytes(shape, with_context(shape, server, context), rig.multiprocessors)
        return used.low + weight * (used.high - used.low) <= free

    if fixed is not None:
        return fixed if fits(fixed) else 0
    low, high = ceil_div(LEAST_CONTEXT, STEP_TOKENS), shape.positions // STEP_TOKENS
    if high < low or not fits(low * STEP_TOKENS):
        return 0
    if weight == HARDLY:
        return low * STEP_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP_TOKENS) else (low, middle - 1)
    return low * STEP_TOKENS


def used_bytes(shape: Shape, server: Server, multiprocessors: int) -> Bytes:
    """Bytes of all parts of one rank, or of loading where that takes more."""
    parts = total(part.size for part in memory.parts(shape, pool_of(shape), server, multiprocessors))
    loading = memory.loading_peak(shape, server, multiprocessors)
    return Bytes(max(parts.low, loading.low), max(parts.high, loading.high))


def _candidate(rig: PlanRig, server: Server, shape: Shape) -> Candidate:
    first = plan("candidate", server, rig, shape)
    utilization = safe_utilization(first)
    return Candidate(plan("candidate", server, rig, shape, utilization), utilization)


def _most_sequences(rig: PlanRig, wish: Wish, shape: Shape, ranks: int) -> int:
    """The most sequences of the wished context that fit for sure, else perhaps; 0: not even one."""
    for weight in (SURELY, LIKELY, HARDLY):
        best = 0
        for sequences in range(1, MOST_SEQUENCES + 1):
            batches = (wish.batched_tokens,) if wish.batched_tokens else BATCHED_TOKENS[:1]
            server = Server(0, sequences, ranks, batches[0], wish.async_scheduling, 0, capture_sizes(sequences))
            if not _longest(rig, server, shape, wish.context, weight):
                break
            best = sequences
        if best:
            return best
    return 1


def _nothing(rig: PlanRig, wish: Wish, shape: Shape, ranks: int) -> CheckFailed:
    """Why nothing fits, and what would."""
    sequences, context = wish.sequences or 1, wish.context or LEAST_CONTEXT
    batched = wish.batched_tokens or BATCHED_TOKENS[-1]
    empty = Server(0, sequences, ranks, batched, wish.async_scheduling, 0, capture_sizes(sequences))
    tried = plan("nothing", with_context(shape, empty, context), rig, shape)
    kinds = dict(tried.by_kind())
    short = -min(tried.left.high, tried.gpu.free - tried.loading.low)
    what = (
        f"{sequences} x {context} tokens do not fit {rig.title} at tensor parallel {ranks}: a GPU has "
        f"{mib(tried.gpu.free)} MiB free, the weights alone take {mib(kinds[memory.WEIGHTS].low)}, all together "
        f"{between(tried.used)}: at least {mib(short)} MiB too many"
    )
    near = _nearest(rig, wish, shape, ranks)
    least = ceil_div(max(tried.used.low, tried.loading.low) + tried.gpu.used, 1024 * MIB)
    most = possible_ranks(shape, 128)[0]
    larger = f"use GPUs with {least} GiB or more each, or more of them (the model divides over at most {most})"
    # what others hold comes before larger cards, but only where it would be enough
    held = freeing(tried.gpu) if short <= tried.gpu.used else ""
    return CheckFailed(what, held or near or larger)


def _nearest(rig: PlanRig, wish: Wish, shape: Shape, ranks: int) -> str:
    """The nearest that does fit, in words; "" where nothing of this model does."""
    offers = []
    if wish.context is not None:
        shorter = _of_sequences(rig, replace(wish, context=None), shape, ranks, wish.sequences or 1)
        if shorter is not None:
            offers.append(_offer(shorter))
        if (wish.sequences or 1) > 1:
            fewer = _of_sequences(rig, replace(wish, sequences=None), shape, ranks, 1)
            if fewer is not None:
                offers.append(_offer(fewer))
    elif (wish.sequences or 1) > 1:
        fewer = _of_sequences(rig, wish, shape, ranks, 1)
        if fewer is not None:
            offers.append(_offer(fewer))
    elif wish.batched_tokens is not None:
        smaller = _of_sequences(rig, replace(wish, batched_tokens=None), shape, ranks, 1)
        if smaller is not None:
            offers.append(_offer(smaller))
    return f"the nearest that fits: {'; or '.join(offers)}" if offers else ""


def _offer(candidate: Candidate) -> str:
    server = candidate.server
    word = "" if candidate.plan.verdict == FITS else " (uncertain)" if candidate.plan.verdict != NO_FIT else " (no)"
    return f"{server.sequences} x {server.context} tokens, batches of {server.batched_tokens}{word}"
