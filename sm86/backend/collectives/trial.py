"""Values and times on the GPUs at hand: is every way of calling right to the last bit, and how long does each take
inside a CUDA graph. All ranks run the same trials in the same order and share their numbers, so all see one table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sm86.backend.collectives.communicator import HostAllReduce
from sm86.backend.collectives.exchange import Exchange
from sm86.backend.collectives.plan import NAMES, Plan, candidates, fits

if TYPE_CHECKING:
    import torch

Reduce = Callable[["torch.Tensor", "torch.Tensor"], Any]
"""Sum the first tensor over all ranks into the second, on the current stream."""

CALLS_PER_GRAPH = 87
"""All-reduces of one decode step of DeepSeek-V4-Flash: 43 layers twice, and the embedding."""
SPIN_CYCLES = 200_000
"""Work before each measured replay, about 100 us: the launch has arrived on all GPUs when it ends."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of one call, of the slowest rank: median over the replays, and the middle half of them."""

    median: float
    low: float
    high: float


def message(size: int, dtype: Any, device: Any, seed: int, rank: int) -> Any:
    """A rank's test message of `size` bytes, equal on every machine: magnitudes from 2^-12 to 8."""
    import torch

    generator = torch.Generator().manual_seed(seed * 64 + rank)
    count = size // torch.empty((), dtype=dtype).element_size()
    values = torch.randn(count, generator=generator) * 2.0 ** torch.randint(-12, 4, (count,), generator=generator)
    return values.to(dtype).to(device)


def ordered_sum(parts: Sequence[Any]) -> Any:
    """What every rank must hold: fp32 sums in the order of the ranks, rounded once to the parts' type."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def same_bits(a: Any, b: Any) -> bool:
    """Equal as bytes."""
    import torch

    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def graph_of(call: Callable[[], Any], times: int) -> Any:
    """A CUDA graph of so many calls."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            call()
    return graph


def check_values(reduce: HostAllReduce, sizes: Sequence[int]) -> str | None:
    """Every algorithm, type and size, called one by one and replayed from a graph; None, or what was wrong.

    Collective. The answer is this rank's own: share it. Raises CollectiveFailed when a peer did not come.
    """
    import torch

    device = torch.device("cuda", reduce.device)
    wrong = None
    for seed, size in enumerate(sizes):
        for dtype in (torch.bfloat16, torch.float32):
            parts = [message(size, dtype, device, seed, rank) for rank in range(reduce.world)]
            want = ordered_sum(parts)
            first = reduce.first_rank
            mine = torch.cat(parts[first : first + reduce.local_ranks])
            for algorithm in range(len(NAMES)):
                plan = Plan(algorithm, 256)
                if not fits(plan, size):
                    continue
                out = torch.empty_like(mine)
                for way in ("eager", "eager again", "graph"):
                    out.fill_(float("nan"))
                    if way == "graph":
                        graph = graph_of(partial(reduce.all_reduce, mine, out, plan), 3)
                        graph.replay()
                        graph.replay()
                    else:
                        reduce.all_reduce(mine, out, plan)
                    torch.cuda.synchronize(device)
                    reduce.check_now()
                    rows = out.view(reduce.local_ranks, -1)
                    if wrong is None and not all(same_bits(row, want) for row in rows):
                        wrong = f"{NAMES[algorithm]}, {size} bytes, {dtype}, {way}"
    return wrong


def times_of(
    exchange: Exchange,
    calls: Mapping[str, Callable[[], Any]],
    per_graph: int = CALLS_PER_GRAPH,
    replays: int = 20,
    group: HostAllReduce | None = None,
) -> dict[str, Times]:
    """Each call inside a graph of `per_graph`, the graphs replayed in turn. Collective: equal on all ranks.

    Before each measured replay the ranks meet in one call of the same kind and spin, so that neither another rank's
    lateness nor the launch is in the number. Raises RuntimeError on all ranks when one could not measure: it ends the
    waits of `group`, whose failure the others see before they go on to a call that nobody else will make.
    """
    mine: dict[str, list[float]] | str
    try:
        mine = {name: _quartiles(took) for name, took in _replayed(calls, per_graph, replays, group).items()}
    except RuntimeError as error:
        mine = str(error) or type(error).__name__
        if group is not None:
            group.abort()
    everybody = exchange.gather(mine)
    faults = [one for one in everybody if isinstance(one, str)]
    if faults:
        raise RuntimeError(faults[0])
    return {name: Times(*(max(one[name][k] for one in everybody) for k in range(3))) for name in calls}


def _replayed(
    calls: Mapping[str, Callable[[], Any]], per_graph: int, replays: int, group: HostAllReduce | None
) -> dict[str, list[float]]:
    import torch

    for call in calls.values():
        call()  # whatever is set up at a first call is not part of a graph
    graphs = {name: graph_of(call, per_graph) for name, call in calls.items()}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    took: dict[str, list[float]] = {name: [] for name in calls}
    for replay in range(replays + 2):
        for name, call in calls.items():
            call()
            torch.cuda._sleep(SPIN_CYCLES)
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if group is not None:
                group.check_now()
            if replay >= 2:
                took[name].append(begin.elapsed_time(end) * 1000 / per_graph)
    return took


def _quartiles(values: list[float]) -> list[float]:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return [middle, low, high]


def best_plans(
    reduce: HostAllReduce, sizes: Sequence[int], other: Mapping[str, Reduce] | None = None, replays: int = 20
) -> dict[int, dict[str, Times]]:
    """For each size the times of all candidate plans and of `other` ways, by name; bf16. Collective."""
    import torch

    device = torch.device("cuda", reduce.device)
    table = {}
    for size in sizes:
        part = message(size, torch.bfloat16, device, 0, reduce.first_rank)
        source, target = part.repeat(reduce.local_ranks), part.repeat(reduce.local_ranks)
        calls: dict[str, Callable[[], Any]] = {}
        for plan in candidates(size, reduce.world):
            calls[plan.name] = partial(reduce.all_reduce, source, target, plan)
        for name, way in (other or {}).items():
            calls[name] = partial(way, source, target)
        table[size] = times_of(reduce.exchange, calls, replays=replays, group=reduce)
    return table


def fastest(size: int, world: int, times: Mapping[str, Times]) -> Plan:
    """The candidate with the smallest median; of equals the first. Pure."""
    return min(candidates(size, world), key=lambda plan: times[plan.name].median)


def tune(reduce: HostAllReduce, sizes: Sequence[int], replays: int = 12) -> None:
    """Fill `reduce.plans` with the fastest plan of each size. Collective; about a second."""
    for size, times in best_plans(reduce, sizes, replays=replays).items():
        reduce.plans[size] = fastest(size, reduce.world, times)
