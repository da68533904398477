"""NCCL's all-reduce straight from its C library, on the caller's stream: the peer to measure against, without what
torch's process groups put around it. vLLM calls NCCL in the same way."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.backend.collectives.exchange import Exchange
from sm86.errors import CouldNotRun

if TYPE_CHECKING:
    import torch

_SUM = 0
_ID_BYTES = 128


class _UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * _ID_BYTES),)


def library_path() -> str:
    """libnccl of the Python package that torch brings, else the loader's."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for found in sorted(Path(folder).glob("nccl/lib/libnccl.so*")):
            return str(found)
    return "libnccl.so.2"


class Nccl:
    """One communicator over all ranks of an exchange. Collective."""

    def __init__(self, exchange: Exchange) -> None:
        try:
            self._library = ctypes.CDLL(library_path())
        except OSError as error:
            raise CouldNotRun(f"NCCL cannot be loaded: {error}", "install torch for CUDA, which brings it") from error
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._library.ncclAllReduce.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
        self._library.ncclCommInitRank.argtypes = [ctypes.POINTER(pointer), number, _UniqueId, number]
        self._library.ncclCommDestroy.argtypes = [pointer]
        identity = _UniqueId()
        if exchange.rank == 0:
            self._check(self._library.ncclGetUniqueId(ctypes.byref(identity)))
        shared = exchange.gather(list(identity.bytes) if exchange.rank == 0 else None)[0]
        identity.bytes[:] = shared
        self._communicator = ctypes.c_void_p()
        self._check(
            self._library.ncclCommInitRank(ctypes.byref(self._communicator), exchange.world, identity, exchange.rank)
        )

    @property
    def version(self) -> str:
        """Such as 2.28.9."""
        number = ctypes.c_int()
        self._check(self._library.ncclGetVersion(ctypes.byref(number)))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def all_reduce(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """The sum into `target`, asynchronous on the current stream; bf16 or fp32."""
        import torch

        kind = {torch.bfloat16: 9, torch.float32: 7}[source.dtype]
        stream = torch.cuda.current_stream().cuda_stream
        arguments = (source.data_ptr(), target.data_ptr(), source.numel(), kind, _SUM, self._communicator, stream)
        self._check(self._library.ncclAllReduce(*arguments))

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NCCL: {self._library.ncclGetErrorString(code).decode()}")

    def close(self) -> None:
        """Destroy the communicator."""
        self._check(self._library.ncclCommDestroy(self._communicator))


def transports(log: str) -> dict[str, int]:
    """How many channels NCCL says it built over each transport ("via SHM/direct" and so on). Pure."""
    found: dict[str, int] = {}
    for line in log.splitlines():
        _, _, rest = line.partition(" via ")
        if rest.strip():
            name: Any = rest.split("/")[0].split()[0]
            found[name] = found.get(name, 0) + 1
    return found
