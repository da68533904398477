"""One process per GPU for the programs in benchmarks/: started, listened to, and ended. No torch in the driver.

A rank is the same program with `--rank`; it says its result as one line of JSON behind MARK on stdout. Peer access is
off for NCCL, as on a rig without it, and NVLink multicast too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm86.backend.testing.budget import progress, watch
from sm86.errors import CouldNotRun

MARK, PART, SAY, READY = "@rank ", "@part ", "@say ", "@ready"
LIMIT_VARIABLE = "GPU_GROUP_LIMIT_S"
"""From the driver to its own ranks; nobody sets it, and no server reads it."""
ORPHANED = 3
"""Exit code of a rank whose driver has gone."""
STRAGGLERS_S = 20.0
"""Longer than a rank needs to notice a peer's end, shorter than its waits for one that lives."""
NO_PEER_ACCESS = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_IB_DISABLE": "1"}


def visible_gpus() -> list[str]:
    """GPUs to hand out one by one: CUDA_VISIBLE_DEVICES' entries, else those nvidia-smi lists. Raises CouldNotRun."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [entry.strip() for entry in named.split(",") if entry.strip()]
    try:
        argv = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CouldNotRun("no GPU: nvidia-smi does not answer", "run it on a machine with NVIDIA GPUs") from error
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def gpus_for(wanted: int | None, most: int = 8) -> list[str]:
    """The GPUs to use: `wanted` of them, else all of at most 8. Raises CouldNotRun when there are fewer than two."""
    found = visible_gpus()
    count = wanted if wanted is not None else min(len(found), most)
    if count < 2 or count > len(found):
        raise CouldNotRun(
            f"{count if wanted is not None else len(found)} GPUs for an all-reduce, {len(found)} are visible",
            "run it where two GPUs or more are visible, and ask for no more than that (--gpus)",
        )
    return found[:count]


@dataclass(slots=True)
class Rank:
    """A running rank: its process, and what it has said so far. result: the last of all it told; part: the last of what
    it told on the way there; closed: its output has ended."""

    process: subprocess.Popen[str]
    result: Any = None
    part: Any = None
    output: list[str] = field(default_factory=list)
    closed: bool = False


class Group:
    """The processes of one run; a context manager that ends them all.

    limit_s: seconds after which each rank prints its stacks and ends by itself. on_part: called with what a rank tells
    on the way (from the thread that listens to it).
    """

    def __init__(
        self,
        program: str,
        gpus: Sequence[str],
        arguments: Sequence[str],
        environment: dict[str, str] | None = None,
        limit_s: float | None = None,
        on_part: Callable[[int, Any], None] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sm86-group-")  # 0700
        self.meet = Path(self._folder.name) / "meet"
        self.logs = [Path(self._folder.name) / f"nccl.{rank}.log" for rank in range(len(gpus))]
        self.ranks: list[Rank] = []
        self.timed_out = False
        self._on_part = on_part
        limit = {} if limit_s is None else {LIMIT_VARIABLE: f"{limit_s:.1f}"}
        try:
            for rank, gpu in enumerate(gpus):
                own = {
                    **os.environ,
                    **NO_PEER_ACCESS,
                    **limit,
                    "CUDA_VISIBLE_DEVICES": gpu,
                    "NCCL_DEBUG": "INFO",
                    "NCCL_DEBUG_FILE": str(self.logs[rank]),
                    "PYTHONUNBUFFERED": "1",
                    **(environment or {}),
                }
                argv = [sys.executable, program, "--rank", str(rank), "--world", str(len(gpus))]
                process = subprocess.Popen(
                    [*argv, "--meet", str(self.meet), *arguments],
                    env=own,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                )
                self.ranks.append(Rank(process))
                threading.Thread(target=self._listen, args=(rank, self.ranks[-1]), daemon=True).start()
        except BaseException:
            self.__exit__()
            raise

    def _listen(self, number: int, rank: Rank) -> None:
        assert rank.process.stdout is not None
        for line in rank.process.stdout:
            mark = next((mark for mark in (MARK, PART, SAY) if line.startswith(mark)), None)
            try:
                told = json.loads(line[len(mark) :]) if mark else None
            except ValueError:
                mark = None  # a rank that ended in the middle of a line
            if mark == MARK:
                rank.result = told
            elif mark == PART:
                rank.part = told
                if self._on_part is not None:
                    self._on_part(number, told)
            elif mark == SAY:
                progress(f"rank {number}: {told}")
            else:
                rank.output.append(line.rstrip())
        rank.closed = True

    def wait(self, timeout_s: float, expected: Sequence[int] | None = None) -> dict[int, Any]:
        """Results by rank, of the `expected` ones (default: all); a rank that said nothing is not in it.

        One of them that has ended without a word leaves the others STRAGGLERS_S more: they may wait for it in vain.
        `timed_out` tells whether ranks were still at work; where each of them was stands in its words then.
        A stopped rank is woken up after a second.
        """
        wanted = set(range(len(self.ranks)) if expected is None else expected)
        end = time.monotonic() + timeout_s
        while True:
            silent = [self.ranks[number] for number in wanted if self.ranks[number].result is None]
            gone = [rank for rank in silent if rank.closed and rank.process.poll() is not None]
            if len(gone) == len(silent):
                break  # none is silent, or all that are have ended
            if gone:
                end = min(end, time.monotonic() + STRAGGLERS_S)
            if time.monotonic() >= end:
                self.timed_out = True
                self._ask_where([rank for rank in silent if rank not in gone])
                break
            for rank in self.ranks:
                if is_stopped(rank.process.pid):
                    time.sleep(1.0)
                    os.kill(rank.process.pid, signal.SIGCONT)
            time.sleep(0.05)
        return {number: rank.result for number, rank in enumerate(self.ranks) if rank.result is not None}

    def _ask_where(self, ranks: Sequence[Rank]) -> None:
        """Have ranks print their threads' stacks, those that have come far enough to know how."""
        for rank in ranks:
            if any(line.startswith(READY) for line in rank.output):
                rank.process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)

    def words(self, rank: int, lines: int = 15) -> str:
        """The end of what a rank printed beside its result."""
        said = [line for line in self.ranks[rank].output if not line.startswith(READY)]
        code = self.ranks[rank].process.poll()
        return "\n".join([*said[-lines:], *([f"(ended with code {code})"] if code else [])])

    def kill(self) -> None:
        """End every rank now."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for rank in self.ranks:
            rank.process.wait()
            if rank.process.stdin is not None:
                rank.process.stdin.close()
        self._folder.cleanup()


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def begin_rank() -> None:
    """First of all in a rank: it prints its threads' stacks when asked and at its limit, and ends with its driver."""
    faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=True)
    print(READY, flush=True)
    limit = os.environ.get(LIMIT_VARIABLE)
    if limit is not None:
        watch(float(limit))

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):
                pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True, name="driver").start()


def tell(result: Any) -> None:
    """A rank's result, to the driver."""
    print(MARK + json.dumps(result), flush=True)


def tell_part(result: Any) -> None:
    """What a rank has so far, to the driver."""
    print(PART + json.dumps(result), flush=True)


def say(words: str) -> None:
    """What a rank is doing, to whoever watches the driver."""
    print(SAY + json.dumps(words), flush=True)
