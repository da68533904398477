"""One process per GPU for the programs in benchmarks/: started, listened to, and ended. No torch in the driver.

A rank is the same program with `--rank`; it says its result as one line of JSON behind MARK on stdout. Peer access is
off for NCCL, as on a rig without it, and NVLink multicast too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun

MARK = "@rank "
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
    """A running rank: its process, and what it has said so far."""

    process: subprocess.Popen[str]
    result: Any = None
    output: list[str] = field(default_factory=list)


class Group:
    """The processes of one run; a context manager that ends them all."""

    def __init__(
        self, program: str, gpus: Sequence[str], arguments: Sequence[str], environment: dict[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sm86-group-")  # 0700
        self.meet = Path(self._folder.name) / "meet"
        self.logs = [Path(self._folder.name) / f"nccl.{rank}.log" for rank in range(len(gpus))]
        self.ranks: list[Rank] = []
        for rank, gpu in enumerate(gpus):
            own = {
                **os.environ,
                **NO_PEER_ACCESS,
                "CUDA_VISIBLE_DEVICES": gpu,
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_FILE": str(self.logs[rank]),
                **(environment or {}),
            }
            argv = [sys.executable, program, "--rank", str(rank), "--world", str(len(gpus)), "--meet", str(self.meet)]
            process = subprocess.Popen(
                [*argv, *arguments], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            self.ranks.append(Rank(process))

    def wait(self, timeout_s: float, expected: Sequence[int] | None = None) -> dict[int, Any]:
        """Results by rank, of the `expected` ones (default: all); a rank that said nothing is not in it.

        Wakes stopped ranks after a second. Never waits longer than `timeout_s`.
        """
        import threading

        def listen(rank: Rank) -> None:
            assert rank.process.stdout is not None
            for line in rank.process.stdout:
                if line.startswith(MARK):
                    rank.result = json.loads(line[len(MARK) :])
                else:
                    rank.output.append(line.rstrip())

        for rank in self.ranks:
            threading.Thread(target=listen, args=(rank,), daemon=True).start()
        wanted = set(range(len(self.ranks)) if expected is None else expected)
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            done = [number for number in wanted if self.ranks[number].result is not None]
            if len(done) == len(wanted):
                break
            if all(rank.process.poll() is not None for rank in self.ranks):
                time.sleep(0.3)  # the last lines are still on their way
                break
            for rank in self.ranks:
                if is_stopped(rank.process.pid):
                    time.sleep(1.0)
                    os.kill(rank.process.pid, signal.SIGCONT)
            time.sleep(0.05)
        return {number: rank.result for number, rank in enumerate(self.ranks) if rank.result is not None}

    def words(self, rank: int, lines: int = 15) -> str:
        """The end of what a rank printed beside its result."""
        return "\n".join(self.ranks[rank].output[-lines:])

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
        self._folder.cleanup()


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def tell(result: Any) -> None:
    """A rank's result, to the driver."""
    print(MARK + json.dumps(result), flush=True)
