"""What lies between the GPUs and the machine: PCIe links, BAR1, topology, NUMA, peer access, IOMMU, ACS. Pure."""

from __future__ import annotations

from sm86.doctor.facts import LinkLoad, Rig
from sm86.doctor.finding import Finding, fail, ok, unknown, warn
from sm86.doctor.groups import BRIDGE, NV, SOCKET, SWITCH, SYSTEM, groups, link, worst
from sm86.doctor.want import Want
from sm86.doctor.words import gib, gpus_of, spread

PROBE = "invoke doctor --probe"
GUIDE = "docs/doctor.md, Peer access"
FULL_BAR = 0.9
"""A BAR1 of at least this part of the card's memory counts as whole: cards round their sizes differently."""

LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.56}
"""GB/s of one lane by PCIe generation, after line coding; copies reach about four fifths of it."""


def slots(rig: Rig, want: Want) -> Finding | None:
    """What card and slot can do at most, which does not depend on load."""
    rule = "pcie-slots"
    if not rig.gpus:
        return None
    why = "without peer access every byte of an all-reduce crosses this link twice"
    known = [gpu for gpu in rig.gpus if gpu.pcie.max_width and gpu.pcie.max_generation]
    if len(known) < len(rig.gpus):
        return unknown(rule, "what the slots can do is not known", why, "run the doctor on the machine itself")
    told = spread(known, lambda gpu: (gpu.pcie.max_generation, _slot(gpu.pcie.max_width, gpu.pcie.slot_width)), _words)
    narrow = [gpu.index for gpu in known if _slot(gpu.pcie.max_width, gpu.pcie.slot_width) < 8]
    if narrow:
        return warn(
            rule, told, f"{why}; the slowest slot sets the pace", f"move {gpus_of(narrow)} to slots of 8 or 16 lanes"
        )
    if len({_slot(gpu.pcie.max_width, gpu.pcie.slot_width) for gpu in known}) > 1:
        return warn(rule, told, f"{why}; the slowest slot sets the pace", "fine if the board has no better slot")
    return ok(rule, told)


def _slot(card: int | None, slot: int | None) -> int:
    return min(width for width in (card, slot) if width)


def _words(key: tuple[int | None, int]) -> str:
    return f"generation {key[0]} x{key[1]}"


def links_under_load(rig: Rig, want: Want) -> Finding | None:
    """Generation and width while data flows. Idle links train down, so without load nothing is judged."""
    rule = "pcie-links"
    if not rig.gpus:
        return None
    why = "a link that came up narrow or slow halves every copy, and all ranks wait for it"
    mend = "reseat the card, replace the riser, set the slot's generation and width in the BIOS (no bifurcation)"
    loads = {load.gpu: load for load in (rig.probe.links if rig.probe else None) or ()}
    now = [
        (gpu, loads[gpu.index].generation, loads[gpu.index].width)
        if gpu.index in loads
        else (gpu, gpu.pcie.generation, gpu.pcie.width)
        for gpu in rig.gpus
        if gpu.index in loads or gpu.pcie.busy
    ]
    judged = [item for item in now if item[1] and item[2]]
    slow = [
        (gpu, generation, width)
        for gpu, generation, width in judged
        if (gpu.pcie.max_width and width and width < _slot(gpu.pcie.max_width, gpu.pcie.slot_width))
        or (gpu.pcie.max_generation and generation and generation < gpu.pcie.max_generation)
    ]
    if slow:
        gpu, generation, width = slow[0]
        told = (
            f"{gpus_of(item[0].index for item in slow)}: generation {generation} x{width} under load, card and slot "
            f"can do generation {gpu.pcie.max_generation} x{gpu.pcie.max_width}"
        )
        return fail(rule, told, why, mend)
    if len(judged) < len(rig.gpus):
        idle = [gpu for gpu in rig.gpus if gpu.pcie.width]
        seen = spread(idle, lambda gpu: (gpu.pcie.generation, gpu.pcie.width or 0), _words) if idle else "not known"
        return unknown(rule, f"not under load, so not judged (now {seen}; idle links train down)", why, PROBE)
    told = spread(rig.gpus, lambda gpu: next((item[1], item[2] or 0) for item in judged if item[0] is gpu), _words)
    weak = [load for load in loads.values() if _weak(load)]
    if weak:
        return warn(
            rule,
            f"{told} under load, but {gpus_of(load.gpu for load in weak)} "
            f"copied only {min(load.to_gpu or 0 for load in weak):.1f} GB/s",
            why,
            "see replays and bus faults; memory channels left empty and a slow CPU limit it, too",
        )
    return ok(rule, f"{told} under load{_rates(list(loads.values()))}")


def _weak(load: LinkLoad) -> bool:
    if not (load.to_gpu and load.generation and load.width):
        return False
    return load.to_gpu < 0.5 * LANE_GBS.get(load.generation, 0) * load.width


def _rates(loads: list[LinkLoad]) -> str:
    to, back = [x.to_gpu for x in loads if x.to_gpu], [x.from_gpu for x in loads if x.from_gpu]
    together = [load.to_gpu_together for load in loads if load.to_gpu_together]
    if not to or not back:
        return ""
    all_at_once = f"; all at once {sum(together):.1f} in sum" if len(together) == len(loads) > 1 else ""
    return f", {min(to):.1f} GB/s to and {min(back):.1f} from the slowest{all_at_once}"


def topology(rig: Rig, want: Want) -> Finding | None:
    """Which GPUs are near each other; crossing sockets costs every all-reduce."""
    rule = "topology"
    if not rig.gpus or len(rig.gpus) < 2:
        return None
    why = "an all-reduce goes at the pace of its farthest pair"
    everyone = range(len(rig.gpus))
    apart = worst(rig, everyone)
    if rig.topology.links is None and apart is None:
        return unknown(
            rule,
            "the links between the GPUs are not known",
            why,
            "`nvidia-smi topo -m > topo.txt`, then `invoke doctor --from topo.txt`",
        )
    kinds = [link(rig, one, other) for one in everyone for other in everyone if one < other]
    known = sorted({kind for kind in kinds if kind})
    parts = [f"links {', '.join(known)}" if known else "links not known"]
    for reach, name in ((NV, "NVLink"), (SWITCH, "switch"), (SOCKET, "socket")):
        found = groups(rig, reach)
        if 1 < len(found) < len(rig.gpus) or (reach == SOCKET and len(found) > 1):
            parts.append(f"by {name}: {' | '.join(gpus_of(group)[4:].strip() for group in found)}")
    told = "; ".join(parts)
    if None in kinds:
        return unknown(
            rule,
            f"{told}; {kinds.count(None)} of {len(kinds)} pairs are not known",
            why,
            "give the whole table of `nvidia-smi topo -m`",
        )
    if apart == SYSTEM:
        return warn(rule, told, f"{why}, here across the link between the sockets", "see placement")
    near = " (one host bridge)" if apart == BRIDGE else ""
    return ok(rule, told + near)


def numa(rig: Rig, want: Want) -> Finding | None:
    """Each GPU's NUMA node and the CPUs near it."""
    rule = "numa"
    if not rig.gpus:
        return None
    nodes = [gpu.numa for gpu in rig.gpus]
    why = "pinned buffers on the wrong node cross the link between sockets on every step"
    if all(node is None for node in nodes):
        if rig.host.nodes is not None and len(rig.host.nodes) == 1:
            return ok(rule, "one NUMA node")
        return unknown(rule, "the GPUs' NUMA nodes are not known", why, "run the doctor on the machine itself")
    if any(node is None or node < 0 for node in nodes) and len(rig.host.nodes or ()) != 1:
        return warn(
            rule,
            f"{gpus_of(gpu.index for gpu in rig.gpus if gpu.numa is None or gpu.numa < 0)} without a NUMA node",
            why,
            "update the BIOS, or set NUMA nodes per socket there; the kernel then spreads buffers as it likes",
        )
    told = spread(
        rig.gpus,
        lambda gpu: (gpu.numa, gpu.cpus),
        lambda key: f"node {key[0]}" + (f", CPUs {key[1]}" if key[1] else ""),
    )
    empty = [node.node for node in rig.host.nodes or () if node.memory == 0 and node.node in nodes]
    if empty:
        return warn(
            rule, f"{told}; node {empty[0]} has no memory of its own", why, "fill memory channels of both sockets"
        )
    return ok(rule, told)


def bar1(rig: Rig, want: Want) -> Finding | None:
    """BAR1 against the card's memory: small ones and peer access do not go together."""
    rule = "bar1"
    if not rig.gpus:
        return None
    why = "a patched driver reaches a peer through its BAR1: what is smaller than the memory hangs or gives wrong data"
    known = [gpu for gpu in rig.gpus if gpu.bar1_total and gpu.memory_total]
    claimed = _claims(rig)
    if len(known) < len(rig.gpus):
        return unknown(rule, "the size of BAR1 is not known", why, "run the doctor on the machine itself")
    told = spread(known, lambda gpu: gpu.bar1_total or 0, gib)
    small = [gpu for gpu in known if (gpu.bar1_total or 0) < FULL_BAR * (gpu.memory_total or 0)]
    nvlink = worst(rig, range(len(rig.gpus))) == NV
    if small and claimed and not nvlink:
        return warn(
            rule,
            f"{told} for {gib(small[0].memory_total or 0)} of memory, and the driver claims peer access",
            why,
            f"enable Resizable BAR and Above 4G Decoding in the BIOS, or give peer access up ({GUIDE})",
        )
    if small:
        return ok(rule, f"{told} (Resizable BAR off): enough without peer access")
    return ok(rule, f"{told}: the whole memory")


def _claims(rig: Rig) -> bool:
    return any(word == "OK" for row in rig.topology.peers or () for word in row)


def peers(rig: Rig, want: Want) -> Finding | None:
    """Peer access as the driver claims it. That data then moves rightly is another question: `peer_copies`."""
    rule = "peer-access"
    if not rig.gpus or len(rig.gpus) < 2:
        return None
    why = "with peer access an all-reduce need not pass through host memory, which is most of a decode step today"
    square = rig.topology.peers
    if square is None:
        return unknown(
            rule,
            "what the driver claims about peer access is not known",
            why,
            "`nvidia-smi topo -p2p r`, or the doctor on the machine itself",
        )
    words = [square[one][other] for one in range(len(square)) for other in range(len(square)) if one != other]
    yes = words.count("OK")
    if yes == len(words):
        return ok(rule, "claimed for every pair")
    reasons = sorted({REASONS.get(word or "", "not told why") for word in words if word != "OK"})
    if not yes:
        return ok(rule, f"none ({', '.join(reasons)}), as on the validated rig; what it would take: {GUIDE}")
    return warn(
        rule,
        f"claimed for {yes // 2} of {len(words) // 2} pairs ({', '.join(reasons)})",
        "NCCL then mixes two transports, and custom all-reduce stays off",
        f"NCCL_P2P_DISABLE=1 in .env makes all pairs alike; {GUIDE}",
    )


REASONS = {
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPU",
    "TNS": "not supported by the topology",
    "DR": "disabled by a registry key",
    "NS": "not supported",
    "U": "the driver does not say",
}


def peer_copies(rig: Rig, want: Want) -> Finding | None:
    """Peer access as tried: every value of the copies compared."""
    rule = "peer-copies"
    if not rig.gpus or len(rig.gpus) < 2:
        return None
    why = "peer access that is claimed and does not work hangs NCCL, or changes numbers without a word"
    copies = rig.probe.copies if rig.probe else None
    off = "set NCCL_P2P_DISABLE=1 in .env and keep custom all-reduce off"
    if not copies:
        if rig.probe is not None:
            return unknown(rule, f"not tried: {rig.probe.problem or 'the probe made no copies'}", why, PROBE)
        return unknown(rule, "not tried", why, PROBE) if _claims(rig) or rig.topology.peers is None else None
    pairs = [copy for copy in copies if copy.state == "wrong"]
    if pairs:
        first = pairs[0]
        return fail(
            rule,
            f"wrong data: GPU {first.source} to GPU {first.target}, {first.wrong} bytes differ "
            f"({len(pairs)} of {len(copies)} directions)",
            why,
            f"{off}; boot with iommu=pt, ACS off; then {GUIDE}",
        )
    pairs = [copy for copy in copies if copy.state == "hang"]
    if pairs:
        return fail(
            rule,
            f"a copy from GPU {pairs[0].source} to GPU {pairs[0].target} did not end",
            why,
            f"{off}; boot with iommu=pt; power the machine off and on before the next start; then {GUIDE}",
        )
    pairs = [copy for copy in copies if copy.state in ("refused", "error")]
    if pairs:
        return fail(
            rule,
            f"GPU {pairs[0].source} to GPU {pairs[0].target}: {pairs[0].problem or pairs[0].state}",
            why,
            f"see dmesg for Xid lines; {GUIDE}",
        )
    direct = [copy for copy in copies if copy.through == "peer"]
    rates = [copy.rate for copy in copies if copy.rate]
    speed = f", {min(rates):.1f} to {max(rates):.1f} GB/s" if rates else ""
    if not direct:
        return ok(rule, f"{len(copies)} directions, every value right; all through host memory (no peer access){speed}")
    through = "" if len(direct) == len(copies) else f", {len(copies) - len(direct)} of them through host memory"
    return ok(rule, f"{len(copies)} directions, every value right{through}{speed}")


def iommu(rig: Rig, want: Want) -> Finding | None:
    """Whether the kernel translates the cards' addresses."""
    rule, facts = "iommu", rig.host.iommu
    if not rig.gpus:
        return None
    why = "translation adds time to every small access, and lets peer writes vanish or hang"
    if rig.host.virtual and rig.host.virtual != "container":
        return unknown(
            rule,
            f"this is a virtual machine ({rig.host.virtual}): its host's IOMMU cannot be seen",
            why,
            "look on the host of the virtual machine; peer access between passed-through cards is rare",
        )
    if facts.active is None:
        return unknown(rule, "not known", why, "run the doctor on the machine itself")
    if not facts.active:
        return ok(rule, "off: no translation")
    if facts.passthrough:
        return ok(rule, "on, with identity domains (iommu=pt)")
    told = f"on, and it translates{f' ({chr(32).join(facts.settings)})' if facts.settings else ''}"
    mend = "boot with iommu=pt (or iommu=off where nothing else needs it)"
    if _claims(rig):
        return fail(rule, f"{told}, while the driver claims peer access", why, mend)
    return warn(rule, told, why, mend)


def acs(rig: Rig, want: Want) -> Finding | None:
    """ACS redirect on the bridges above the GPUs: it sends peer traffic up to the CPU."""
    rule, found = "acs", rig.host.iommu.acs_redirect
    if not rig.gpus or len(rig.gpus) < 2:
        return None
    why = "with request redirect on, peer traffic takes the way through the CPU, or is lost"
    if found is None:
        if not _claims(rig):
            return None
        return unknown(rule, "not known", why, "run the doctor as root: PCI config space is readable for root alone")
    if not found:
        return ok(rule, "no redirect on the bridges above the GPUs")
    told = f"request redirect is on for {len(found)} bridge{'s' if len(found) > 1 else ''} ({', '.join(found[:3])})"
    if not _claims(rig):
        return ok(rule, f"{told}; it does not matter without peer access")
    return warn(rule, told, why, "switch ACS off in the BIOS, or with setpci at boot; virtual machines need it on")
