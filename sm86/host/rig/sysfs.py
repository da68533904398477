"""What sysfs and procfs tell of the machine and its PCI bus. `root` is "/", or a folder that stands for it (tests)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import combinations, takewhile
from pathlib import Path

from sm86.doctor.facts import Host, Iommu, NumaNode

NVIDIA = "0x10de"
ACS_CAPABILITY = 0x000D
ACS_REDIRECT = 0x04 | 0x08
"""Request and completion redirect: bits of the ACS control register that send peer traffic to the root complex."""

SPEEDS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}
LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Card:
    """An NVIDIA GPU on the PCI bus. path: its bridges from the root bus down; root: the root bus ("pci0000:00")."""

    bus_id: str
    numa: int | None
    cpus: str | None
    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    slot_width: int | None
    iommu_group: int | None
    root: str
    bridges: tuple[str, ...]


def read(path: Path, most: int = LONGEST) -> str | None:
    """A file's text of at most `most` bytes, without its newline; None where it is not there, or not to be read."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except OSError:
        return None


def cards(root: Path) -> tuple[Card, ...] | None:
    """Every NVIDIA display or compute device, in bus order; None where there is no view of the bus."""
    folder = root / "sys/bus/pci/devices"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    return tuple(
        _card(folder / name)
        for name in names
        if read(folder / name / "vendor") == NVIDIA and (read(folder / name / "class") or "")[:4] == "0x03"
    )


def _card(device: Path) -> Card:
    real = Path(os.path.realpath(device))
    parts = [part for part in real.parts if re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}|[0-9a-f]{4}:[0-9a-f:.]+", part)]
    roots = [part for part in parts if part.startswith("pci")]
    bridges = tuple(part for part in parts[:-1] if not part.startswith("pci"))
    group = device / "iommu_group"
    node = _number(read(device / "numa_node"))
    return Card(
        bus_id=device.name,
        # the kernel writes -1 for "none"
        numa=node if node is not None and node >= 0 else None,
        cpus=read(device / "local_cpulist") or None,
        generation=_generation(read(device / "current_link_speed")),
        width=_lanes(read(device / "current_link_width")),
        max_generation=_generation(read(device / "max_link_speed")),
        max_width=_lanes(read(device / "max_link_width")),
        slot_width=_lanes(read(real.parent / "max_link_width")) if bridges else None,
        iommu_group=_number(os.path.basename(os.path.realpath(group))) if group.exists() else None,
        root=roots[-1] if roots else "",
        bridges=bridges,
    )


def links(found: tuple[Card, ...]) -> tuple[tuple[str | None, ...], ...] | None:
    """The links between cards from their places on the bus, where the driver's own words are not to be had."""
    if len(found) < 2 or not all(card.root for card in found):
        return None
    square: list[list[str | None]] = [["X"] * len(found) for _ in found]
    for (one, card), (other, far) in combinations(enumerate(found), 2):
        square[one][other] = square[other][one] = _link(card, far)
    return tuple(map(tuple, square))


def _link(one: Card, other: Card) -> str | None:
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one.bridges, other.bridges, strict=False))))
    if one.root == other.root and common > 0:
        # below the shared bridge one downstream port each is one switch; more are switches behind switches
        deeper = max(len(one.bridges), len(other.bridges)) - common
        return "PIX" if deeper <= 1 else "PXB"
    if one.root == other.root:
        return "PHB"
    if one.numa is None or other.numa is None:
        return None
    return "NODE" if one.numa == other.numa else "SYS"


def iommu(root: Path, found: tuple[Card, ...] | None) -> Iommu:
    """Whether the kernel translates for devices, and ACS redirect on the bridges above these cards."""
    words = (read(root / "proc/cmdline") or "").split()
    settings = tuple(word for word in words if re.match(r"(?:intel_|amd_)?iommu=|iommu\.|pcie_acs_override=", word))
    groups = root / "sys/kernel/iommu_groups"
    try:
        active = bool(os.listdir(groups))
    except OSError:
        return Iommu(None, None, settings, _redirecting(root, found))
    kinds = {read(groups / str(card.iommu_group) / "type") for card in found or () if card.iommu_group is not None} - {
        None
    }
    passthrough = (
        kinds == {"identity"} if kinds else any(word in ("iommu=pt", "iommu.passthrough=1") for word in settings)
    )
    return Iommu(active, passthrough if active else None, settings, _redirecting(root, found))


def _redirecting(root: Path, found: tuple[Card, ...] | None) -> tuple[str, ...] | None:
    bridges = sorted({bridge for card in found or () for bridge in card.bridges})
    if not bridges:
        return None
    redirecting = []
    for bridge in bridges:
        try:
            config = (root / "sys/bus/pci/devices" / bridge / "config").read_bytes()
        except OSError:
            return None
        if len(config) <= 256:
            # without root the kernel shows the first 64 bytes only
            return None
        if acs_control(config) & ACS_REDIRECT:
            redirecting.append(bridge)
    return tuple(redirecting)


def acs_control(config: bytes) -> int:
    """The ACS control register of a device's 4096 bytes of config space; 0 where it has no ACS."""
    at, seen = 0x100, set()
    while 0x100 <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
    return 0


def host(root: Path) -> Host:
    """CPU, memory, NUMA nodes, time since boot, kind of machine. /dev/shm and IOMMU are not filled in."""
    memory = _meminfo(root)
    cpuinfo = read(root / "proc/cpuinfo") or ""
    models = re.findall(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    packages = set(re.findall(r"^physical id\s*:\s*(\d+)$", cpuinfo, re.MULTILINE))
    count = len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE))
    kernel = read(root / "proc/sys/kernel/osrelease")
    up = (read(root / "proc/uptime") or "").split()
    return Host(
        cpu=models[0].strip() if models else None,
        cores=count or None,
        sockets=len(packages) or None,
        nodes=_nodes(root),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        swap_total=memory.get("SwapTotal"),
        swap_free=memory.get("SwapFree"),
        uptime=_float(up[0]) if up else None,
        kernel=kernel,
        system=_system(root),
        virtual=_virtual(root, cpuinfo, kernel or ""),
    )


def _meminfo(root: Path) -> dict[str, int]:
    found = re.findall(r"^(\w+):\s+(\d+) kB$", read(root / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(value) * 1024 for name, value in found}


def _nodes(root: Path) -> tuple[NumaNode, ...] | None:
    folder = root / "sys/devices/system/node"
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(r"node\d+", name)]
    except OSError:
        return None
    nodes = []
    for name in sorted(names, key=lambda name: int(name[4:])):
        total = re.search(r"MemTotal:\s+(\d+) kB", read(folder / name / "meminfo") or "")
        nodes.append(NumaNode(int(name[4:]), read(folder / name / "cpulist"), int(total[1]) * 1024 if total else None))
    return tuple(nodes)


def _system(root: Path) -> str | None:
    for place in ("etc/os-release", "usr/lib/os-release"):
        found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', read(root / place) or "", re.MULTILINE)
        if found:
            return found[1]
    return None


def _virtual(root: Path, cpuinfo: str, kernel: str) -> str | None:
    if not cpuinfo:
        return None
    if "microsoft" in kernel.lower():
        return "wsl"
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "container"
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is None or " hypervisor" not in flags[1]:
        return ""
    return read(root / "sys/hypervisor/type") or read(root / "sys/class/dmi/id/sys_vendor") or "unnamed hypervisor"


def _generation(text: str | None) -> int | None:
    return SPEEDS.get((text or "").split(" ")[0])


def _lanes(text: str | None) -> int | None:
    number = _number(text)
    # 0 and 255 are what the kernel writes where there is no link
    return number if number and number <= 32 else None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,9}", text) else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
