"""The exchange over torch's gloo, as vLLM's workers use it: needs torch and no GPU."""

from __future__ import annotations

import ctypes
import multiprocessing
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sm86.backend.collectives import binding  # noqa: E402
from sm86.backend.collectives.build import FOLDER  # noqa: E402
from sm86.backend.collectives.communicator import HostAllReduce  # noqa: E402
from sm86.backend.collectives.exchange import GroupExchange  # noqa: E402
from sm86.backend.collectives.plan import Plan  # noqa: E402
from sm86.backend.collectives.trial import message, ordered_sum, same_bits  # noqa: E402

COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")


def one_rank(rank: int, world: int, store: str, library: str, results: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)

    def load() -> ctypes.CDLL:
        loaded = binding.declare(ctypes.CDLL(library))
        loaded.sm86_ar_settle.argtypes = [ctypes.c_void_p]
        return loaded

    exchange = GroupExchange(dist.group.WORLD)
    with HostAllReduce(exchange, 0, 4096, 30.0, library=load) as reduce:
        right = True
        for algorithm in (0, 1, 2):
            for dtype in (torch.bfloat16, torch.float32):
                parts = [message(512, dtype, "cpu", algorithm, peer) for peer in range(world)]
                # a view that starts off a 16-byte border is taken all the same
                shifted = torch.cat([parts[rank][:1], parts[rank]])[1:]
                for source in (parts[rank], shifted):
                    out = reduce.all_reduce(source, plan=Plan(algorithm, 128))
                    right &= same_bits(out, ordered_sum(parts)) and out.data_ptr() != source.data_ptr()
        in_place = parts[rank].clone()
        right &= reduce.all_reduce(in_place, in_place) is in_place and same_bits(in_place, ordered_sum(parts))
        refused = [torch.ones(7), torch.ones(4, dtype=torch.float64), torch.ones(8192), torch.ones(8, 8).t()]
        right &= not any(reduce.takes(tensor) for tensor in refused)
        reduce._library.sm86_ar_settle(reduce._handle)
        exchange.gather(True)
    results.put((rank, right))
    dist.destroy_process_group()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_tensors_over_gloo(tmp_path: Path) -> None:
    library = tmp_path / "cpu.so"
    source = Path(__file__).with_name("cpu_library.cpp")
    command = [str(COMPILER), "-std=c++17", "-O0", "-fPIC", "-shared", f"-I{FOLDER}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=one_rank, args=(rank, 2, str(tmp_path / "store"), str(library), results), daemon=True)
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    found = dict(results.get(timeout=100) for _ in ranks)
    for rank in ranks:
        rank.join(20)
    assert found == {0: True, 1: True}
