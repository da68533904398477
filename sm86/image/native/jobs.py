"""How many compilers may run at once. Pure."""

from __future__ import annotations

GIB_PER_JOB = 3.0
"""Peak resident memory of one nvcc process on the largest Marlin source, rounded up."""


def parallel_jobs(cores: int, memory_gib: float) -> int:
    """Jobs for a machine: one per core, as many as memory allows, at least one."""
    return max(1, min(cores, int(memory_gib // GIB_PER_JOB)))
