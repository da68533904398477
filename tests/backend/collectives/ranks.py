"""Groups of real processes on real segments, with the CPU build of the library: what each rank does and reports."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sm86.backend.collectives import binding, segment
from sm86.backend.collectives.communicator import HostAllReduce
from sm86.backend.collectives.exchange import SocketExchange
from sm86.backend.collectives.failure import CollectiveFailed, SetupFailed
from sm86.backend.collectives.plan import Plan

WAIT_S = 60.0


@dataclass(frozen=True)
class Call:
    algorithm: int
    bytes_: int
    kind: int = binding.BF16
    readers: int = 0


@dataclass(frozen=True)
class Script:
    """What a group does.

    die: rank -> call before which it ends itself ("in" a call is before it for everybody who waits); stop: rank -> call
    before which it stops itself for a second; vanish: ranks that never make a call; leave: ranks whose program simply
    ends, and then nobody makes a call, or with `call_on` the others make one;
    special: NaN words that look like "no data yet" among the values.
    """

    library: str
    calls: tuple[Call, ...]
    world: int = 2
    local_ranks: int = 1
    max_bytes: int = 4096
    timeout_s: float = 30.0
    seed: int = 1
    first_call: int = 0
    jitter: bool = False
    die: dict[int, int] = field(default_factory=dict)
    stop: dict[int, int] = field(default_factory=dict)
    vanish: tuple[int, ...] = ()
    leave: tuple[int, ...] = ()
    call_on: bool = False
    special: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    max_bytes_of: dict[int, int] = field(default_factory=dict)
    no_room: bool = False
    no_library_on: int = -1
    rounds: int = 1


def words_of(script: Script, index: int, rank: int) -> np.ndarray:
    """A message as uint32 words: bf16 pairs or fp32 values of many magnitudes."""
    call = script.calls[index % len(script.calls)]
    rng = np.random.default_rng([script.seed, index, rank])
    values = (rng.standard_normal(call.bytes_ // 2) * 2.0 ** rng.integers(-12, 4, call.bytes_ // 2)).astype(np.float32)
    # what the first rank and the last bring and cancel swallows most of what was added between them, and nothing of
    # what is added later: another order of the sum shows in bf16 as well, whose one rounding hides it elsewhere
    last = script.world * script.local_ranks - 1
    if rank in (0, last):
        values[::5] = 4096.0 if rank == 0 else -4096.0
    if call.kind == binding.F32:
        words = values[: call.bytes_ // 4].view(np.uint32).copy()
    else:
        bits = to_bf16(values)
        words = (bits[0::2] | (bits[1::2] << 16)).astype(np.uint32)
    if script.special:
        words[rng.integers(0, len(words))] = 0xFFFFFFFF
        words[rng.integers(0, len(words))] = 0x80008000
    return words


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> bf16 bits (uint32), to nearest even; NaN as the GPU gives it."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint32)


def expected(script: Script, index: int) -> np.ndarray:
    """The sum in the order of the ranks in fp32, rounded once; float values (NaN where any is)."""
    call = script.calls[index % len(script.calls)]
    total: np.ndarray | None = None
    for rank in range(script.world * script.local_ranks):
        part = unpacked(words_of(script, index, rank), call.kind)
        with np.errstate(invalid="ignore"):
            total = part if total is None else (total + part).astype(np.float32)
    assert total is not None
    return total if call.kind == binding.F32 else (to_bf16(total) << 16).astype(np.uint32).view(np.float32)


def unpacked(words: np.ndarray, kind: int) -> np.ndarray:
    if kind == binding.F32:
        return words.view(np.float32)
    halves = np.empty(2 * len(words), np.uint32)
    halves[0::2], halves[1::2] = words << 16, words & 0xFFFF0000
    return halves.view(np.float32)


def one_rank(script: Script, rank: int, folder: str, results: Any, go: Any) -> None:
    """A rank's whole life; puts (rank, what) into `results`: "ok", or the failure in words."""
    os.environ |= script.environment
    started = time.monotonic()
    wrong = 0
    try:
        exchange = SocketExchange(Path(folder) / "meet", rank, script.world, WAIT_S)

        def library() -> ctypes.CDLL:
            if rank == script.no_library_on:
                raise OSError("no such library")
            loaded = binding.declare(ctypes.CDLL(script.library))
            loaded.sm86_ar_settle.argtypes = [ctypes.c_void_p]
            loaded.sm86_ar_set_call.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
            return loaded

        if script.no_room:

            def full(*_: object) -> int:
                raise OSError(28, "No space left on device")

            segment.create = full  # type: ignore[assignment]
        reduce = HostAllReduce(
            exchange,
            0,
            script.max_bytes_of.get(rank, script.max_bytes),
            script.timeout_s,
            script.local_ranks,
            library=library,
        )
        reduce._library.sm86_ar_set_call(reduce._handle, script.first_call)
    except SetupFailed as failed:
        results.put((rank, {"setup": failed.reason}))
        return
    results.put((rank, "up"))
    if rank in script.vanish:
        go.wait(WAIT_S)
        return
    if script.leave:
        if rank not in script.leave:
            time.sleep(1.0)
            if script.call_on:
                with contextlib.suppress(CollectiveFailed):
                    exact(reduce, script, 0, script.calls[0])
            failure = reduce.failure
            reduce.close()
            seconds = time.monotonic() - started
            results.put((rank, {"wrong": 0} if failure is None else {"failed": str(failure), "seconds": seconds}))
        return
    try:
        for index in range(len(script.calls) * script.rounds):
            call = script.calls[index % len(script.calls)]
            if script.die.get(rank) == index:
                os.kill(os.getpid(), signal.SIGKILL)
            if script.stop.get(rank) == index:
                os.kill(os.getpid(), signal.SIGSTOP)
            if script.jitter and (index * 7 + rank * 5) % 11 == 0:
                time.sleep(0.002)
            wrong += not exact(reduce, script, index, call)
            reduce.check()
        reduce._library.sm86_ar_settle(reduce._handle)
        # a rank whose stores have all left says so before anybody closes
        exchange.gather(True)
        results.put((rank, {"wrong": wrong, "seconds": time.monotonic() - started}))
    except CollectiveFailed as failed:
        verdict = failed.verdict
        what = (verdict.code, verdict.rank, verdict.call, verdict.missing) if verdict else None
        report = {"failed": what, "words": str(failed), "wrong": wrong, "seconds": time.monotonic() - started}
        results.put((rank, report))
        go.wait(WAIT_S)
    finally:
        reduce.close()


def exact(reduce: HostAllReduce, script: Script, index: int, call: Call) -> bool:
    """Make the call; whether every row that was received has exactly the expected bits. Raises CollectiveFailed."""
    rows = [words_of(script, index, reduce.first_rank + k) for k in range(script.local_ranks)]
    source = aligned(len(rows) * call.bytes_)
    source[:] = np.concatenate(rows)
    target = aligned(len(rows) * call.bytes_)
    plan = Plan(call.algorithm, 256)
    reduce.launch(source.ctypes.data, target.ctypes.data, call.bytes_, call.kind, plan, call.readers, None)
    stopped, _ = reduce.status()
    if stopped:
        for _ in range(200):
            reduce.check()
            time.sleep(0.02)
    want = expected(script, index)
    for k in range(call.readers or script.local_ranks):
        got = unpacked(target[k * call.bytes_ // 4 : (k + 1) * call.bytes_ // 4].copy(), call.kind)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        if not same.all():
            return False
    return True


def aligned(size: int) -> np.ndarray:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.uint32)


def run(script: Script, folder: Path, signal_after: Any = None) -> dict[int, Any]:
    """The group's reports by rank; a rank that died has none."""
    context = multiprocessing.get_context("fork")
    results, go = context.Queue(), context.Event()
    processes = [
        context.Process(target=one_rank, args=(script, rank, str(folder), results, go), daemon=True)
        for rank in range(script.world)
    ]
    for process in processes:
        process.start()
    try:
        silent = set(script.die) | set(script.vanish) | set(script.leave)
        reports: dict[int, Any] = {}
        end = time.monotonic() + WAIT_S
        while len(reports) < script.world - len(silent) and time.monotonic() < end:
            for stopped in script.stop:
                if processes[stopped].is_alive() and _is_stopped(processes[stopped].pid):
                    time.sleep(1.0)
                    os.kill(processes[stopped].pid, signal.SIGCONT)  # type: ignore[arg-type]
            try:
                rank, report = results.get(timeout=0.2)
            except Exception:
                continue
            if report == "up":
                if signal_after is not None:
                    signal_after(rank, processes[rank].pid)
                continue
            reports[rank] = report
        go.set()
        return reports
    finally:
        go.set()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _is_stopped(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False
