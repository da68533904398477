"""The probe: peer copies with every byte compared, PCIe links under load, host memory. What hangs is named and left."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sm86.doctor.facts import LinkLoad, PeerCopy, Probe, Rig
from sm86.errors import CouldNotRun
from sm86.host.docker import docker_program
from sm86.host.process import run
from sm86.host.rig.child import Ended, json_lines
from sm86.host.rig.host_memory import host_memory

CHILD = Path(__file__).with_name("probe_child.py")
SILENCE_S = 45.0
"""The first context on a GPU takes seconds, in a container more; a single step takes less than one."""

TOTAL_S = 420.0
ROOM = 1 << 30
"""The probe's buffers and its contexts on each GPU."""


@dataclass(slots=True)
class _Seen:
    """What the child told so far. Its numbers are those of CUDA; `number` turns them into the rig's."""

    number: dict[int, int] = field(default_factory=dict)
    cuda: str | None = None
    problem: str | None = None
    doing: dict[str, Any] = field(default_factory=dict)
    copies: list[PeerCopy] = field(default_factory=list)
    links: list[LinkLoad] = field(default_factory=list)
    ended: bool = False


def probe(
    rig: Rig,
    image: str | None = None,
    say: Callable[[str], None] = lambda words: None,
    argv: Sequence[str] | None = None,
    silence_s: float = SILENCE_S,
    total_s: float = TOTAL_S,
) -> Probe:
    """Try this machine. image: do the CUDA work in a container of it; argv: another program for that work (tests).

    Raises CouldNotRun where the GPUs are in use: the probe would disturb who uses them, and be disturbed.
    """
    if busy := [gpu for gpu in rig.gpus or () if gpu.memory_free is not None and gpu.memory_free < ROOM]:
        raise CouldNotRun(
            f"GPU {busy[0].index} has less than 1 GiB of free memory: something runs there",
            "stop it (invoke down), then probe; without --probe the doctor disturbs nobody",
        )
    say("host memory")
    memory = host_memory(rig.host.nodes, rig.host.memory_available)
    if not rig.gpus:
        return Probe(cuda=None, problem="there is no GPU to try", host=memory)
    name = f"sm86-probe-{os.getpid()}"
    command = tuple(argv) if argv else _command(image, name)
    seen = _Seen()
    try:
        for item in json_lines(command, silence_s, total_s, CHILD.read_bytes() if image and not argv else b""):
            if isinstance(item, Ended):
                _end(seen, item, silence_s)
            else:
                _take(seen, item, rig, say)
    finally:
        if image and not argv:
            with contextlib.suppress(CouldNotRun):
                run((docker_program() or "docker", "rm", "-f", name), 20)
    return Probe(
        by=f"image {image}" if image else "CUDA driver API",
        cuda=seen.cuda,
        problem=seen.problem,
        copies=tuple(seen.copies),
        links=tuple(seen.links),
        host=memory,
    )


def _command(image: str | None, name: str) -> tuple[str, ...]:
    if image is None:
        return (sys.executable, "-P", str(CHILD))
    docker = docker_program()
    if docker is None:
        raise CouldNotRun("there is no docker program to start the image with", "install it, or probe without --image")
    return container_argv(docker, image, name)


def container_argv(docker: str, image: str, name: str) -> tuple[str, ...]:
    """The program reads itself from standard input, so nothing of this machine needs to be mounted."""
    limits = ("--network", "none", "--ipc", "host", "--cap-drop", "ALL")
    python = ("--entrypoint", "python3", image, "-u", "-")
    return (
        docker,
        "run",
        "--rm",
        "--interactive",
        "--pull",
        "never",
        "--name",
        name,
        "--gpus",
        "all",
        *limits,
        *python,
    )


def _take(seen: _Seen, item: dict[str, Any], rig: Rig, say: Callable[[str], None]) -> None:
    if "cuda" in item:
        seen.cuda, seen.problem = str(item["cuda"]), item.get("words")
        by_bus = {_short(gpu.bus_id): gpu.index for gpu in rig.gpus or ()}
        buses = item.get("devices") or []
        seen.number = {at: by_bus.get(_short(bus), at) for at, bus in enumerate(buses)}
        if seen.cuda == "ok" and len(buses) < len(rig.gpus or ()):
            seen.problem = f"CUDA shows {len(buses)} of {len(rig.gpus or ())} GPUs (CUDA_VISIBLE_DEVICES?)"
    elif "doing" in item:
        seen.doing = item
        say(_words(seen, item))
    elif isinstance(item.get("copy"), dict):
        told = dict(item["copy"])
        source, target = (seen.number.get(told.pop(name), 0) for name in ("source", "target"))
        seen.copies.append(PeerCopy(source, target, **{key: told[key] for key in told.keys() & COPY_FIELDS}))
        seen.doing = {}
    elif isinstance(item.get("link"), dict):
        told = dict(item["link"])
        gpu = seen.number.get(told.pop("gpu"), 0)
        seen.links.append(LinkLoad(gpu=gpu, **{key: told[key] for key in told.keys() & LINK_FIELDS}))
        seen.doing = {}
    elif isinstance(item.get("together"), dict):
        rates = {seen.number.get(int(at), 0): rate for at, rate in item["together"].items()}
        seen.links = [replace(load, to_gpu_together=rates.get(load.gpu)) for load in seen.links]
        seen.doing = {}
    elif item.get("end"):
        seen.ended = True


COPY_FIELDS = {"access", "state", "through", "rate", "wrong", "problem"}
LINK_FIELDS = {"to_gpu", "from_gpu", "generation", "width", "replays", "problem"}


def _end(seen: _Seen, ended: Ended, silence_s: float) -> None:
    if seen.ended or (seen.cuda in ("missing", "error") and ended.how == "done"):
        return
    if ended.how == "silent":
        words = f"{_words(seen, seen.doing)} did not end within {silence_s:.0f} s"
        if seen.doing.get("doing") == "copy":
            source, target = (seen.number.get(at, at) for at in seen.doing["pair"])
            seen.copies.append(PeerCopy(source, target, state="hang", problem=words))
        seen.cuda = "hang"
    elif ended.how == "missing":
        seen.cuda, words = "missing", "the program that does the CUDA work could not be started"
    else:
        last = f" while it did: {_words(seen, seen.doing)}" if seen.doing else ""
        words = f"the CUDA work ended early with code {ended.code}{last}{f' ({ended.words})' if ended.words else ''}"
        seen.cuda = "error" if seen.cuda in (None, "ok") else seen.cuda
    seen.problem = f"{seen.problem}; {words}" if seen.problem else words


def _words(seen: _Seen, doing: dict[str, Any]) -> str:
    if doing.get("doing") == "copy":
        source, target = (seen.number.get(at, at) for at in doing["pair"])
        return f"copy from GPU {source} to GPU {target}"
    if doing.get("doing") == "link":
        return f"PCIe load of GPU {seen.number.get(doing['gpu'], doing['gpu'])}"
    return "PCIe load of all GPUs at once" if doing.get("doing") == "together" else "starting CUDA"


def _short(bus_id: str | None) -> str:
    text = (bus_id or "").lower()
    return text[4:] if len(text) == 16 else text
