"""The shared memory of the machine, and what dead servers left in it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sm86.host.rig.sysfs import read

MAPS = 64 << 20
"""A worker maps some thousand files."""

_OURS = re.compile(r"(?:nccl-|psm_|vllm|sem\.mp-|torch_|VLLM).*")


def space(folder: Path) -> tuple[int | None, int | None]:
    """(bytes in all, bytes free); None where there is no shared memory."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None, None
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


def leftovers(folder: Path, root: Path) -> tuple[str, ...] | None:
    """Names that servers make there and that no process has mapped; None where other users' processes hide theirs."""
    try:
        names = sorted(name for name in os.listdir(folder) if _OURS.fullmatch(name))
    except OSError:
        return None
    if not names:
        return ()
    mapped: set[str] = set()
    try:
        # the first process serves nothing, and hides its maps even from root where it is no ordinary init
        numbers = [name for name in os.listdir(root / "proc") if name.isdigit() and name != "1"]
    except OSError:
        return None
    for number in numbers:
        process = root / "proc" / number
        text = read(process / "maps", MAPS)
        if text is None:
            if process.exists():
                return None
            continue
        mapped |= set(re.findall(r"/dev/shm/(\S+)", text))
    return tuple(name for name in names if name not in mapped)
