"""All ranks of a group in one process: the CPU build here, and with SM86_TEST_DEVICE=cuda the real kernels on one GPU
(no peer and no second process, but every kernel, called one by one and replayed from graphs)."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sm86.backend.collectives import binding
from sm86.backend.collectives.build import FOLDER
from sm86.backend.collectives.communicator import HostAllReduce
from sm86.backend.collectives.exchange import SocketExchange
from sm86.backend.collectives.failure import CollectiveFailed, SetupFailed
from sm86.backend.collectives.plan import MAX_BYTES, NAMES, Plan, fits

COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
on_gpu = pytest.mark.skipif(
    os.environ.get("SM86_TEST_DEVICE") != "cuda" or importlib.util.find_spec("torch") is None,
    reason="SM86_TEST_DEVICE=cuda runs the kernels on a GPU",
)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_set_up_and_end_alone(tmp_path: Path) -> None:
    output = tmp_path / "cpu.so"
    source = Path(__file__).with_name("cpu_library.cpp")
    command = [str(COMPILER), "-std=c++17", "-O0", "-fPIC", "-shared", f"-I{FOLDER}", str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    with HostAllReduce(
        SocketExchange(tmp_path / "meet", 0, 1),
        0,
        4096,
        local_ranks=8,
        library=lambda: binding.declare(ctypes.CDLL(str(output))),
    ) as reduce:
        assert reduce.world == 8 and reduce.entered() == [0] * 8
        _takes_by_facts_that_all_ranks_share(reduce)
        reduce.check()
        reduce.abort()
        end = time.monotonic() + 20
        while reduce.failure is None and time.monotonic() < end:
            time.sleep(0.02)
        with pytest.raises(CollectiveFailed, match="gave the group up"):
            reduce.check()
    reduce.close()
    with pytest.raises((RuntimeError, CollectiveFailed)):
        reduce.check()


def _takes_by_facts_that_all_ranks_share(reduce: HostAllReduce) -> None:
    """What is no message goes to NCCL: other types, layouts and sizes, and memory that the kernels cannot reach."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    good = torch.ones(8, 128, dtype=torch.bfloat16)
    assert reduce.takes(good) and reduce.takes(good.float()) and reduce.takes(good[4:])
    refused = [good.half(), good.long(), good.t(), good[:, ::2], good[:, :7], good.to("meta"), good[:0]]
    assert not any(reduce.takes(tensor) for tensor in [*refused, good.repeat(100, 1)])
    with pytest.raises(ValueError, match="`out` must have"):
        reduce.all_reduce(good, torch.empty_like(good, device="meta"))


@pytest.fixture(params=range(2, 9))
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostAllReduce]:
    made = None
    for most in (MAX_BYTES, MAX_BYTES // 2, MAX_BYTES // 4, MAX_BYTES // 8):
        exchange = SocketExchange(tmp_path / f"meet-{most}", 0, 1)
        try:
            made = HostAllReduce(exchange, 0, most, local_ranks=request.param, timeout_s=5.0)
            break
        except SetupFailed as failed:
            # so many ranks do not fit into a small GPU at once
            if binding.REFUSALS[-5] not in failed.reason:
                raise
    assert made is not None
    with made:
        yield made


@on_gpu
def test_every_kernel_gives_the_ordered_sum(group: HostAllReduce) -> None:
    from sm86.backend.collectives.trial import check_values

    sizes = [size for size in (1024, 128 * 24, 8192, 32768, 131072) if size <= group.max_bytes]
    assert check_values(group, sizes) is None


@on_gpu
def test_calls_of_all_kinds_in_any_order(group: HostAllReduce) -> None:
    """Sizes, types, algorithms and blocks drawn anew, with fresh messages: what a call leaves behind (its number in
    every warp, the slots to re-arm) must be right for whatever comes next, called or replayed."""
    import torch

    from sm86.backend.collectives.trial import graph_of, message, ordered_sum, same_bits

    device = torch.device("cuda", group.device)
    draw = random.Random(group.world)
    sizes = [size for size in (16, 1024, 3072, 8192, 16400, 32768, 131072) if size <= group.max_bytes]
    done = 0
    for call in range(60):
        size = draw.choice(sizes)
        # all ranks of the group must fit into this GPU at once, which `group` has seen for blocks of 256 threads
        threads = draw.choice((32, 128, 256, 512)) if size <= 16400 else 256
        plans = [Plan(algorithm, threads, draw.choice((0, 0, 500))) for algorithm in range(len(NAMES))]
        plan = draw.choice([plan for plan in plans if fits(plan, size)])
        dtype = draw.choice((torch.bfloat16, torch.float32))
        parts = [message(size, dtype, device, call, rank) for rank in range(group.world)]
        want, mine = ordered_sum(parts), torch.cat(parts)
        out = torch.full_like(mine, float("nan"))
        times = draw.choice((1, 1, 1, 3))
        if times == 1:
            group.all_reduce(mine, out, plan)
        else:
            graph = graph_of(partial(group.all_reduce, mine, out, plan), times)
            graph.replay()
        torch.cuda.synchronize(device)
        group.check_now()
        done += times
        assert all(same_bits(row, want) for row in out.view(group.world, -1)), (call, plan.name, size, dtype, times)
    assert group.entered() == [done] * group.world


@on_gpu
def test_times_can_be_taken(group: HostAllReduce) -> None:
    from sm86.backend.collectives.trial import best_plans, fastest

    table = best_plans(group, [8192], replays=3)
    plan = fastest(8192, group.world, table[8192])
    assert table[8192][plan.name].median > 0 and group.read_ns() > 0
