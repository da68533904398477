"""The ways to make an all-reduce, each behind one small interface. Effects: GPU, process groups. Imports torch late."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Protocol

from sm86.comm import matrix


class Unavailable(Exception):
    """This way does not exist here; the text is the one-line reason."""


class Path(Protocol):
    """An opened way. `all_reduce` sums a contiguous bf16 tensor [n] over all ranks on the current stream, in place or
    into another tensor, which it returns."""

    def takes(self, size: int) -> bool:
        """Whether a message of so many bytes can go this way; the same on every rank."""
        ...

    def all_reduce(self, tensor: Any) -> Any: ...

    def ran(self, size: int) -> str:
        """Which variant ran for this size, in words; "" where only others can tell."""
        ...

    def close(self) -> None: ...


def open_path(kind: str, control: Any, device: Any, max_bytes: int) -> Path:
    """Open one way on every rank. control: a gloo group of all ranks; max_bytes: of the largest tensor.

    Raises Unavailable with the reason of the first rank that has one, on every rank: a rank that went on alone would
    wait for the others for ever.
    """
    import torch.distributed as dist

    makers: dict[str, Any] = {
        matrix.NCCL: _Nccl,
        matrix.GLOO: _Gloo,
        matrix.HOST: _Host,
        matrix.FLASHINFER: _FlashInfer,
    }
    path: Path | None = None
    why: str | None = None
    try:
        path = makers[kind](control, device, max_bytes)
    except Exception as error:
        why = one_line(error)
    votes: list[str | None] = [None] * dist.get_world_size(control)
    dist.all_gather_object(votes, why, group=control)
    reason = next((f"rank {rank}: {vote}" for rank, vote in enumerate(votes) if vote is not None), None)
    if reason is not None:
        if path is not None:
            with contextlib.suppress(Exception):
                path.close()
        same = {vote for vote in votes}
        raise Unavailable(str(votes[0]) if len(same) == 1 else reason)
    assert path is not None
    return path


def one_line(error: BaseException, limit: int = 300) -> str:
    """The first telling line of an exception, without the C++ stack that torch appends."""
    text = str(error).strip() or type(error).__name__
    kept = [line.strip() for line in io.StringIO(text) if line.strip()]
    cut = next((at for at, line in enumerate(kept) if line.startswith(("Exception raised from", "C++ CapturedTr"))), 6)
    words = " ".join(kept[: max(min(cut, 6), 1)])
    return words if len(words) <= limit else words[: limit - 1] + "…"


class _Collective:
    """torch.distributed with one backend, on the current stream."""

    backend = ""

    def __init__(self, control: Any, device: Any, max_bytes: int) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = dist.new_group(backend=self.backend)

    def takes(self, size: int) -> bool:
        return True

    def all_reduce(self, tensor: Any) -> Any:
        self._dist.all_reduce(tensor, group=self._group)
        return tensor

    def ran(self, size: int) -> str:
        return ""

    def close(self) -> None:
        """Nothing: the process ends, and tearing a communicator down can wait for a peer for ever."""


class _Nccl(_Collective):
    backend = "nccl"


class _Gloo(_Collective):
    backend = "gloo"

    def ran(self, size: int) -> str:
        return "gloo on the CPU, emulated"


class _Host:
    """The product's own all-reduce through host memory."""

    def __init__(self, control: Any, device: Any, max_bytes: int) -> None:
        if device.type != "cuda":
            raise Unavailable("it runs on GPUs only")
        try:
            # by name: the backend is the engine's part, and an image may be older than this program
            from importlib import import_module

            open_all_reduce = import_module("sm86.backend.collectives").open_all_reduce
        except (ImportError, AttributeError):
            raise Unavailable("this image's backend has no all-reduce of its own") from None
        self._ours = open_all_reduce(control, device, max_bytes)

    def takes(self, size: int) -> bool:
        # what is larger a server leaves to NCCL
        return size <= int(self._ours.max_bytes)

    def all_reduce(self, tensor: Any) -> Any:
        return self._ours.all_reduce(tensor)

    def ran(self, size: int) -> str:
        return str(self._ours.words(size))

    def close(self) -> None:
        self._ours.close()


class _FlashInfer:
    """FlashInfer's all-reduce as vLLM 0.26.0 calls it (distributed/device_communicators/flashinfer_all_reduce.py)."""

    def __init__(self, control: Any, device: Any, max_bytes: int) -> None:
        import torch
        import torch.distributed as dist

        if device.type != "cuda":
            raise Unavailable("it runs on GPUs only")
        from sm86.comm.step import HIDDEN_SIZE

        try:
            from importlib import import_module

            self._comm = import_module("flashinfer.comm")
            backend = import_module("flashinfer.comm.mnnvl").TorchDistBackend(group=control)
        except ImportError as error:
            raise Unavailable(f"FlashInfer is not installed or has no such module: {one_line(error)}") from None
        if not hasattr(self._comm, "create_allreduce_fusion_workspace"):
            raise Unavailable("the installed FlashInfer has no all-reduce of this form")
        world, rank = dist.get_world_size(control), dist.get_rank(control)
        peers = [other for other in range(world) if other != rank]
        # its kernels write into the other GPUs' memory: without peer access the first call would fault
        if not all(torch.cuda.can_device_access_peer(rank, other) for other in peers):
            raise Unavailable("it needs peer access between all GPUs, which is not there")
        self._hidden = HIDDEN_SIZE
        self._workspace = self._comm.create_allreduce_fusion_workspace(
            backend="trtllm",
            world_size=world,
            rank=rank,
            max_token_num=max(max_bytes // (HIDDEN_SIZE * 2), 1),
            hidden_dim=HIDDEN_SIZE,
            dtype=torch.bfloat16,
            comm_backend=backend,
            group=control,
        )

    def takes(self, size: int) -> bool:
        return size % (self._hidden * 2) == 0

    def all_reduce(self, tensor: Any) -> Any:
        made = self._comm.allreduce_fusion(
            input=tensor.view(-1, self._hidden),
            workspace=self._workspace,
            pattern=self._comm.AllReduceFusionPattern.kAllReduce,
            launch_with_pdl=False,
        )
        return made.view(-1)

    def ran(self, size: int) -> str:
        return "FlashInfer trtllm"

    def close(self) -> None:
        self._workspace.destroy()
