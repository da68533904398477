"""What a rig is judged for: the numbers of an envelope and of the product, each with its source. Pure."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Want:
    """What the envelope needs of the machine.

    ranks: GPUs (tensor parallel); capability: what the published numbers ran on; utilization: the share of each GPU's
    memory that the engine claims at start; memory: bytes of a GPU that the published envelopes fit; driver: the
    validated version; port: what the server publishes.
    """

    envelope: str = "sm86-262k"
    ranks: int = 8
    capability: tuple[int, int] = (8, 6)
    utilization: float = 0.95
    driver: str = "580.126.09"
    port: int = 8000

    driver_floor: tuple[int, ...] = (580, 65, 6)
    """The first driver of CUDA 13.0 (NVIDIA's release notes). CUDA 13.0.1 runs on every driver of the 580 branch from
    there on: minor versions of one CUDA are compatible."""

    memory: int = 23 * GIB + GIB // 2
    """An RTX 3090 shows 24576 MiB; what other 24 GiB cards show is at most a few hundred MiB less."""

    weights: int = 153 * 10**9
    """The checkpoint: 142.44 GiB."""

    image: int = 40 * 10**9
    """What a first build of the rig's image takes (docs/build.md)."""

    ram: int = 57 * GIB
    """The smallest machine that is known to serve this model had 62 GB; weights are repacked in host memory."""

    shm: int = 1 * GIB
    """What the launcher asks for: NCCL's buffers and the message queues of eight ranks."""
