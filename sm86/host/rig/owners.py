"""Whose process a number is: a container's, a dead container's, the machine's own, or none that can be seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sm86.doctor.facts import Gpu, GpuProcess
from sm86.host.rig.sysfs import read

_CONTAINER = re.compile(r"(?:docker[-/]|libpod-|cri-containerd-|/)([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


def with_owners(gpus: tuple[Gpu, ...], root: Path, running: Mapping[str, str] | None) -> tuple[Gpu, ...]:
    """The GPUs, each process with title and owner. running: container id -> name; None: the engine was not asked."""
    return tuple(
        gpu if gpu.processes is None
        else replace(gpu, processes=tuple(_named(process, root, running) for process in gpu.processes))
        for gpu in gpus
    )  # fmt: skip


def _named(process: GpuProcess, root: Path, running: Mapping[str, str] | None) -> GpuProcess:
    folder = root / "proc" / str(process.pid)
    if not folder.is_dir():
        return replace(process, owner="unseen")
    words = (read(folder / "cmdline") or "").split("\0")
    title = " ".join(word for word in words if word) or read(folder / "comm")
    return replace(process, title=title[:200] if title else None, owner=_owner(folder, running))


def _owner(folder: Path, running: Mapping[str, str] | None) -> str | None:
    text = read(folder / "cgroup")
    if text is None:
        return None
    found = _CONTAINER.search(text)
    if found is None:
        return "host"
    known = (running or {}).get(found[1])
    if known:
        return f"container {known}"
    # an engine that was not asked, or another one (containerd, podman), may well know it
    return (
        f"dead container {found[1][:12]}" if running is not None and "docker" in text else f"container {found[1][:12]}"
    )
