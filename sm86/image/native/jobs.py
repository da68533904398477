"""How many compilers may run at once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

GIB_PER_JOB = 3.0
"""Peak resident memory of one nvcc process on the largest Marlin source, rounded up."""


def parallel_jobs(cores: int, memory_gib: float) -> int:
    """Jobs for a machine: one per core, as many as memory allows, at least one."""
    return max(1, min(cores, int(memory_gib // GIB_PER_JOB)))


def memory_gib(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> float:
    """The machine's memory in GiB, or the smaller limit of this process's control group."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # no such file, or "max" in it
    with contextlib.suppress(OSError, ValueError):
        machine = min(machine, int(limit.read_text()))
    return machine / 2**30
