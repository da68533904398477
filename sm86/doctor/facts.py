"""The facts of a rig: what was seen, and None for what was not. A fact is never guessed. Pure.

Memory and disks are in bytes, clocks in MHz, power in W, temperatures in degrees Celsius, time in seconds, rates in
GB/s (10^9 bytes). GPUs are in PCI bus order, as `nvidia-smi` and CUDA_DEVICE_ORDER=PCI_BUS_ID number them. An empty
tuple means "looked, found none"; None means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA = "sm86.rig"
VERSION = 1

LINKS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Kinds of link between two GPUs, nearest first, in `nvidia-smi topo -m`'s words (NV is followed by a number)."""


@dataclass(frozen=True, slots=True)
class Driver:
    """version: "580.126.09"; cuda: newest CUDA it serves, (major, minor); module: "open" or "proprietary", the kind of
    kernel module; loaded: a kernel module is there, whether NVML answers or not; nvml: "ok", "missing" (no library or
    no Python package), "no driver", "mismatch" (library and module of two versions), "hang", "error"; problem: NVML's
    own words; several: every version found, where libraries of more than one lie on the machine."""

    nvml: str | None = None
    version: str | None = None
    cuda: tuple[int, int] | None = None
    module: str | None = None
    loaded: bool | None = None
    problem: str | None = None
    several: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Who holds memory of a GPU. owner: "container NAME", "host" (no container), "dead container ID" (its container is
    gone, the process is not), "unseen" (the driver names a number that is no process here)."""

    pid: int
    memory: int | None = None
    title: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Pcie:
    """The link of a GPU as it is now, and the most that GPU and slot can do. Idle links train down: `generation` says
    something only where `busy` is true. replays: since the driver was loaded."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    slot_width: int | None = None
    replays: int | None = None
    busy: bool | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. index: its place in PCI bus order; capability: compute capability; throttle: why clocks are held down
    now, by NVML's names; ecc: on or off; ecc_errors: uncorrected since the driver was loaded; numa: node of its slot;
    cpus: CPUs near it, as "0-31,64-95"; problem: why its facts are missing (lost from the bus, another fault)."""

    index: int
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None
    serial: str | None = None
    capability: tuple[int, int] | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    memory_used: int | None = None
    bar1_total: int | None = None
    bar1_used: int | None = None
    ecc: bool | None = None
    ecc_errors: int | None = None
    sm_clock: int | None = None
    sm_clock_max: int | None = None
    mem_clock: int | None = None
    mem_clock_max: int | None = None
    power: float | None = None
    power_limit: float | None = None
    power_limit_default: float | None = None
    power_limit_max: float | None = None
    temperature: int | None = None
    temperature_slowdown: int | None = None
    throttle: tuple[str, ...] | None = None
    utilization: int | None = None
    persistence: bool | None = None
    display: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    pcie: Pcie = Pcie()
    numa: int | None = None
    cpus: str | None = None
    iommu_group: int | None = None
    bridges: tuple[str, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """links: a square of `LINKS` words, GPU by GPU, "X" on its diagonal; peers: a square of what the driver claims
    about peer access, "OK", or nvidia-smi's word for why not (CNS chipset, GNS GPU, TNS topology, DR disabled by the
    registry key, NS not supported); source: where the links come from."""

    links: tuple[tuple[str | None, ...], ...] | None = None
    peers: tuple[tuple[str | None, ...], ...] | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node: its number, CPUs as "0-31", memory in bytes."""

    node: int
    cpus: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Iommu:
    """active: the kernel translates for devices (there are IOMMU groups); passthrough: identity domains (iommu=pt);
    settings: what the kernel's command line says of it; acs_redirect: bridges above GPUs that send peer traffic up to
    the root complex (ACS request redirect on); empty: none; None: could not be read (needs root)."""

    active: bool | None = None
    passthrough: bool | None = None
    settings: tuple[str, ...] | None = None
    acs_redirect: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the GPUs. virtual: the hypervisor's name, "wsl", "container", or "" for bare metal; sockets:
    CPU packages; memory, swap and /dev/shm in bytes; uptime in seconds."""

    cpu: str | None = None
    cores: int | None = None
    sockets: int | None = None
    nodes: tuple[NumaNode, ...] | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    shm_leftovers: tuple[str, ...] | None = None
    uptime: float | None = None
    kernel: str | None = None
    system: str | None = None
    virtual: str | None = None
    nvidia_devices: int | None = None
    iommu: Iommu = Iommu()


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder the product needs. use: "images" or "weights"; exists: whether the folder itself is there (else the
    numbers are its nearest parent's); filesystem: "ext4", "nfs4", "9p"; rotational: a spinning disk; present: what is
    to lie there lies there already (the checkpoint, the image); device: number of its filesystem, the same for two
    uses of one disk."""

    use: str
    path: str | None = None
    exists: bool | None = None
    filesystem: str | None = None
    total: int | None = None
    free: int | None = None
    readable: bool | None = None
    rotational: bool | None = None
    present: bool | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Docker:
    """state: "ok", "missing", "not running", "no rights", "hang", "error"; versions as they print; runtimes: names;
    default_runtime; cgroup_driver: "systemd" or "cgroupfs"; cgroup_version: "1" or "2"; gpu_containers: running
    containers that were given GPUs, by name; lost_gpus: those of them in which nvidia-smi fails; restarting: containers
    with more than three restarts, as "NAME (35)"."""

    state: str | None = None
    problem: str | None = None
    version: str | None = None
    api: tuple[int, int] | None = None
    compose: str | None = None
    compose_problem: str | None = None
    runtimes: tuple[str, ...] | None = None
    default_runtime: str | None = None
    rootless: bool | None = None
    snap: bool | None = None
    cgroup_driver: str | None = None
    cgroup_version: str | None = None
    gpu_containers: tuple[str, ...] | None = None
    lost_gpus: tuple[str, ...] | None = None
    restarting: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The NVIDIA Container Toolkit: version of nvidia-ctk, programs on PATH, devices that CDI files describe
    ("nvidia.com/gpu=all"), cdi_driver: the driver version those files were written for; no_cgroups: its config
    switches cgroups off; compat_folders: CUDA forward compatibility libraries in the loader's path."""

    version: str | None = None
    programs: tuple[str, ...] | None = None
    cdi_devices: tuple[str, ...] | None = None
    cdi_driver: str | None = None
    no_cgroups: bool | None = None
    compat_folders: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port the server will publish: free, or held by `holder`."""

    number: int
    address: str | None = None
    free: bool | None = None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """One fault the driver wrote into the kernel's log since boot: its number, the GPU's bus id, seconds after boot."""

    number: int
    bus_id: str | None = None
    at: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class KernelLog:
    """What the kernel's log of this boot holds. readable: whether it could be read at all; a missing one is not clean.
    others: further lines that matter to GPUs (IO_PAGE_FAULT, AER, PCIe bus errors), shortened, the last few of
    `other_count`."""

    readable: bool | None = None
    source: str | None = None
    xids: tuple[Xid, ...] | None = None
    others: tuple[str, ...] | None = None
    other_count: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """One pair tried with CUDA. access: cuDeviceCanAccessPeer; state: "right" (every value checked), "wrong" (other
    values came than were sent), "refused", "hang", "error"; through: "peer" (directly) or "host" (the driver staged
    it through host memory, because there is no access); rate of large copies in GB/s; wrong: how many bytes differ."""

    source: int
    target: int
    access: bool | None = None
    state: str | None = None
    through: str | None = None
    rate: float | None = None
    wrong: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """PCIe of one GPU while pinned memory is copied: rates in GB/s, alone and while every GPU copies, and the link as
    the driver tells it meanwhile; replays: how many came during the load."""

    gpu: int
    to_gpu: float | None = None
    from_gpu: float | None = None
    to_gpu_together: float | None = None
    generation: int | None = None
    width: int | None = None
    replays: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class HostBandwidth:
    """Copy rate of host memory in GB/s, bytes read plus bytes written, best of `repeats`; threads that copied at once;
    size in bytes of each thread's buffer; node: NUMA node it ran on, None for all."""

    rate: float
    threads: int
    size: int
    repeats: int
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What was tried and not merely asked. by: what ran the CUDA work ("CUDA driver API", "image NAME"); cuda: "ok",
    "missing", "hang", "error"; problem: why it did not run or ended early."""

    by: str | None = None
    cuda: str | None = None
    problem: str | None = None
    copies: tuple[PeerCopy, ...] | None = None
    links: tuple[LinkLoad, ...] | None = None
    host: tuple[HostBandwidth, ...] | None = None


@dataclass(frozen=True, slots=True)
class Rig:
    """One machine. gpus: None where their number is not known, empty where there are none. probe: None: not run.
    missed: what could not be asked, and why, in words; taken: UTC time of the facts, RFC 3339; product: its version."""

    gpus: tuple[Gpu, ...] | None = None
    driver: Driver = Driver()
    topology: Topology = Topology()
    host: Host = Host()
    disks: tuple[Disk, ...] | None = None
    docker: Docker = Docker()
    toolkit: Toolkit = Toolkit()
    ports: tuple[Port, ...] | None = None
    kernel_log: KernelLog = KernelLog()
    probe: Probe | None = None
    missed: tuple[str, ...] = ()
    taken: str | None = None
    product: str | None = None
    mark: str = field(default="", kw_only=True)
    """Not empty where the facts were composed and not gathered; shown wherever they are judged."""
