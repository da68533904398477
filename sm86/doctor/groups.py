"""Which GPUs belong together: under one switch, at one host bridge, at one socket. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from sm86.doctor.facts import Rig

NV, SWITCH, BRIDGE, SOCKET, SYSTEM = range(5)
"""How far apart two GPUs are: NVLink; PCIe switches alone; one host bridge; one NUMA node; across sockets."""

LEVELS = ("NVLink", "a PCIe switch", "the host bridge", "host bridges of a socket", "the link between sockets")
"""What a pair at each level has between it."""

_LEVEL = {"PIX": SWITCH, "PXB": SWITCH, "PHB": BRIDGE, "NODE": SOCKET, "SYS": SYSTEM}


def link(rig: Rig, one: int, other: int) -> str | None:
    """The link of a pair in `nvidia-smi topo -m`'s words, the farther one where its rows differ; None: not known."""
    links = rig.topology.links
    if links is None:
        return None
    told = [word for word in (links[one][other], links[other][one]) if word]
    return max(told, key=lambda word: (_level(word), -_lanes(word)), default=None)


def level(rig: Rig, one: int, other: int) -> int | None:
    """How far apart two GPUs are, as NV..SYSTEM. Two NUMA nodes are SYSTEM even where the links are not known."""
    word = link(rig, one, other)
    if word is not None:
        return _level(word)
    gpus = rig.gpus or ()
    here, there = gpus[one].numa, gpus[other].numa
    return SYSTEM if here is not None and there is not None and here != there else None


def groups(rig: Rig, reach: int) -> tuple[tuple[int, ...], ...]:
    """GPUs that reach each other over links of at most `reach`, as groups in order of their first GPU."""
    count = len(rig.gpus or ())
    group = list(range(count))
    for one, other in combinations(range(count), 2):
        apart = level(rig, one, other)
        if apart is not None and apart <= reach:
            joined, left = sorted((group[one], group[other]))
            group = [joined if item == left else item for item in group]
    return tuple(tuple(at for at in range(count) if group[at] == first) for first in sorted(set(group)))


def worst(rig: Rig, chosen: Iterable[int]) -> int | None:
    """The farthest level among these GPUs; None where a pair's is not known; NV for one GPU alone."""
    levels = [level(rig, one, other) for one, other in combinations(chosen, 2)]
    return None if None in levels else max((item for item in levels if item is not None), default=NV)


def _level(word: str) -> int:
    return NV if word.startswith("NV") else _LEVEL[word]


def _lanes(word: str) -> int:
    return int(word[2:] or 0) if word.startswith("NV") else 0
