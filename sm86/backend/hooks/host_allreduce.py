"""vllm.distributed.device_communicators.cuda_communicator: small all-reduces of the TP group through host memory."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused


def is_tensor_parallel(unique_name: str) -> bool:
    """vLLM names its groups "tp:0", "pp:0", "dp:1" and so on."""
    return unique_name.startswith("tp:")


def decode_sizes(config: Any) -> tuple[int, ...]:
    """Bytes of the all-reduces of this server's decode steps; empty without a configuration."""
    from sm86.backend.collectives.decision import sizes_of
    from sm86.backend.collectives.plan import MAX_BYTES

    if config is None or config.model_config is None:
        return ()
    captured = config.compilation_config.cudagraph_capture_sizes or ()
    tokens = tuple(captured) or tuple(range(1, config.scheduler_config.max_num_seqs + 1))
    return sizes_of(config.model_config.get_hidden_size(), config.model_config.dtype.itemsize, tokens, MAX_BYTES)


def _group_reduce(communicator: Any) -> Any:
    """What serves this communicator's group, None for groups that are left alone."""
    from torch.distributed import ProcessGroup

    from sm86.backend.settings import settings

    nccl = communicator.pynccl_comm
    if not is_tensor_parallel(communicator.unique_name) or not isinstance(communicator.cpu_group, ProcessGroup):
        return None
    # ranks that share a GPU have no NCCL, and nothing to compare with
    shared = settings().share_gpu
    if not shared and (nccl is None or nccl.disabled):
        return None
    from vllm.config import get_current_vllm_config_or_none

    from sm86.backend.collectives.exchange import GroupExchange
    from sm86.backend.collectives.startup import start

    config = get_current_vllm_config_or_none()
    group = start(
        settings().host_allreduce,
        GroupExchange(communicator.cpu_group),
        communicator.device.index,
        decode_sizes(config),
        None if shared else nccl.all_reduce,
        ubatches=config is not None and config.parallel_config.use_ubatching,
    )
    if shared:
        require_host(group.choice)
    return group


def require_host(choice: Any) -> None:
    """Raise Refused, on every rank, unless small all-reduces go by host memory: graphs have no other way then."""
    from sm86.backend.collectives.decision import HOST

    if choice.way != HOST:
        raise Refused(
            f"SM86_TEST_SHARE_GPU=1 needs the host all-reduce, which does not serve: {choice.reason}",
            "mend what the reason names, or unset SM86_TEST_SHARE_GPU",
        )


def _apply(module: Any) -> None:
    kind = module.CudaCommunicator
    init, reduce, destroy = kind.__init__, kind.all_reduce, kind.destroy

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.sm86_reduce = _group_reduce(self)

    def all_reduce(self: Any, input_: Any) -> Any:
        ours = self.sm86_reduce
        if ours is not None and ours.takes(input_):
            return ours.all_reduce(input_)
        return reduce(self, input_)

    def destroy_(self: Any) -> None:
        if self.sm86_reduce is not None:
            self.sm86_reduce.close()
        destroy(self)

    kind.__init__ = __init__
    kind.all_reduce = all_reduce
    kind.destroy = destroy_


_MODULE = "vllm.distributed.device_communicators.cuda_communicator"

HOOK = Hook(
    name="host-allreduce",
    module=_MODULE,
    why="without peer access NCCL's ring makes 2(N-1) dependent trips through host memory, where one or two are enough",
    expects=(
        Expected(_MODULE, "CudaCommunicator.__init__", "00cb81493991c568"),
        Expected(_MODULE, "CudaCommunicator.all_reduce", "73b3ffc6af44c044"),
        Expected(_MODULE, "CudaCommunicator.destroy", "5303591e74d36df5"),
        Expected("vllm.distributed.parallel_state", "GroupCoordinator.all_reduce", "8a7466220934529c"),
        Expected("vllm.distributed.parallel_state", "GroupCoordinator._all_reduce_out_place", "2a669754d06037c3"),
        Expected("vllm.distributed.parallel_state", "_get_unique_name", "adb0bc1a83761dcc"),
        Expected("vllm.distributed.device_communicators.pynccl", "PyNcclCommunicator.all_reduce", "25eba87ab0f9938e"),
    ),
    apply=_apply,
)
