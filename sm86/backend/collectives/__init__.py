"""All-reduce of small messages through host memory, for GPUs without peer access (docs/collectives.md).

protocol.h, segment.h: what every thread reads and writes, for GPU and CPU alike; host_allreduce.cu: the kernels.
binding: the library; segment, link: the memory and how only the group's processes get it; communicator: the class to
use; plan, decision: pure choices; trial, startup: value check, timing and choice at a server's start.
"""

from __future__ import annotations

from typing import Any


def open_all_reduce(group: Any, device: Any, max_bytes: int) -> Any:
    """A tuned `HostAllReduce` for the processes of a CPU group of torch (gloo), one per GPU, outside vLLM.

    device: torch.device of this process's GPU. Collective: raises `failure.SetupFailed` on all ranks or none.
    """
    import torch

    from sm86.backend.collectives import trial
    from sm86.backend.collectives.communicator import HostAllReduce
    from sm86.backend.collectives.exchange import GroupExchange
    from sm86.backend.collectives.plan import MAX_BYTES

    index = device.index if device.index is not None else torch.cuda.current_device()
    most = max(1024, min(max_bytes, MAX_BYTES) // 256 * 256)
    reduce = HostAllReduce(GroupExchange(group), index, most, timeout_s=60.0)
    sizes = [size for size in (1024 << k for k in range(8)) if size <= most]
    trial.tune(reduce, sizes)
    return reduce
