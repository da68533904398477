"""vLLM's worker and CUDA communicator, for one test: all ranks of a tensor-parallel group on one GPU.

`SM86_TEST_SHARE_GPU=1`. NCCL refuses two ranks on one GPU, so the device groups are gloo, and what would be NCCL's goes
through CPU memory. The decode graphs hold no such call: their all-reduces are the host all-reduce's. Ranks take turns
on the GPU, so this shows what a group computes and never how fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused

ENVIRONMENT = {
    "VLLM_DISABLE_PYNCCL": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "VLLM_DISTRIBUTED_USE_SPLIT_GROUP": "0",
}
"""vLLM's own switches: each would set up NCCL, or memory shared between GPUs."""
DEVICE_BACKEND = "gloo"
NO_COPY = ("reduce_scatter", "reduce_scatterv", "all_gatherv", "send", "recv")
"""What a tensor-parallel step of DeepSeek-V4 never calls."""


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Switch off what needs one GPU for each rank; before vLLM reads its environment."""
    environment.update(ENVIRONMENT)


def exchange(group: Any, world: int, tensor: Any, what: str) -> list[Any]:
    """Every rank's tensor of this shape and type, on this tensor's device, by rank; over a gloo group of CPUs.

    Waits for the GPU. Raises Refused inside a capture, where no copy to the CPU can be.
    """
    import torch
    import torch.distributed as dist

    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        size = tensor.numel() * tensor.element_size()
        raise Refused(
            f"{what} of {size} bytes ({tensor.dtype}, {tuple(tensor.shape)}) inside a graph, with the GPU shared",
            "the host all-reduce must take it; without graphs start with --enforce-eager",
        )
    if not tensor.numel():
        return [tensor.clone() for _ in range(world)]
    # as bytes: no question of which types gloo knows
    mine = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine, group=group)
    return [part.to(tensor.device).view(tensor.dtype).reshape(tensor.shape) for part in parts]


def total(parts: list[Any]) -> Any:
    """The sum in the order of the ranks; of small floating types in fp32, rounded once, like the host all-reduce's."""
    from sm86.backend.collectives.trial import ordered_sum

    first = parts[0]
    if first.is_floating_point() and first.element_size() <= 4:
        return ordered_sum(parts)
    result = first.clone()
    for part in parts[1:]:
        result += part
    return result


def _parts(communicator: Any, tensor: Any, what: str) -> list[Any]:
    return exchange(communicator.cpu_group, communicator.world_size, tensor, what)


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Refused(f"{name} is not made for a shared GPU", "unset SM86_TEST_SHARE_GPU")

    return refuse


def check_communicator(communicator: Any) -> None:
    """Raise Refused when a way that needs one GPU for each rank was set up all the same."""
    names = ("pynccl_comm", "ca_comm", "qr_comm", "symm_mem_comm", "fi_ar_comm", "aiter_ar_comm")
    found = {name: getattr(communicator, name) for name in names}
    alive = [name for name, way in found.items() if way is not None and not getattr(way, "disabled", False)]
    if alive:
        raise Refused(
            f"with the GPU shared these must be off: {', '.join(alive)}", "start with --disable-custom-all-reduce"
        )


def _apply_to_communicator(module: Any) -> None:
    import torch

    kind = module.CudaCommunicator
    init = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        check_communicator(self)

    def all_reduce(self: Any, input_: Any) -> Any:
        return total(_parts(self, input_, "an all-reduce"))

    def all_gather(self: Any, input_: Any, dim: int = -1) -> Any:
        return torch.cat(_parts(self, input_, "an all-gather"), dim=dim)

    def gather(self: Any, input_: Any, dst: int = 0, dim: int = -1) -> Any:
        parts = _parts(self, input_, "a gather")
        return torch.cat(parts, dim=dim) if self.rank_in_group == dst else None

    def broadcast(self: Any, tensor: Any, src: int = 0) -> Any:
        return tensor.copy_(_parts(self, tensor, "a broadcast")[src])

    kind.__init__ = __init__
    kind.all_reduce = all_reduce
    kind.all_gather = all_gather
    kind.gather = gather
    kind.broadcast = broadcast
    for name in NO_COPY:
        setattr(kind, name, _refusing(name))


def _apply_to_worker(module: Any) -> None:
    from sm86.backend.report import report_once

    kind = module.Worker
    init_device = kind.init_device

    def init_device_(self: Any) -> None:
        # a rank's place in its groups is `rank`; `local_rank` only says which GPU is its own
        self.local_rank = 0
        self.parallel_config.disable_custom_all_reduce = True
        module.current_platform.dist_backend = DEVICE_BACKEND
        report_once("shared_gpu_rank", self.rank)
        init_device(self)

    kind.init_device = init_device_


_COMMUNICATOR = "vllm.distributed.device_communicators.cuda_communicator"
_BASE = "vllm.distributed.device_communicators.base_device_communicator"
_STATE = "vllm.distributed.parallel_state"
_WORKER = "vllm.v1.worker.gpu_worker"

COMMUNICATOR = Hook(
    name="shared-gpu-communicator",
    module=_COMMUNICATOR,
    why="NCCL refuses two ranks on one GPU: what it would do goes through CPU memory; only when asked, for a test",
    expects=(
        Expected(_COMMUNICATOR, "CudaCommunicator.__init__", "00cb81493991c568"),
        Expected(_COMMUNICATOR, "CudaCommunicator.all_reduce", "73b3ffc6af44c044"),
        Expected(_COMMUNICATOR, "CudaCommunicator.all_gather", "6acdb895fc9edb0a"),
        Expected(_COMMUNICATOR, "CudaCommunicator.all_gatherv", "a67f6df97b7ca6b8"),
        Expected(_COMMUNICATOR, "CudaCommunicator.reduce_scatter", "a5bb05722d9d58b0"),
        Expected(_COMMUNICATOR, "CudaCommunicator.reduce_scatterv", "cea56de51c6962d2"),
        Expected(_COMMUNICATOR, "CudaCommunicator.send", "7930f03d0460f2d8"),
        Expected(_COMMUNICATOR, "CudaCommunicator.recv", "1ea2817a9f220305"),
        Expected(_COMMUNICATOR, "CudaCommunicator.broadcast", "af1dfe5fbfde0de8"),
        Expected(_BASE, "DeviceCommunicatorBase.__init__", "9670af31211fb506"),
        Expected(_BASE, "DeviceCommunicatorBase.gather", "926b64c3aaefa871"),
        Expected(_STATE, "GroupCoordinator.all_gather", "165461c305f0aba8"),
        Expected(_STATE, "GroupCoordinator.gather", "1f383a677a46b958"),
        Expected("vllm.distributed.device_communicators.pynccl", "PyNcclCommunicator.__init__", "1d9e1622d48b3b5c"),
    ),
    apply=_apply_to_communicator,
)

WORKER = Hook(
    name="shared-gpu-worker",
    module=_WORKER,
    why="each worker takes the GPU of its own number: here all take the first one; only when asked, for a test",
    expects=(
        Expected(_WORKER, "Worker.init_device", "82498f19427afa48"),
        Expected(_WORKER, "init_worker_distributed_environment", "af452273c9355c04"),
        Expected(_STATE, "init_distributed_environment", "29680a4ddb6e2e68"),
        Expected(_STATE, "GroupCoordinator.__init__", "40ca5ab6707680a6"),
    ),
    apply=_apply_to_worker,
    imports=("current_platform",),
)

HOOKS: tuple[Hook, ...] = (COMMUNICATOR, WORKER)
"""Before all others: the host all-reduce stands ahead of these all-reduces as it does of NCCL's."""
