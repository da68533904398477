"""Which GPUs, in which order, and how the ranks are split, from the topology. Pure.

Two facts decide. Every rank of a tensor parallel group takes part in every all-reduce (87 for each token of this
model), so the group's farthest pair sets its pace; pipeline stages pass one small message. And without peer access two
GPUs meet in host memory whatever switch they share, so only the socket counts then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

from sm86.doctor.facts import Gpu, Rig
from sm86.doctor.groups import BRIDGE, LEVELS, NV, SOCKET, SWITCH, SYSTEM, groups, level, worst
from sm86.doctor.words import gpus_of

SETTING = "SM86_GPUS"
MOST_CHOICES = 20_000
"""Ways to choose GPUs that are all looked at; beyond (more than 16 GPUs), whole sockets are taken in order."""

NOTHING, FOR_SOCKET, FOR_SWITCH, OPEN = "nothing", "socket", "switch", "unknown"


@dataclass(frozen=True, slots=True)
class Placement:
    """order: GPU numbers as ranks take them; groups: the tensor parallel groups, in pipeline order; gain: what the
    split avoids ("socket", "switch"), "nothing", or "unknown"; reason: in words; setting: the line for `.env`, None
    where the UUIDs are not known; left_out: GPUs that are not used, with the reason."""

    order: tuple[int, ...]
    uuids: tuple[str, ...] | None
    tensor_parallel: int
    pipeline_parallel: int
    groups: tuple[tuple[int, ...], ...]
    gain: str
    reason: str
    setting: str | None
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Split:
    gain: str
    groups: tuple[tuple[int, ...], ...]
    reason: str
    notes: tuple[str, ...] = ()


def place(rig: Rig, ranks: int) -> Placement | None:
    """The placement of `ranks` ranks; None where there are fewer GPUs that can take one."""
    left_out = dict(_unfit(rig.gpus or ()))
    fit = [gpu.index for gpu in rig.gpus or () if gpu.index not in left_out]
    if ranks < 1 or len(fit) < ranks:
        return None
    chosen = _choose(rig, fit, ranks)
    left_out |= {index: "not needed" for index in fit if index not in chosen}
    split = _decide(rig, chosen)
    order = tuple(index for group in split.groups for index in group)
    uuids = _uuids(rig, order)
    notes = split.notes
    if order == tuple(range(len(rig.gpus or ()))):
        notes += (f"These are all GPUs in bus order: the same holds without {SETTING}, so nothing needs to be set.",)
    elif uuids is None:
        notes += ("The UUIDs are not known from these facts: run the doctor on the machine itself.",)
    return Placement(
        order,
        uuids,
        len(split.groups[0]),
        len(split.groups),
        split.groups,
        split.gain,
        split.reason,
        f"{SETTING}={','.join(uuids)}" if uuids else None,
        notes,
        tuple(sorted(left_out.items())),
    )


def _unfit(gpus: tuple[Gpu, ...]) -> Iterator[tuple[int, str]]:
    sizes = [gpu.memory_total for gpu in gpus if gpu.memory_total]
    usual = max(set(sizes), key=sizes.count) if sizes else None
    for gpu in gpus:
        if gpu.problem:
            yield gpu.index, gpu.problem
        elif gpu.capability is not None and gpu.capability[0] != 8:
            yield gpu.index, f"compute capability {gpu.capability[0]}.{gpu.capability[1]}"
        elif usual and gpu.memory_total and gpu.memory_total < 0.9 * usual:
            yield gpu.index, "less memory than the others"


def _choose(rig: Rig, fit: list[int], ranks: int) -> tuple[int, ...]:
    if len(fit) == ranks:
        return tuple(fit)
    if comb(len(fit), ranks) > MOST_CHOICES:
        by_socket = sorted(groups(rig, SOCKET), key=lambda group: (-len(group), group))
        ordered = [index for group in by_socket for index in group if index in fit]
        return tuple(sorted(ordered[:ranks]))
    socket = {index: at for at, group in enumerate(groups(rig, SOCKET)) for index in group}

    def cost(chosen: tuple[int, ...]) -> tuple[int, tuple[int, int], tuple[int, ...]]:
        sizes = [sum(1 for index in chosen if socket[index] == at) for at in set(socket.values())]
        return (0 if max(sizes) == ranks else 1 if _halve(sizes) else 2), _cost(rig, chosen), chosen

    return min(combinations(fit, ranks), key=cost)


def _halve(sizes: list[int]) -> bool:
    """Whether some of these sockets hold just half of all: 4 + 4 is better than 5 + 3, though more pairs are apart."""
    sums = {0}
    for size in sizes:
        sums |= {size + known for known in sums}
    return sum(sizes) % 2 == 0 and sum(sizes) // 2 in sums


def _cost(rig: Rig, chosen: tuple[int, ...]) -> tuple[int, int]:
    """Pairs across sockets first, then how far apart all pairs are; a pair that is not known counts as far."""
    levels = [SYSTEM if apart is None else apart for apart in (level(rig, *pair) for pair in combinations(chosen, 2))]
    return levels.count(SYSTEM), sum(levels)


def _halves(rig: Rig, chosen: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """The best two groups of half the ranks each; None where they cannot be halved, or are too many to look at."""
    half = len(chosen) // 2
    if len(chosen) < 4 or len(chosen) % 2 or comb(len(chosen) - 1, half - 1) > MOST_CHOICES:
        return None

    def rest(first: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(index for index in chosen if index not in first)

    def cost(first: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        one, other = _cost(rig, first), _cost(rig, rest(first))
        return one[0] + other[0], one[1] + other[1], first

    first = min(((chosen[0], *more) for more in combinations(chosen[1:], half - 1)), key=cost)
    return first, rest(first)


def _decide(rig: Rig, chosen: tuple[int, ...]) -> _Split:
    whole = worst(rig, chosen)
    if len(chosen) == 1:
        return _Split(NOTHING, (chosen,), "One GPU: there is no other to exchange with.")
    if whole is None:
        reason = (
            f"The links between {gpus_of(chosen)} are not all known, so bus order it is. "
            "`nvidia-smi topo -m`, or the doctor on the machine itself, would tell."
        )
        return _Split(OPEN, (chosen,), reason)
    halves = _halves(rig, chosen)
    apart = max(worst(rig, group) or NV for group in halves) if halves else whole
    if whole == SYSTEM:
        return _across_sockets(rig, chosen, halves, apart)
    if halves and apart <= SWITCH < whole:
        return _across_switches(rig, chosen, halves, whole, apart)
    near = {NV: "linked by NVLink", SWITCH: "under PCIe switches alone", BRIDGE: "at one host bridge"}
    reason = (
        f"TP{len(chosen)}: {gpus_of(chosen)} are {near.get(whole, 'at one socket')}. "
        "Nothing can be gained by their order: NCCL finds its own ring, and no split keeps more of it near."
    )
    return _Split(NOTHING, (chosen,), reason)


def _across_sockets(
    rig: Rig, chosen: tuple[int, ...], halves: tuple[tuple[int, ...], ...] | None, apart: int
) -> _Split:
    ranks = len(chosen)
    if halves and apart < SYSTEM:
        reason = (
            f"TP{ranks // 2} x PP2, one tensor parallel group for each socket ({_named(halves)}): in TP{ranks} every "
            "all-reduce crosses the link between the sockets, here only the message from one stage to the next does."
        )
        return _Split(FOR_SOCKET, halves, reason, (_published(ranks), *_inside(rig, halves, apart)))
    sizes = " + ".join(str(len(here)) for group in groups(rig, SOCKET) if (here := set(group) & set(chosen)))
    reason = (
        f"TP{ranks}: the GPUs stand {sizes} to the sockets, so two groups of {ranks // 2} that stay within sockets "
        "cannot be made. Smaller groups could, but each halving doubles what a GPU reads for a layer, and one sequence "
        "passes the stages one after another. Nothing is gained by the order; moving cards to other slots would gain."
    )
    return _Split(NOTHING, (chosen,), reason)


def _across_switches(
    rig: Rig, chosen: tuple[int, ...], halves: tuple[tuple[int, ...], ...], whole: int, apart: int
) -> _Split:
    ranks, access = len(chosen), _peer_access(rig, chosen)
    split, kind = f"TP{ranks // 2} x PP2", "NVLink island" if apart == NV else "switch"
    if access is False and apart != NV:
        reason = (
            f"TP{ranks}: {_named(halves)} share a switch each, but without peer access neighbours on a switch meet in "
            "host memory like all others. Nothing can be gained by the order or by a split."
        )
        note = f"With peer access, {split} over these groups would keep all-reduces below the switches."
        return _Split(NOTHING, (chosen,), reason, (note,))
    reason = (
        f"{split}, one tensor parallel group for each {kind} ({_named(halves)}): "
        f"in TP{ranks} every all-reduce crosses {LEVELS[whole]}."
    )
    hinge = (
        "This hinges on peer access, which is not known here: without it (the usual case on GeForce cards) neighbours "
        f"on a switch meet in host memory, nothing is gained, and it stays TP{ranks}."
    )
    return _Split(FOR_SWITCH, halves, reason, (_published(ranks), *(() if access or apart == NV else (hinge,))))


def _published(ranks: int) -> str:
    return (
        f"The envelopes are TP{ranks}, and so is every published number: they serve as they are on these GPUs. The "
        f"split is vLLM's --tensor-parallel-size {ranks // 2} --pipeline-parallel-size 2, to be measured before it is "
        "believed: one sequence alone passes both stages one after the other."
    )


def _inside(rig: Rig, halves: tuple[tuple[int, ...], ...], apart: int) -> tuple[str, ...]:
    inner = [len(group) for group in groups(rig, SWITCH)]
    if apart <= SWITCH or max(inner) == 1:
        return ()
    return (
        f"Within each group GPUs still meet across {LEVELS[apart]}: the switches hold {', '.join(map(str, inner))} "
        f"GPUs, fewer than a group of {len(halves[0])} needs.",
    )


def _peer_access(rig: Rig, chosen: tuple[int, ...]) -> bool | None:
    """Whether all of them reach each other directly: tried where it was tried, else as the driver claims."""
    copies = (rig.probe.copies if rig.probe else None) or ()
    tried = [copy for copy in copies if {copy.source, copy.target} <= set(chosen)]
    if tried:
        return all(copy.state == "right" and copy.through == "peer" for copy in tried)
    peers = rig.topology.peers
    if peers is None:
        return None
    told = [peers[one][other] for one in chosen for other in chosen if one != other]
    return None if None in told else all(word == "OK" for word in told)


def _named(halves: tuple[tuple[int, ...], ...]) -> str:
    return " and ".join(gpus_of(group) for group in halves)


def _uuids(rig: Rig, order: tuple[int, ...]) -> tuple[str, ...] | None:
    found = tuple((rig.gpus or ())[index].uuid for index in order)
    return tuple(uuid for uuid in found if uuid) if all(found) else None
