"""All ranks on one GPU, for a test: what the hooks change on stand-ins of vLLM, and the exchange over gloo."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm86.backend.collectives.decision import HOST, NCCL, Choice, untimed
from sm86.backend.collectives.plan import ONE_SHOT, PACKETS, TWO_SHOT
from sm86.backend.hooks import host_allreduce, shared_gpu
from sm86.backend.hooks.catalogue import HOOKS
from sm86.backend.refusal import Refused
from sm86.backend.settings import Settings, read

ON = {"SM86_TEST_SHARE_GPU": "1", "SM86_FORCE": "1", "SM86_HOST_ALLREDUCE": "1"}


def test_the_setting_is_for_proofs_alone() -> None:
    assert read(ON) == Settings(force=True, host_allreduce="1", share_gpu=True)
    assert not read({**ON, "SM86_TEST_SHARE_GPU": "0"}).share_gpu
    for environment, words in (
        ({**ON, "SM86_TEST_SHARE_GPU": "yes"}, "SM86_TEST_SHARE_GPU='yes'"),
        ({**ON, "SM86_FORCE": "0"}, "SM86_FORCE is not 1"),
        ({"SM86_TEST_SHARE_GPU": "1"}, "SM86_FORCE is not 1"),
        ({**ON, "SM86_HOST_ALLREDUCE": "auto"}, "SM86_HOST_ALLREDUCE is auto"),
        ({**ON, "SM86_HOST_ALLREDUCE": "0"}, "SM86_HOST_ALLREDUCE is 0"),
    ):
        with pytest.raises(Refused, match=words):
            read(environment)


def test_a_server_without_it_has_none_of_these_hooks() -> None:
    assert not set(HOOKS) & set(shared_gpu.HOOKS)
    assert not {hook.name for hook in HOOKS} & {hook.name for hook in shared_gpu.HOOKS}


def test_vllms_own_switches() -> None:
    environment = {"VLLM_DISABLE_PYNCCL": "0", "OTHER": "1"}
    shared_gpu.prepare(environment)
    assert environment == {**shared_gpu.ENVIRONMENT, "OTHER": "1"} and environment["VLLM_DISABLE_PYNCCL"] == "1"


def worker_module() -> tuple[Any, list[Any]]:
    seen: list[Any] = []
    platform = SimpleNamespace(dist_backend="nccl")

    class Worker:
        def __init__(self, rank: int) -> None:
            self.rank = self.local_rank = rank
            self.parallel_config = SimpleNamespace(disable_custom_all_reduce=False)

        def init_device(self) -> None:
            seen.append(
                (self.rank, self.local_rank, platform.dist_backend, self.parallel_config.disable_custom_all_reduce)
            )

    return SimpleNamespace(Worker=Worker, current_platform=platform), seen


def test_every_worker_takes_the_first_gpu_and_keeps_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    module, seen = worker_module()
    shared_gpu.WORKER.apply(module)
    for rank in range(2):
        module.Worker(rank).init_device()
    assert seen == [(0, 0, "gloo", True), (1, 0, "gloo", True)]
    assert "[sm86] backend shared_gpu_rank=1\n" in capsys.readouterr().out


def ways(**changes: Any) -> SimpleNamespace:
    names = ("pynccl_comm", "ca_comm", "qr_comm", "symm_mem_comm", "fi_ar_comm", "aiter_ar_comm")
    return SimpleNamespace(**(dict.fromkeys(names) | changes))


def test_what_needs_a_gpu_for_each_rank_must_be_off() -> None:
    off, on = SimpleNamespace(disabled=True), SimpleNamespace(disabled=False)
    shared_gpu.check_communicator(ways(pynccl_comm=off, symm_mem_comm=off))
    for name in ("pynccl_comm", "ca_comm", "symm_mem_comm", "fi_ar_comm"):
        with pytest.raises(Refused, match=name):
            shared_gpu.check_communicator(ways(**{name: on}))
    with pytest.raises(Refused, match="aiter_ar_comm"):
        shared_gpu.check_communicator(ways(aiter_ar_comm=object()))


def test_a_copy_to_the_cpu_inside_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_current_stream_capturing=lambda: True), distributed=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())
    tensor = SimpleNamespace(is_cuda=True, numel=lambda: 4096, element_size=lambda: 2, dtype="bf16", shape=(1, 4096))
    with pytest.raises(Refused, match=r"an all-reduce of 8192 bytes .* inside a graph"):
        shared_gpu.exchange(None, 2, tensor, "an all-reduce")


def test_plans_without_a_timing_cover_every_size() -> None:
    choice = untimed("1", 2, (32768, 8192, 16384))
    assert choice.way == HOST and not choice.table
    algorithms = [choice.plan_for(size).algorithm for size in (8192, 16384, 32768)]  # type: ignore[union-attr]
    assert algorithms == [PACKETS, ONE_SHOT, PACKETS], "more than one algorithm in one run"
    assert choice.plan_for(1024) == choice.plan_for(8192), "of the next larger size"
    assert choice.plan_for(65536) is None and choice.plan_for(8200) is None
    assert {plan.algorithm for plan in untimed("1", 4, (8192, 16384, 32768)).plans.values()} == {0, 1, TWO_SHOT}


def test_graphs_have_no_other_way() -> None:
    host_allreduce.require_host(Choice("1", HOST, "asked for"))
    with pytest.raises(Refused, match="does not serve: set-up failed: no library"):
        host_allreduce.require_host(Choice("1", NCCL, "set-up failed: no library"))


def communicator_module() -> Any:
    class CudaCommunicator:
        def __init__(self, group: Any, rank: int, world: int, **changes: Any) -> None:
            self.__dict__.update(vars(ways(pynccl_comm=SimpleNamespace(disabled=True), **changes)))
            self.cpu_group, self.rank_in_group, self.world_size = group, rank, world

    return SimpleNamespace(CudaCommunicator=CudaCommunicator)


def test_what_a_step_never_calls_is_a_wall() -> None:
    pytest.importorskip("torch")
    module = communicator_module()
    shared_gpu.COMMUNICATOR.apply(module)
    communicator = module.CudaCommunicator(None, 0, 2)
    for name in shared_gpu.NO_COPY:
        with pytest.raises(Refused, match=f"{name} is not made for a shared GPU"):
            getattr(communicator, name)(1)
    with pytest.raises(Refused, match="ca_comm"):
        module.CudaCommunicator(None, 0, 2, ca_comm=SimpleNamespace(disabled=False))


def one_rank(rank: int, world: int, store: str, results: Any) -> None:
    import torch
    import torch.distributed as dist

    from sm86.backend.collectives.trial import message, ordered_sum, same_bits

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    module = communicator_module()
    shared_gpu.COMMUNICATOR.apply(module)
    communicator = module.CudaCommunicator(dist.group.WORLD, rank, world)
    right = []
    with torch.inference_mode():
        for dtype in (torch.bfloat16, torch.float32, torch.float16):
            parts = [message(4096, dtype, "cpu", 3, peer).view(-1, 8) for peer in range(world)]
            mine = parts[rank].clone()
            right.append(same_bits(communicator.all_reduce(mine), ordered_sum(parts)) and same_bits(mine, parts[rank]))
            for dim in (0, 1, -1):
                right.append(same_bits(communicator.all_gather(mine, dim), torch.cat(parts, dim)))
            right.append(same_bits(communicator.all_reduce(mine.t()), ordered_sum(parts).t()))
            found = communicator.gather(mine, dst=1)
            right.append(found is None if rank != 1 else same_bits(found, torch.cat(parts, -1)))
            right.append(same_bits(communicator.broadcast(mine, src=1), parts[1]) and same_bits(mine, parts[1]))
        counts = communicator.all_reduce(torch.tensor([2**40 + rank, rank]))
        right.append(counts.tolist() == [world * 2**40 + sum(range(world)), sum(range(world))])
        flags = communicator.all_gather(torch.tensor([rank == 1]), 0)
        right.append(flags.tolist() == [peer == 1 for peer in range(world)])
        right.append(communicator.all_reduce(torch.empty(0, 4)).shape == (0, 4))
        right.append(communicator.all_reduce(torch.tensor(1.5 + rank)).item() == sum(1.5 + r for r in range(world)))
    results.put((rank, right))
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_values_over_gloo(world: int, tmp_path: Path) -> None:
    """The same calls on all ranks, in real processes: sums rounded once, parts in the order of the ranks."""
    pytest.importorskip("torch")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=one_rank, args=(rank, world, str(tmp_path / "store"), results), daemon=True)
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    found = dict(results.get(timeout=180) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    assert set(found) == set(range(world))
    assert all(all(right) and len(right) == 25 for right in found.values()), found
