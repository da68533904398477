"""The GPUs as the driver's NVML tells them, asked in a process of its own.

A driver that hangs must not take the launcher along: the process that asks can be left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json
from sm86.launch.checks import Gpu

TIMEOUT_S = 30.0
"""The driver may have to start eight GPUs first when persistence mode is off, which takes some seconds."""

QUERY = Path(__file__).with_name("nvml_query.py")


@dataclass(frozen=True, slots=True)
class Rig:
    """The driver's version and its GPUs in PCI bus order."""

    driver: str
    gpus: tuple[Gpu, ...]


def ask(timeout_s: float = TIMEOUT_S, command: tuple[str, ...] | None = None) -> Rig:
    """Raises CouldNotRun: no nvidia-ml-py, no driver, an answer that does not come."""
    argv = command or (sys.executable, "-P", str(QUERY))
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        out, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # no waiting for its end: stuck inside the driver it cannot even be killed
        child.kill()
        raise CouldNotRun(
            f"the NVIDIA driver does not answer within {timeout_s:.0f} s",
            "see dmesg for Xid errors; a hung driver needs a reset of the GPUs or a reboot",
        ) from None
    try:
        answer = parse_json(out)
    except ValueError:
        raise CouldNotRun(
            "the question to the NVIDIA driver ended without an answer", "see whether nvidia-smi works here"
        ) from None
    if "problem" in answer:
        raise CouldNotRun(answer["problem"], answer["mend"])
    gpus = (Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in answer["gpus"])
    return Rig(answer["driver"], tuple(gpus))


def shm_bytes(path: str = "/dev/shm") -> int | None:
    """Size of the shared-memory file system; None where there is none."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks
