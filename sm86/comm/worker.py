"""One rank of one run: opens its way, measures every size inside a CUDA graph, checks every value. Effects: GPU.

    python3 -P -m sm86.comm.worker          (started by sm86.comm.driver, which writes its order to stdin)

A graph holds as many all-reduces as a decode step makes, each on its own buffer, behind one copy that restores the
buffers; a second graph holds that copy alone, and its time is taken off. What is checked are the very buffers that the
timed graph filled. On the CPU (emulated) there are no graphs: the same calls run one after another.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from sm86.comm import paths
from sm86.comm.answer import FAILED, MEASURED, PREFIX, UNAVAILABLE
from sm86.comm.paths import one_line
from sm86.comm.step import calls_for
from sm86.json_text import parse as parse_json

ORPHANED, OUT_OF_TIME = 3, 4
"""Exit codes of a rank whose driver has gone, and of one that did not finish in its time."""

ROUNDING = 2.0**-8
"""The largest relative error of one rounding to bf16, which keeps eight significant bits."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the driver asks of one rank. store: a file all ranks share; the rest as in `sm86.comm.plan.Plan`."""

    rank: int
    ranks: int
    device: str
    path: str
    sizes: tuple[int, ...]
    calls: int
    warm: int
    replays: int
    limit_s: float
    store: str


def main() -> int:
    """Do what stdin asks; the answer is one line of JSON on stdout. Exit code 0 when there is an answer."""
    order = Order(**{**(values := parse_json(sys.stdin.readline())), "sizes": tuple(values["sizes"])})
    _end_with_driver()
    timer = threading.Timer(order.limit_s, lambda: os._exit(OUT_OF_TIME))
    timer.daemon = True
    timer.start()
    answer: dict[str, Any] = {"rank": order.rank, "state": FAILED, "why": "", "cells": {}, "facts": {}}
    try:
        answer |= _measured(order)
    except paths.Unavailable as reason:
        answer |= {"state": UNAVAILABLE, "why": str(reason)}
    except Exception as error:
        answer |= {"why": f"{type(error).__name__}: {one_line(error)}"}
    print(PREFIX + json.dumps(answer), flush=True)
    # a communicator whose peer has died can wait for ever in its own clean-up
    sys.stdout.flush()
    os._exit(0)


def _end_with_driver() -> None:
    """End when the driver does: it never closes its end of stdin while it lives."""

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            while sys.stdin.read(4096):
                pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True, name="driver").start()


def _measured(order: Order) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if order.device == "cuda":
        torch.cuda.set_device(order.rank)
    device = torch.device(order.device, order.rank if order.device == "cuda" else None)
    store = dist.FileStore(order.store, order.ranks)
    dist.init_process_group("gloo", store=store, rank=order.rank, world_size=order.ranks)
    control = dist.group.WORLD
    used = _used_mib(torch, order)
    path = paths.open_path(order.path, control, device, max(order.sizes))
    bench: Any = _Graphs(path, device) if order.device == "cuda" else _Loop(path)
    sizes = [size for size in order.sizes if path.takes(size)]
    if not sizes:
        raise paths.Unavailable("it takes none of these sizes")
    cells = {str(size): _size(order, bench, path, control, device, size) for size in sizes}
    # nobody goes while another may still look at what it left in shared memory
    dist.barrier(control)
    with contextlib.suppress(Exception):
        path.close()
    return {"state": MEASURED, "cells": cells, "facts": {**_facts(order, torch), **used}}


def _size(order: Order, bench: Any, path: Any, control: Any, device: Any, size: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    calls, numbers = calls_for(size, order.calls), size // 2
    given = torch.empty(calls, numbers, dtype=torch.bfloat16, device=device)
    _fill(given, order.rank, 0)
    bench.prepare(given, order.warm)
    dist.barrier(control)
    first = _check(bench.once(), order.ranks, 0)
    dist.barrier(control)
    us = bench.timed(order.replays) / calls
    # other values for the last time: what a call left behind from an earlier one is then no longer right
    _fill(given, order.rank, 1)
    dist.barrier(control)
    result = bench.once()
    last = _check(result, order.ranks, 1)
    digests: list[bytes | None] = [None] * order.ranks
    dist.all_gather_object(digests, _digest(result), group=control)
    return {"us": us, "error": max(first, last), "bit_equal": len(set(digests)) == 1, "ran": path.ran(size)}


class _Graphs:
    """All calls of a step as one CUDA graph; times by events on the GPU."""

    def __init__(self, path: Any, device: Any) -> None:
        self._path = path
        self._device = device

    def prepare(self, given: Any, warm: int) -> None:
        import torch

        buffers = torch.empty_like(given)
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._stream = stream
        with torch.cuda.stream(stream):
            # connections are made at the first call, which cannot be captured
            buffers.copy_(given)
            for _ in range(2):
                self._path.all_reduce(buffers[0])
        stream.synchronize()
        self._copy, self._whole = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # other threads (torch's watchdog) may ask for events meanwhile
        with torch.cuda.graph(self._copy, stream=stream, capture_error_mode="thread_local"):
            buffers.copy_(given)
        with torch.cuda.graph(self._whole, stream=stream, capture_error_mode="thread_local"):
            buffers.copy_(given)
            self._results = [self._path.all_reduce(buffers[index]) for index in range(given.shape[0])]
        with torch.cuda.stream(stream):
            for _ in range(warm):
                self._whole.replay()
                self._copy.replay()
        stream.synchronize()

    def once(self) -> Any:
        """[calls, n]: the sums of one replay."""
        import torch

        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
            self._whole.replay()
        self._stream.synchronize()
        return torch.stack(self._results)

    def timed(self, replays: int) -> float:
        """Microseconds of all calls of one graph, without the copy: medians over the replays."""
        return self._median(self._whole, replays) - self._median(self._copy, replays)

    def _median(self, graph: Any, replays: int) -> float:
        import torch

        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        with torch.cuda.stream(self._stream):
            marks[0].record()
            for mark in marks[1:]:
                graph.replay()
                mark.record()
        self._stream.synchronize()
        return 1000.0 * median(before.elapsed_time(after) for before, after in itertools.pairwise(marks))


class _Loop:
    """The same calls on the CPU, one after another; wall time."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def prepare(self, given: Any, warm: int) -> None:
        import torch

        self._given, self._buffers = given, torch.empty_like(given)
        for _ in range(warm):
            self.once()

    def once(self) -> Any:
        import torch

        self._buffers.copy_(self._given)
        return torch.stack([self._path.all_reduce(buffer) for buffer in self._buffers])

    def timed(self, replays: int) -> float:
        seconds = []
        for _ in range(replays):
            self._buffers.copy_(self._given)
            began = time.perf_counter()
            for buffer in self._buffers:
                self._path.all_reduce(buffer)
            seconds.append(time.perf_counter() - began)
        return 1e6 * median(seconds)


def values(rank: int, call: int, turn: int, numbers: int, device: Any) -> Any:
    """The bf16 input [numbers] of one rank in one call: integer arithmetic, so that every rank can make every other's.

    Between -1 and 1, and different for each rank, call and turn at almost every place.
    """
    import torch

    place = torch.arange(numbers, dtype=torch.int64, device=device)
    seed = rank * 7_919 + call * 104_729 + turn * 1_299_709
    mixed = (place * 2_654_435_761 + seed * 40_503 + (place >> 7) * seed) % 65_521
    return ((mixed - 32_760).double() / 32_761.0).to(torch.bfloat16)


def _fill(given: Any, rank: int, turn: int) -> None:
    for call in range(given.shape[0]):
        given[call].copy_(values(rank, call, turn, given.shape[1], given.device))


def _check(results: Any, ranks: int, turn: int) -> float:
    """The largest error over what rounding allows, against a float64 sum; infinite for what is not a number.

    Any order of summation rounds at most `ranks` times, each time by at most ROUNDING of a partial sum.
    """
    import torch

    worst = 0.0
    for call in range(results.shape[0]):
        every = [values(rank, call, turn, results.shape[1], results.device).double() for rank in range(ranks)]
        exact, bulk = sum(every), sum(one.abs() for one in every)
        share = (results[call].double() - exact).abs() / (ranks * ROUNDING * bulk + 1e-12)
        found = float(share.max()) if bool(torch.isfinite(share).all()) else float("inf")
        worst = max(worst, found)
    return worst


def _digest(results: Any) -> bytes:
    import torch

    return hashlib.sha256(results.contiguous().view(torch.int16).cpu().numpy().tobytes()).digest()


def _used_mib(torch: Any, order: Order) -> dict[str, Any]:
    """Memory that others have on this rank's GPU (and this process's context): a sign of company."""
    if order.device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(order.rank)
    return {"used_mib": (total - free) // 2**20}


def _facts(order: Order, torch: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"torch": torch.__version__, "device": order.device}
    if order.device != "cuda":
        return facts
    own = order.rank
    facts |= {
        "gpu": torch.cuda.get_device_name(own),
        "capability": list(torch.cuda.get_device_capability(own)),
        "peer_access": [other == own or torch.cuda.can_device_access_peer(own, other) for other in range(order.ranks)],
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }
    return facts


if __name__ == "__main__":
    sys.exit(main())
