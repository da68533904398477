"""How fast this machine's memory copies: what carries every all-reduce where GPUs have no peer access."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time

from sm86.doctor.facts import HostBandwidth, NumaNode

SIZE = 64 << 20
"""Of each buffer: larger than the cache that a thread can call its own."""

REPEATS = 5
MOST_THREADS = 16
"""Enough to fill the memory channels of a socket; more of them only wait for each other."""


def host_memory(
    nodes: tuple[NumaNode, ...] | None, available: int | None, size: int = SIZE, repeats: int = REPEATS
) -> tuple[HostBandwidth, ...]:
    """The copy rate of each NUMA node with memory and CPUs, from its own CPUs; of the machine, where it has but one.

    Bytes read plus bytes written, the best of `repeats`. Takes about a second for each node, and at most a quarter of
    the `available` bytes. Empty where there is no room for even two buffers.
    """
    places = [(node.node, _cpus(node.cpus)) for node in nodes or () if node.cpus and node.memory != 0]
    allowed = os.sched_getaffinity(0)
    chosen: list[tuple[int | None, set[int]]] = [(node, cpus & allowed) for node, cpus in places if cpus & allowed]
    if len(chosen) < 2:
        chosen = [(None, allowed)]
    found = []
    for node, cpus in chosen:
        room = MOST_THREADS if available is None else available // 4 // (2 * size)
        threads = min(len(cpus), MOST_THREADS, room)
        if threads >= 1:
            rate = _best(sorted(cpus)[:threads], size, repeats)
            found.append(HostBandwidth(round(rate, 1), threads, size, repeats, node))
    return tuple(found)


def _best(cpus: list[int], size: int, repeats: int) -> float:
    """GB/s of all threads together, each on one CPU and with memory that it touched first, so that it lies near."""
    copy = ctypes.CDLL(None).memcpy
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    start = threading.Barrier(len(cpus))
    spans: list[list[tuple[float, float]]] = [[] for _ in range(repeats)]

    def work(cpu: int) -> None:
        with contextlib.suppress(OSError):
            # of the calling thread alone
            os.sched_setaffinity(threading.get_native_id(), {cpu})
        source, target = mmap.mmap(-1, size), mmap.mmap(-1, size)
        here, there = _address(source), _address(target)
        ctypes.memset(here, 1, size)
        ctypes.memset(there, 2, size)
        for number in range(repeats):
            start.wait()
            began = time.perf_counter()
            copy(there, here, size)
            spans[number].append((began, time.perf_counter()))

    threads = [threading.Thread(target=work, args=(cpu,), daemon=True) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(
        2 * size * len(cpus) / max(max(end for _, end in span) - min(begin for begin, _ in span), 1e-9) / 1e9
        for span in spans
    )


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _cpus(text: str | None) -> set[int]:
    """ "0-3,8" as numbers; empty for what is no such list."""
    found: set[int] = set()
    for part in (text or "").split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high.isdigit() or not high):
            found |= set(range(int(low), int(high or low) + 1))
    return found
