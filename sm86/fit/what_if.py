"""What must shrink for a context to fit, lever by lever, and where the published rig's 30 MiB went. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sm86.fit.memory_plan import MAX_LOGITS, MemoryPlan, override_for, plan
from sm86.fit.rig import PlanRig
from sm86.fit.search import possible_ranks
from sm86.plan import memory
from sm86.plan.groups import pool_of
from sm86.plan.memory import GRAPHS, SM86, STOCK, Server
from sm86.plan.shape import FLASH, Shape
from sm86.plan.units import MIB, Bytes, exactly, total
from sm86.plan.weights import PLACEHOLDERS

SMALL_LOGITS_MIB = 64

PUBLISHED_MISS = 30 * MIB
"""By how much 393216 tokens missed on the published rig, with 1792 blocks (roadmap, Context Ladder)."""

PUBLISHED_CONTEXT, PUBLISHED_BLOCKS = 393_216, 1792


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that could shrink. saves: bytes per GPU; below 0: it costs; possible: a setting of today's product;
    price: what it costs otherwise, or why it cannot be done."""

    name: str
    change: str
    saves: Bytes
    possible: bool
    price: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One context. base: the plan with the settings as they are; short: bytes missing for sure (at the lower ends of
    all estimates) and at most, none below 0; levers: largest saving first; enough: what to set so that it fits for
    sure, gentlest first; empty where it fits already, None where all together do not do it."""

    context: int
    base: MemoryPlan
    levers: tuple[Lever, ...]
    enough: tuple[str, ...] | None

    @property
    def short(self) -> Bytes:
        room = self.base.room
        return Bytes(max(0, -room.high), max(0, -room.low))


@dataclass(frozen=True, slots=True)
class Difference:
    """One part on vLLM's own path and on this product's backend; bytes per GPU."""

    name: str
    stock: Bytes
    own: Bytes


@dataclass(frozen=True, slots=True)
class Published:
    """393216 tokens on the published rig's kind of stack and on this one. free: of the tightest GPU; carried: what
    would be left here if all that cannot be computed took as much as it did there: an estimate, from one number."""

    stock: MemoryPlan
    own: MemoryPlan
    differences: tuple[Difference, ...]
    carried: int


def what_if(
    envelope_server: Server, context: int, rig: PlanRig, shape: Shape = FLASH, utilization: float = 0.95
) -> WhatIf:
    """What must shrink for `context` tokens with the server's other settings. Raises CouldNotRun: see `plan`."""
    server = replace(envelope_server, context=context)
    server = replace(server, blocks=override_for(shape, server))
    base = plan(f"{server.sequences} x {context}", server, rig, shape, utilization)
    levers = sorted(_levers(base, shape), key=lambda lever: -lever.saves.low)
    return WhatIf(context, base, tuple(levers), _enough(base, shape, levers))


def _levers(base: MemoryPlan, shape: Shape) -> list[Lever]:
    server = base.server
    found = []

    def lever(name: str, change: str, changed: Server, price: str) -> None:
        changed = replace(changed, blocks=override_for(shape, changed))
        found.append(Lever(name, change, _saved(base, shape, changed), True, price))

    if server.batched_tokens > 128:
        half = server.batched_tokens // 2
        price = "prefill in more, smaller batches"
        lever("batched tokens", f"{server.batched_tokens} -> {half}", replace(server, batched_tokens=half), price)
        quarter = max(64, server.batched_tokens // 4)
        lever("batched tokens", f"{server.batched_tokens} -> {quarter}", replace(server, batched_tokens=quarter), price)
    if server.async_scheduling:
        lever("asynchronous scheduling", "on -> off", replace(server, async_scheduling=False), "a gap between steps")
    if server.sequences > 1:
        one = replace(server, sequences=1, capture_sizes=(1,) if server.capture_sizes else ())
        lever("sequences", f"{server.sequences} -> 1", one, "the aggregate rate")
    if len(server.capture_sizes) > 1:
        largest = (max(server.capture_sizes),)
        lever(
            "graph sizes",
            f"{_sizes(server)} -> {largest[0]}",
            replace(server, capture_sizes=largest),
            "padding below it",
        )
    if server.capture_sizes:
        lever(
            "graphs",
            "captured -> none",
            replace(server, capture_sizes=()),
            "decode without graphs: several times slower",
        )
    if memory.logits_bytes(server, SM86) > SMALL_LOGITS_MIB * MIB:
        lever(
            "indexer's logits",
            f"at most {server.max_logits_mib} -> {SMALL_LOGITS_MIB} MiB",
            replace(server, max_logits_mib=SMALL_LOGITS_MIB),
            f"{MAX_LOGITS}={SMALL_LOGITS_MIB}: more chunks in prefill",
        )
    more = next((n for n in reversed(possible_ranks(shape, base.rig.count)) if n > server.ranks), None)
    if more is not None:
        lever(
            "weights",
            f"tensor parallel {server.ranks} -> {more}",
            replace(server, ranks=more),
            "more GPUs in each all-reduce",
        )
    found += _impossible(base, shape)
    return found


def _impossible(base: MemoryPlan, shape: Shape) -> list[Lever]:
    """What people think of first and cannot be set: said with its bytes where it has some."""
    weights = dict((part.name, part.size) for part in base.parts if part.kind == memory.WEIGHTS)
    found = [
        Lever(
            "unread zero points",
            "free them after loading",
            weights[PLACEHOLDERS],
            False,
            "vLLM 0.26.0 keeps them; would take a change in the backend",
        ),
        Lever(
            "block size",
            "256 -> other",
            exactly(0),
            False,
            "the page layout and all counts of blocks hold for 256 only",
        ),
        Lever(
            "blocks",
            "fewer than the engine's minimum",
            exactly(0),
            False,
            f"vLLM does not start below {base.lines.minimum} blocks",
        ),
    ]
    if not any(n > base.server.ranks for n in possible_ranks(shape, base.rig.count)):
        found.append(
            Lever(
                "weights",
                f"tensor parallel above {base.server.ranks}",
                exactly(0),
                False,
                "no more GPUs, or no division of the model over them; the checkpoint fixes the bits",
            )
        )
    if base.gpu.used:
        found.append(
            Lever(
                "other users",
                f"end what holds {base.gpu.label}",
                exactly(base.gpu.used),
                True,
                "a desktop, another server",
            )
        )
    return found


def _saved(base: MemoryPlan, shape: Shape, changed: Server) -> Bytes:
    """What a change saves, part by part: an estimate that stays the same is no uncertainty of the difference."""
    parts = memory.parts(shape, pool_of(shape), changed, base.rig.multiprocessors, base.stack)
    return total(_less(before.size, after.size) for before, after in zip(base.parts, parts, strict=True))


def _less(before: Bytes, after: Bytes) -> Bytes:
    ends = (before.low - after.low, before.high - after.high)
    return Bytes(min(ends), max(ends))


def _enough(base: MemoryPlan, shape: Shape, levers: list[Lever]) -> tuple[str, ...] | None:
    """The gentlest first: levers in the order of GENTLE, each at its full extent, until it fits for sure."""
    if base.room.low >= 0:
        return ()
    server, taken = base.server, []
    for name, changed in _gentle(server):
        server = changed(server)
        server = replace(server, blocks=override_for(shape, server))
        taken.append(name)
        if plan("", server, base.rig, shape).room.low >= 0:
            return tuple(taken)
    return None


def _gentle(server: Server) -> Iterator[tuple[str, Callable[[Server], Server]]]:
    """Settings in the order in which one would give them up, with what each does to a server."""
    if server.async_scheduling:
        yield "asynchronous scheduling off", lambda s: replace(s, async_scheduling=False)
    if memory.logits_bytes(server, SM86) > SMALL_LOGITS_MIB * MIB:
        yield f"{MAX_LOGITS}={SMALL_LOGITS_MIB}", partial(replace, max_logits_mib=SMALL_LOGITS_MIB)
    for tokens in (256, 128):
        if server.batched_tokens > tokens:
            yield f"{tokens} batched tokens", partial(replace, batched_tokens=tokens)
    if len(server.capture_sizes) > 1:
        yield "one graph size", partial(replace, capture_sizes=(max(server.capture_sizes),))
    for count in range(server.sequences - 1, 0, -1):
        sizes = (count,) if server.capture_sizes else ()
        yield f"{count} sequence{'s' if count > 1 else ''}", partial(replace, sequences=count, capture_sizes=sizes)


def _sizes(server: Server) -> str:
    return ",".join(str(size) for size in server.capture_sizes)


def published(rig: PlanRig, shape: Shape = FLASH, batched_tokens: int = 512) -> Published:
    """Where the published rig's 30 MiB went: its context and blocks on vLLM's own path, and here.

    The published stack is not public; vLLM 0.26.0's own path is the nearest to it that can be computed.
    """
    server = Server(PUBLISHED_CONTEXT, 1, 8, batched_tokens, False, PUBLISHED_BLOCKS, (1,))
    stock = plan("vLLM's own path", server, rig, shape, stack=STOCK)
    own = plan("this backend", server, rig, shape)
    stocks = {part.name: part.size for part in stock.parts}
    owns = {part.name: part.size for part in own.parts}
    names = [name for name in dict.fromkeys((*stocks, *owns)) if stocks.get(name) != owns.get(name)]
    none = exactly(0)
    differences = tuple(Difference(name, stocks.get(name, none), owns.get(name, none)) for name in names)
    graph_names = {part.name for part in own.parts if part.kind == GRAPHS}
    # graphs are estimates on both sides: taken as equal here
    saved = sum(d.stock.low - d.own.low for d in differences if d.name not in graph_names)
    return Published(stock, own, differences, saved - PUBLISHED_MISS)
