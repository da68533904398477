"""Rigs for the tests: composed ones in rigs/, the topologies of real machines in topo/, and ways to change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sm86.doctor.facts import Gpu, Rig, Topology
from sm86.doctor.facts_json import from_text
from sm86.doctor.topo_text import from_topo_text

FOLDER = Path(__file__).parent
GOOD = from_text((FOLDER / "rigs/8x3090.json").read_text())
BAD = from_text((FOLDER / "rigs/8x3090_bad.json").read_text())
REAL = {path.name[:3]: path.read_text() for path in sorted((FOLDER / "topo").glob("*.txt"))}
"""Topology text by the first letters of its file: p01 two sockets with switches, p03 switches of two levels, p04 two
sockets, p06 six and two, p09 an NVLink cube."""


def gpus(change: Callable[[Gpu], dict[str, Any]], only: Iterable[int] | None = None, rig: Rig = GOOD) -> Rig:
    """The rig with each GPU (or `only` some) changed."""
    chosen = range(len(rig.gpus or ())) if only is None else set(only)
    return replace(
        rig, gpus=tuple(replace(gpu, **change(gpu)) if gpu.index in chosen else gpu for gpu in rig.gpus or ())
    )


def part(name: str, rig: Rig = GOOD, **changes: Any) -> Rig:
    """The rig with fields of one of its parts changed: part("docker", snap=True)."""
    return replace(rig, **{name: replace(getattr(rig, name), **changes)})


def first(count: int, rig: Rig = GOOD) -> Rig:
    """The rig with its first GPUs alone."""

    def cut(square):  # type: ignore[no-untyped-def]
        return None if square is None else tuple(row[:count] for row in square[:count])

    topology = Topology(cut(rig.topology.links), cut(rig.topology.peers), rig.topology.source)
    return replace(rig, gpus=(rig.gpus or ())[:count], topology=topology)


def with_links(name: str, rig: Rig = GOOD) -> Rig:
    """The good rig on the topology of a real machine."""
    real = from_topo_text(REAL[name])
    assert real.gpus is not None and rig.gpus is not None
    near = tuple(replace(gpu, numa=seen.numa, cpus=seen.cpus) for gpu, seen in zip(rig.gpus, real.gpus, strict=True))
    return replace(rig, gpus=near, topology=replace(rig.topology, links=real.topology.links))


def claimed(rig: Rig = GOOD, word: str = "OK") -> Rig:
    """The rig whose driver says `word` of every pair."""
    count = range(len(rig.gpus or ()))
    square = tuple(tuple("X" if one == other else word for other in count) for one in count)
    return replace(rig, topology=replace(rig.topology, peers=square))
