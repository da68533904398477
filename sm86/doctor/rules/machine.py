"""The machine around the GPUs: memory, /dev/shm, disks, ports, time since boot, what kind of machine it is. Pure."""

from __future__ import annotations

from sm86.doctor.facts import Disk, Rig
from sm86.doctor.finding import Finding, fail, ok, unknown, warn
from sm86.doctor.want import Want
from sm86.doctor.words import gib

HERE = "run the doctor on the machine itself"
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs", "virtiofs", "drvfs"}
)
RESERVE = 20 * 10**9
"""Room that a disk keeps beside what is written to it: logs, caches of compiled kernels, Docker's own."""


def ram(rig: Rig, want: Want) -> Finding:
    """Host memory, installed and free."""
    rule, host = "ram", rig.host
    why = "weights are repacked in host memory while they load; the kernel ends the server where it runs out (exit 137)"
    if host.memory_total is None:
        return unknown(rule, "not known", why, HERE)
    told = gib(host.memory_total)
    free = "" if host.memory_available is None else f", {gib(host.memory_available)} available"
    if rig.kernel_log.oom_kills:
        free += f", {rig.kernel_log.oom_kills} processes were ended for want of memory since boot"
    if rig.gpus == ():
        return ok(rule, told + free)
    if host.memory_total < want.ram // 2:
        return fail(rule, told + free, why, "add memory: the smallest machine known to serve this model had 62 GB")
    if host.memory_total < want.ram:
        mend = "have swap, and watch the first boot; the smallest machine known to serve this model had 62 GB"
        return warn(rule, told + free, why, mend)
    if host.memory_available is not None and host.memory_available < want.ram // 2:
        return warn(rule, told + free, why, "close what uses it before the server starts")
    if rig.kernel_log.oom_kills:
        return warn(
            rule,
            told + free,
            why,
            "dmesg names the victims, and whether a container's own limit was the reason; close what took it",
        )
    return ok(rule, told + free)


def swap(rig: Rig, want: Want) -> Finding | None:
    """Swap softens a peak while loading; much of it in use says that memory is short."""
    rule, host = "swap", rig.host
    if host.swap_total is None or rig.gpus == ():
        return None
    used = host.swap_total - (host.swap_free if host.swap_free is not None else host.swap_total)
    if used > host.swap_total // 2 and used > 2 << 30:
        why = "pages of a server that lie in swap stall all ranks"
        return warn(
            rule, f"{gib(used)} of {gib(host.swap_total)} in use", why, "find what is too large (top, by memory)"
        )
    if not host.swap_total and (host.memory_total or 0) < want.ram:
        why = "a peak of memory during loading ends the server at once"
        return warn(rule, "none", why, "add a swap file of 32 GB for the loading peak")
    return ok(rule, gib(host.swap_total) if host.swap_total else "none")


def shm(rig: Rig, want: Want) -> Finding | None:
    """The machine's /dev/shm, which the services share (ipc: host)."""
    rule, host = "shm", rig.host
    if rig.gpus == ():
        return None
    why = "without peer access the ranks exchange everything through /dev/shm"
    if host.shm_total is None:
        return unknown(rule, "not known", why, HERE)
    told = f"{gib(host.shm_total)}{f', {gib(host.shm_free)} free' if host.shm_free is not None else ''}"
    if host.shm_total < want.shm or (host.shm_free is not None and host.shm_free < want.shm):
        left = f"; leftovers: {', '.join(host.shm_leftovers[:4])}" if host.shm_leftovers else ""
        return fail(
            rule,
            told + left,
            why,
            "while nothing serves: remove /dev/shm/nccl-* and psm_*; or sudo mount -o remount,size=16G /dev/shm",
        )
    if host.shm_leftovers and not (rig.docker.gpu_containers or ()):
        return warn(
            rule,
            f"{told}; leftovers of dead servers: {', '.join(host.shm_leftovers[:4])}",
            "they take memory until the next boot",
            "remove them while nothing serves",
        )
    return ok(rule, told)


def disks(rig: Rig, want: Want) -> Finding:
    """Room for the image and the weights, also where both lie on one disk."""
    rule = "disk-space"
    why = f"the weights take {want.weights / 1e9:.0f} GB, a first build of the image {want.image / 1e9:.0f} GB"
    known = [disk for disk in rig.disks or () if disk.free is not None]
    if not known:
        return unknown(rule, "not known", why, HERE)
    needs: dict[object, int] = {}
    for disk in known:
        needs.setdefault(_disk(disk), RESERVE)
        needs[_disk(disk)] += 0 if disk.present else {"weights": want.weights, "images": want.image}.get(disk.use, 0)
    told = "; ".join(f"{_use(disk)}: {(disk.free or 0) / 1e9:.0f} GB free{_path(disk)}" for disk in known)
    short = [disk for disk in known if (disk.free or 0) < needs[_disk(disk)]]
    full = [disk for disk in short if disk.present or (disk.free or 0) < needs[_disk(disk)] - RESERVE]
    if rig.gpus == ():
        # nothing of that size will be put here
        return ok(rule, told)
    if full and not all(disk.present for disk in full):
        needed = max(needs[_disk(disk)] for disk in full)
        mend = (
            "SM86_MODELS_DIR names another folder for weights; docker system df and prune show and free what Docker has"
        )
        return fail(rule, f"{told}; {needed / 1e9:.0f} GB are needed", why, mend)
    if short:
        return warn(rule, f"{told}; little room is left", "logs and kernel caches grow", "free some space")
    return ok(rule, told)


def _disk(disk: Disk) -> object:
    return disk.device if disk.device is not None else disk.use


def _use(disk: Disk) -> str:
    return f"{disk.use}{' (there already)' if disk.present else ''}"


def _path(disk: Disk) -> str:
    return f" at {disk.path}" if disk.path else ""


def weights_disk(rig: Rig, want: Want) -> Finding | None:
    """The filesystem that the weights are read from."""
    rule = "weights-disk"
    disk = next((disk for disk in rig.disks or () if disk.use == "weights"), None)
    if disk is None or rig.gpus == ():
        return None
    why = "142 GiB are read at every start: a minute from a local NVMe disk, hours from a slow mount"
    if disk.exists and disk.readable is False:
        return fail(
            rule, f"{disk.path or 'the folder'} cannot be read", why, "chmod -R a+rX on the folder of the models"
        )
    if disk.filesystem is None:
        return unknown(rule, "the filesystem is not known", why, HERE)
    told = f"{disk.filesystem}{_path(disk)}"
    if disk.filesystem in NETWORK:
        mend = "copy the checkpoint to a local NVMe disk, and set SM86_MODELS_DIR"
        return warn(rule, f"{told}: a network or shared mount (20 MB/s was seen on such ones)", why, mend)
    if disk.rotational and not rig.host.virtual:
        # the disk of a virtual machine says that it spins, whatever lies below
        return warn(
            rule, f"{told}, on a spinning disk: about a quarter of an hour for each start", why, "use an NVMe disk"
        )
    if disk.filesystem in ("tmpfs", "ramfs"):
        return fail(
            rule, f"{told}: that is host memory", "142 GiB of weights do not fit beside the server", "use a disk"
        )
    return ok(rule, told)


def ports(rig: Rig, want: Want) -> Finding | None:
    """The port that the server publishes."""
    rule = "port"
    if not rig.ports:
        return None
    taken = [port for port in rig.ports if port.free is False]
    if taken:
        holder = f" by {taken[0].holder}" if taken[0].holder else ""
        own = (taken[0].holder or "").startswith("container sm86-")
        if own:
            return ok(rule, f"{taken[0].number} is taken{holder}, a server of this product")
        return fail(
            rule,
            f"{taken[0].number} is taken{holder}",
            "the server publishes its API there",
            "stop it, or set SM86_PORT to another one",
        )
    if any(port.free is None for port in rig.ports):
        return unknown(rule, f"{rig.ports[0].number} could not be tried", "the server publishes its API there", HERE)
    return ok(rule, f"{rig.ports[0].number} is free")


def uptime(rig: Rig, want: Want) -> Finding | None:
    """Time since boot, for the counters that count from there."""
    rule, host = "uptime", rig.host
    if host.uptime is None:
        return None
    days = host.uptime / 86400
    told = f"{days:.0f} days since boot" if days >= 2 else f"{host.uptime / 3600:.1f} hours since boot"
    if rig.gpus and days < 1 / 24:
        return ok(rule, f"{told}: counters of faults say little yet")
    return ok(rule, told)


def kind(rig: Rig, want: Want) -> Finding | None:
    """What kind of machine: a virtual one, WSL or a container keeps some facts from view."""
    rule, host = "machine", rig.host
    if host.virtual is None:
        return None
    told = ", ".join(word for word in (host.cpu, _cores(host.cores), _sockets(host.sockets), host.system) if word)
    if rig.gpus == () or not host.virtual:
        return ok(rule, told + (f", virtual ({host.virtual})" if host.virtual else ""))
    if host.virtual == "wsl":
        return warn(
            rule,
            f"{told}, WSL2",
            "it takes about 1.3 GiB of each GPU's memory, and has no peer access: the margins are tens of MiB",
            "use Linux on the machine itself",
        )
    if host.virtual == "container":
        return warn(
            rule,
            f"{told}, seen from inside a container",
            "processes, disks, Docker and the kernel's log of the machine are hidden here",
            "run the doctor on the host",
        )
    return warn(
        rule,
        f"{told}, virtual ({host.virtual})",
        "topology, IOMMU and links are what the hypervisor shows; NUMA nodes may be made up",
        "compare with the hypervisor's own view before you believe topology and placement",
    )


def _cores(count: int | None) -> str:
    return f"{count} cores" if count else ""


def _sockets(count: int | None) -> str:
    return f"{count} sockets" if count and count > 1 else ""


def host_memory(rig: Rig, want: Want) -> Finding | None:
    """How fast host memory copies: without peer access it carries every all-reduce."""
    rule = "host-bandwidth"
    measured = (rig.probe.host if rig.probe else None) or ()
    if not measured:
        return None
    told = "; ".join(
        f"{item.rate:.1f} GB/s{f' on node {item.node}' if item.node is not None else ''} "
        f"({item.threads} thread{'s' if item.threads > 1 else ''})"
        for item in measured
    )
    all_nodes = max((item.rate for item in measured), default=0.0)
    if len(rig.gpus or ()) >= 4 and all_nodes < 40:
        return warn(
            rule,
            f"copies at {told}",
            "GPUs without peer access all read and write there at once; eight DDR4-3200 channels reach about 140 GB/s",
            "fill all memory channels of the CPU with equal modules; see that the memory runs at its speed",
        )
    return ok(rule, f"copies at {told}, bytes read and written")
