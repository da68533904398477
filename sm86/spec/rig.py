"""A rig profile: so many GPUs of one kind, for planning without the machine. What a real machine holds, doctor says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RigProfile:
    """memory_mib: as the driver counts it (`nvidia-smi`); usable_mib: what CUDA reports as its total, a bit less;
    usable_estimated: no report of it was found; used_mib: held by others before the server starts (a desktop);
    capability: compute capability; source: where the numbers come from."""

    name: str
    title: str
    gpu: str
    count: int
    memory_mib: int
    usable_mib: int
    usable_estimated: bool
    used_mib: int
    multiprocessors: int
    capability: tuple[int, int]
    source: str
