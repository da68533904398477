"""Profiler traces of DeepSeek-V4 decode steps with known totals, laid out as torch 2.11 writes them.

Times are simulated for all ranks together: a collective ends on every rank when the last one has come
and the transport time has passed, so the time that a rank waits is known. Whole, partial, orphan and
cut graphs are written and counted apart. Everything follows from the seed.
"""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sm86.trace.testing.model import FLASH_LAYERS, MAIN, SAMPLING, Node, decode_step

GRAPHS, PIECEWISE, EAGER = "graphs", "piecewise", "eager"
BASE_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to write.

    steps: whole steps; mode: one graph per step (GRAPHS), graphs between eager attention (PIECEWISE), or
    no graphs (EAGER); partial: launched graphs that lost kernels; orphans: graphs launched before the
    window; cut_tail: whether the last launch has no kernels; annotations: whether vLLM's step annotations
    are there; host_events: CPU operations per step; stack_events: Python calls per step; flows: arrows
    from launches to kernels, as torch writes them; graph_ids: the fields of torch 2.13; timeless: kernels
    per step for which CUPTI had no time; bad_names: steps in which quotes stand in a kernel name unescaped.
    """

    steps: int = 8
    layers: tuple[str, ...] = FLASH_LAYERS
    mode: str = GRAPHS
    partial: int = 1
    orphans: int = 1
    cut_tail: bool = True
    annotations: bool = True
    host_events: int = 40
    stack_events: int = 0
    flows: bool = True
    graph_ids: bool = False
    timeless: int = 0
    bad_names: int = 0
    world: int = 1
    seed: int = 1


@dataclass(slots=True)
class Truth:
    """What the trace of one rank holds. Times in ns; whole: over the whole steps only.

    whole[i]: sum, busy and span of whole step i, its buckets {key: [calls, ns]}, its layers
    {layer: {key: [calls, ns]}} and its collectives' durations with the least over all ranks.
    """

    rank: int = 0
    counts: dict[str, Any] = field(default_factory=dict)
    whole: list[dict[str, Any]] = field(default_factory=list)
    kernels: int = 0

    def totals(self, first: int = 0) -> dict[str, list[int]]:
        """Calls and ns per bucket over the whole steps from number `first` on."""
        out: dict[str, list[int]] = {}
        for step in self.whole[first:]:
            for key, (calls, time) in step["buckets"].items():
                cell = out.setdefault(key, [0, 0])
                cell[0] += calls
                cell[1] += time
        return out

    def per_layer(self, bucket: str, first: int = 0) -> dict[int, int]:
        """ns of one bucket per layer over the whole steps from number `first` on."""
        out: dict[int, int] = {}
        for step in self.whole[first:]:
            for layer, cells in step["layers"].items():
                if bucket in cells:
                    out[layer] = out.get(layer, 0) + cells[bucket][1]
        return out


@dataclass(frozen=True, slots=True)
class _Timed:
    node: Node
    start: int
    duration: int


def _simulate(nodes: list[Node], begins: list[int], rng: random.Random) -> tuple[list[list[_Timed]], list[int]]:
    """Per rank the timed nodes, and per collective the transport time (the least duration over all ranks)."""
    ranks = range(len(begins))
    clock = [{MAIN: begin} for begin in begins]
    out: list[list[_Timed]] = [[] for _ in ranks]
    transports: list[int] = []
    for node in nodes:
        starts = []
        for rank in ranks:
            own = clock[rank]
            if node.joins:
                own = clock[rank] = {MAIN: max(own.values())}
            starts.append(own.get(node.stream, own[MAIN]) + 120 + rng.randrange(400))
        if node.collective:
            transport = node.usual_ns + rng.randrange(-1500, 1500)
            transports.append(transport)
            end = max(starts) + transport
            durations = [end - start for start in starts]
        else:
            durations = [node.usual_ns + rng.randrange(-node.usual_ns // 20, node.usual_ns // 20 + 1) for _ in ranks]
        for rank in ranks:
            out[rank].append(_Timed(node, starts[rank], durations[rank]))
            clock[rank][node.stream] = starts[rank] + durations[rank]
    return out, transports


def _covered(timed: list[_Timed]) -> int:
    """ns during which at least one kernel ran, by counting what is open at each edge."""
    edges = sorted([(t.start, 1) for t in timed] + [(t.start + t.duration, -1) for t in timed])
    total = open_now = since = 0
    for at, change in edges:
        if open_now:
            total += at - since
        open_now += change
        since = at
    return total


def _facts(timed: list[_Timed], transports: list[int]) -> dict[str, Any]:
    buckets: dict[str, list[int]] = {}
    layers: dict[int, dict[str, list[int]]] = {}
    for t in timed:
        for cells in (buckets, layers.setdefault(t.node.layer, {})):
            cell = cells.setdefault(t.node.bucket, [0, 0])
            cell[0] += 1
            cell[1] += t.duration
    return {
        "sum": sum(t.duration for t in timed),
        "busy": _covered(timed),
        "span": max(t.start + t.duration for t in timed) - min(t.start for t in timed),
        "buckets": buckets,
        "layers": layers,
        "collectives": [t.duration for t in timed if t.node.collective],
        "transports": transports,
    }


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


class _Writer:
    """Writes one rank's trace and counts what it writes."""

    def __init__(self, file: IO[str], recipe: Recipe, rank: int) -> None:
        self.file, self.recipe, self.rank = file, recipe, rank
        self.truth = Truth(rank)
        self.events = 0
        self.correlation = 1000 + 7 * rank
        self.pid = 4000 + rank
        self.launches = self.graphs = self.graph_events = self.graph_ns = self.gpu_events = 0
        self.nodes: list[int] = []
        self.orphan_groups: list[int] = []
        self.annotations: list[str] = []
        self._heads: dict[tuple[str, str, int], str] = {}
        self._first = True

    def head(self) -> None:
        device = {
            "id": self.rank,
            "name": "NVIDIA GeForce RTX 3090",
            "computeMajor": 8,
            "computeMinor": 6,
            "numSms": 82,
        }
        world = max(self.recipe.world, 1)
        groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}]
        distributed = {"backend": "nccl", "rank": self.rank, "world_size": world, "pg_count": 1, "pg_config": groups}
        self.file.write(
            '\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    '
            + json.dumps(device)
            + '\n  ],\n  "cupti_version": 130002,\n  "distributedInfo": '
            + json.dumps(distributed)
            + ',\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": '
            + str(BASE_NS)
            + ',\n  "traceEvents": [\n'
        )

    def tail(self) -> None:
        self.file.write(f'\n  ],\n  "traceName": "/tmp/rank{self.rank}.pt.trace.json"\n}}\n')

    def event(self, text: str) -> None:
        self.file.write(text if self._first else ",\n" + text)
        self._first = False
        self.events += 1

    def cpu(self, category: str, name: str, start: int, duration: int, args: str) -> None:
        self.event(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {self.pid}, "tid": {self.pid},\n'
            f'    "ts": {_us(start)}, "dur": {_us(duration)},\n    "args": {{\n      {args}\n    }}\n  }}'
        )

    def launch(self, name: str, cbid: int, correlation: int, start: int) -> None:
        args = f'"External id": {correlation // 3},      "cbid": {cbid}, "correlation": {correlation}'
        self.cpu("cuda_runtime", name, start, 6200, args)
        if self.recipe.flows:
            self.event(
                f'  {{\n    "ph": "s", "id": {correlation}, "pid": {self.pid}, "tid": {self.pid}, "ts": {_us(start)},\n'
                '    "cat": "ac2g", "name": "ac2g"\n  }'
            )

    def gpu(self, timed: _Timed, correlation: int, graph_id: int, node_id: int, name: str | None = None) -> None:
        node = timed.node
        key = (name or node.name, node.category, node.stream)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = (
                f'  {{\n    "ph": "X", "cat": "{node.category}", "name": "{name or node.name}", "pid": {self.rank}, '
                f'"tid": {node.stream},\n    "ts": '
            )
        ids = f'      "graph id": {graph_id},      "graph node id": {node_id},' if graph_id else ""
        if node.category == "kernel":
            rest = (
                '      "registers per thread": 96,      "shared memory": 49152,      "blocks per SM": 1,'
                '      "warps per SM": 8,      "grid": [82, 1, 1],      "block": [256, 1, 1],'
                '      "est. achieved occupancy %": 17'
            )
        else:
            rest = '      "bytes": 8192,      "memory bandwidth (GB/s)": 9.102222222222222'
        start = _us(timed.start)
        self.event(
            f'{head}{start}, "dur": {_us(timed.duration)},\n    "args": {{\n      "External id": {correlation // 3},'
            f'      "queued": 0, "device": {self.rank}, "context": 1,      "stream": {node.stream}, '
            f'"correlation": {correlation},{ids}{rest}\n    }}\n  }}'
        )
        if self.recipe.flows:
            self.event(
                f'  {{\n    "ph": "f", "id": {correlation}, "pid": {self.rank}, "tid": {node.stream}, "ts": {start},\n'
                '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'
            )
        self.gpu_events += 1

    def graph(self, timed: list[_Timed], launch_at: int | None, graph_id: int, first_node: int = 0) -> None:
        """One graph's events: stream after stream, so that file order is not time order.

        launch_at: None for a graph launched before the window.
        """
        self.correlation += 3
        correlation = self.correlation
        numbered = list(enumerate(timed, start=first_node))
        early = launch_at is not None and correlation % 2 == 0
        if early and launch_at is not None:
            self.launch("cudaGraphLaunch", 311, correlation, launch_at)
        for number, t in sorted(
            numbered, key=lambda item: (item[1].node.stream != MAIN, item[1].node.stream, item[1].start)
        ):
            self.gpu(t, correlation, graph_id if self.recipe.graph_ids else 0, number)
        if launch_at is None:
            self.orphan_groups.append(len(timed))
            return
        if not early:
            self.launch("cudaGraphLaunch", 311, correlation, launch_at)
        self.launches += 1
        self.graphs += 1
        self.graph_events += len(timed)
        self.graph_ns += sum(t.duration for t in timed)
        self.nodes.append(len(timed))

    def plain(self, timed: _Timed, launch_at: int, name: str | None = None) -> None:
        self.correlation += 3
        self.launch("cudaLaunchKernel", 211, self.correlation, launch_at)
        self.gpu(timed, self.correlation, 0, 0, name)

    def finish(self) -> Truth:
        self.truth.kernels = self.gpu_events
        self.truth.counts = {
            "events": self.events,
            "launches": self.launches,
            "graphs_with_gpu_events": self.graphs,
            "graph_gpu_events": self.graph_events,
            "graph_us": round(self.graph_ns / 1000, 1),
            "nodes_min": min(self.nodes, default=0),
            "nodes_max": max(self.nodes, default=0),
            "gpu_events": self.gpu_events,
            "orphan_groups": sorted(self.orphan_groups),
            "gpu_before_launch": 0,
            "annotations": sorted(set(self.annotations)),
            "device": "NVIDIA GeForce RTX 3090",
            "rank": self.rank,
        }
        return self.truth


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "wb", compresslevel=1), encoding="utf-8", write_through=False)
    return path.open("w", encoding="utf-8")


def write(path: Path, recipe: Recipe) -> Truth:
    """Write the trace of a single rank to `path` (.gz: compressed) and return what it holds."""
    return write_ranks([path], recipe)[0]


def write_ranks(paths: list[Path], recipe: Recipe) -> list[Truth]:
    """Write one trace per rank; the number of paths is the number of ranks that run together."""
    files = [_open(path) for path in paths]
    try:
        writers = [_Writer(file, recipe, rank) for rank, file in enumerate(files)]
        _write_all(writers, recipe)
    finally:
        for file in files:
            file.close()
    return [writer.finish() for writer in writers]


def _plan(recipe: Recipe) -> list[str]:
    """What each step is: orphans first, then a partial one at the session's start, whole ones, the cut tail."""
    partial_late = ["partial"] * max(0, recipe.partial - 1)
    whole = ["whole"] * recipe.steps
    middle = len(whole) // 2
    kinds = ["orphan"] * recipe.orphans + ["partial"] * min(1, recipe.partial)
    kinds += whole[:middle] + partial_late + whole[middle:]
    return kinds + (["cut"] if recipe.cut_tail else [])


def _write_all(writers: list[_Writer], recipe: Recipe) -> None:
    rng = random.Random(recipe.seed)
    pieces = decode_step(recipe.layers)
    nodes = [node for piece in pieces for node in piece]
    kinds = _plan(recipe)
    begins = [5_000_000 + rng.randrange(20_000) for _ in writers]
    for writer in writers:
        writer.head()
        _host_side(writer, recipe, kinds)
    for number, kind in enumerate(kinds):
        launch_at = _launch_time(number)
        begins = [max(begin, launch_at + 30_000) for begin in begins]
        per_rank, transports = _simulate(nodes, begins, rng)
        dropped = sorted(rng.sample(range(len(nodes)), max(3, len(nodes) // 9)))
        for rank, writer in enumerate(writers):
            timed = per_rank[rank]
            begins[rank] = max(t.start + t.duration for t in timed) + 150_000
            _one_step(writer, recipe, kind, number, timed, transports, set(dropped), pieces, begins[rank] - 120_000)
    for writer in writers:
        writer.tail()


def _launch_time(number: int) -> int:
    return 1_000_000 + number * 9_000_000


def _host_side(writer: _Writer, recipe: Recipe, kinds: list[str]) -> None:
    """Annotations and CPU work of every step; in a real file they stand before all GPU events, too."""
    for number, kind in enumerate(kinds):
        start = _launch_time(number) - 400_000
        if recipe.annotations and kind != "orphan":
            name = f"execute_context_0(0)_generation_{1}({1})"
            writer.cpu("user_annotation", name, start, 900_000, f'"External id": {number + 1}, "Ev Idx": {number}')
            writer.annotations.append(name)
        for index in range(recipe.host_events):
            args = (
                f'"External id": {number * 1000 + index},"Record function id": 0, "Concrete Inputs": ["", "", "0"], '
                '"Input type": ["c10::BFloat16", "long int", "Scalar"], "Input Dims": [[1, 4096], [1], []], '
                f'"Ev Idx": {number * 1000 + index}'
            )
            writer.cpu("cpu_op", "aten::index_select", start + index * 900, 700, args)
        for index in range(recipe.stack_events):
            args = f'"Python parent id": {index}, "Python id": {index + 1}, "Ev Idx": {index}'
            writer.cpu(
                "python_function", "vllm/v1/worker/gpu_worker.py(700): execute_model", start + index * 90, 80, args
            )


def _one_step(
    writer: _Writer,
    recipe: Recipe,
    kind: str,
    number: int,
    timed: list[_Timed],
    transports: list[int],
    dropped: set[int],
    pieces: list[list[Node]],
    sampling_at: int,
) -> None:
    launch_at = _launch_time(number)
    if kind == "cut":
        writer.correlation += 3
        writer.launch("cudaGraphLaunch", 311, writer.correlation, launch_at)
        writer.launches += 1
        return
    if kind == "orphan":
        writer.graph(timed[len(timed) // 2 :], None, 11, len(timed) // 2)
        return
    if kind == "partial":
        writer.graph([t for index, t in enumerate(timed) if index not in dropped], launch_at, 11)
        return
    if recipe.timeless:
        # of kernels that no other kernel's place depends on
        candidates = [index for index, t in enumerate(timed) if t.node.bucket in ("moe_routing", "other")]
        broken = {candidates[(number * 31 + 17 * k) % len(candidates)] for k in range(recipe.timeless)}
        kept = [t for index, t in enumerate(timed) if index not in broken]
        lost = [_Timed(t.node, 0, 0) for index, t in enumerate(timed) if index in broken]
        writer.truth.whole.append(_facts(kept, transports))
        writer.graph(kept + lost, launch_at, 11)
    else:
        writer.truth.whole.append(_facts(timed, transports))
        _whole_step(writer, recipe, timed, pieces, launch_at)
    bad = number % 2 == 0 and len(writer.truth.whole) <= 2 * recipe.bad_names
    at = sampling_at
    for node in SAMPLING:
        t = _Timed(node, at, node.usual_ns)
        writer.plain(
            t, launch_at + 600_000, 'void sampler<"greedy">(float*)' if bad and node.bucket == "sampling" else None
        )
        at += node.usual_ns + 500


def _whole_step(writer: _Writer, recipe: Recipe, timed: list[_Timed], pieces: list[list[Node]], launch_at: int) -> None:
    if recipe.mode == GRAPHS:
        writer.graph(timed, launch_at, 11)
        return
    if recipe.mode == EAGER:
        for index, t in enumerate(timed):
            writer.plain(t, launch_at + index * 50)
        return
    for index, (piece, eager) in enumerate(_split(pieces, timed)):
        if eager:
            for t in piece:
                writer.plain(t, launch_at + index * 900)
        else:
            writer.graph(piece, launch_at + index * 900, 20 + index)


def _split(pieces: list[list[Node]], timed: list[_Timed]) -> Iterator[tuple[list[_Timed], bool]]:
    """As breakable graphs cut a step: everything from the query GEMM to the attention of a layer runs eagerly."""
    captured: list[_Timed] = []
    at = 0
    for number, piece in enumerate(pieces):
        part = timed[at : at + len(piece)]
        at += len(piece)
        if number % 2 == 0 or number == len(pieces) - 1:
            captured += part
            continue
        low = next(i for i, t in enumerate(part) if "rmsnorm" in t.node.name) + 1
        high = next(i for i, t in enumerate(part) if "combine" in t.node.name) + 1
        yield captured + part[:low], False
        yield part[low:high], True
        captured = part[high:]
    yield captured, False
