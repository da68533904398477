"""The facts without what names a person, a machine or a place, to be attached to a bug report. Pure.

Two nets. First each field is known: what is an identifier is hashed or left out, what is free text (titles of
processes, words of the kernel's log, names of containers) is cut down to words from a list. Then every string that is
left goes through a scrubber for addresses, paths, ids, tokens, and for this machine's own names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from sm86.doctor.facts import Disk, Docker, Driver, Gpu, GpuProcess, Host, KernelLog, Port, Rig, Toolkit, Xid

PROGRAMS = frozenset(
    {
        "python",
        "python3",
        "vllm",
        "ollama",
        "llama-server",
        "text-generation-launcher",
        "Xorg",
        "Xwayland",
        "gnome-shell",
    }
    | {"kwin_wayland", "plasmashell", "sglang", "nvidia-smi", "nvtop", "chrome", "firefox", "code", "blender", "steam"}
)
"""What a process is called in the bundle; every other one is "other"."""

KERNEL_WORDS = frozenset(
    {
        "generic",
        "lowlatency",
        "amd64",
        "cloud",
        "pve",
        "arch",
        "arch1",
        "zen",
        "zen1",
        "lts",
        "hwe",
        "aws",
        "azure",
        "gcp",
    }
    | {"default", "desktop", "server", "microsoft", "standard", "WSL2", "rt", "hardened", "el8", "el9", "el10"}
    | {"x86", "64", "aarch64", "xanmod1"}
)
FAULTS = ("IO_PAGE_FAULT", "DMAR fault", "AER", "PCIe Bus Error", "fallen off the bus", "RmInitAdapter failed")
SEVERITIES = ("Uncorrected", "Uncorrectable", "Corrected", "Correctable", "Fatal", "Non-Fatal")

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_PATTERNS = (
    ("<url>", re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)),
    ("<mail>", re.compile(r"[\w.+-]+@[\w.-]+")),
    ("<token>", re.compile(r"\b(?:hf_|sk-|nvapi-|ghp_|gho_|glpat-|xox[a-z]-|AKIA)[\w-]{6,}")),
    ("<secret>", re.compile(r"(?i)\b[\w-]*(?:key|token|secret|password|passwd)\b\s*[=:]\s*\S+")),
    ("<uuid>", re.compile(r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")),
    ("<mac>", re.compile(r"(?i)\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")),
    ("<address>", re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")),
    (
        "<address>",
        re.compile(rf"(?i)(?!{_PCI})(?<![\w:])(?:[0-9a-f]{{0,4}}:){{2,7}}[0-9a-f]{{0,4}}(?:%\w+)?(?![\w:.])"),
    ),
    ("<id>", re.compile(r"(?i)\b[0-9a-f]{32,64}\b")),
    ("<path>", re.compile(r"(?<![\w.])~?(?:/[\w.@+~-]+)+/?")),
    ("<path>", re.compile(r"\b[A-Za-z]:\\\S+")),
)


def redacted(rig: Rig, known: Iterable[str] = ()) -> Rig:
    """The rig without serial numbers, host names, users, paths, addresses; UUIDs and foreign container names hashed.

    known: names of this machine and its people, which are then found inside other words, too.
    """
    rig = replace(
        rig,
        gpus=None if rig.gpus is None else tuple(_gpu(gpu) for gpu in rig.gpus),
        driver=_driver(rig.driver),
        host=_host(rig.host),
        disks=None if rig.disks is None else tuple(_disk(disk) for disk in rig.disks),
        docker=_docker(rig.docker),
        toolkit=_toolkit(rig.toolkit),
        ports=None if rig.ports is None else tuple(_port(port) for port in rig.ports),
        kernel_log=_kernel(rig.kernel_log),
        missed=tuple(words.partition(":")[0] for words in rig.missed),
    )
    names = sorted({name for name in known if len(name) >= 3}, key=len, reverse=True)
    scrubbed: Rig = _every_string(rig, lambda text: scrub(text, names))
    return scrubbed


def scrub(text: str, names: Iterable[str] = ()) -> str:
    """The text without what betrays a place or a person; `names` are removed wherever they stand."""
    # a hash that stands for a UUID is no UUID any more
    kept = re.fullmatch(r"GPU-h[0-9a-f]{12}", text)
    if kept:
        return text
    for name in names:
        text = re.sub(re.escape(name), "<name>", text, flags=re.IGNORECASE)
    for word, pattern in _PATTERNS:
        text = pattern.sub(word, text)
    return text


def hashed(text: str, length: int = 12) -> str:
    """The same text gives the same hash, so that two bundles of one machine can be laid side by side."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _gpu(gpu: Gpu) -> Gpu:
    return replace(
        gpu,
        uuid=f"GPU-h{hashed(gpu.uuid)}" if gpu.uuid else None,
        serial=None,
        processes=None if gpu.processes is None else tuple(_process(process) for process in gpu.processes),
    )


def _process(process: GpuProcess) -> GpuProcess:
    owner = process.owner
    if owner and owner.startswith("container "):
        owner = f"container {_container(owner[10:])}"
    elif owner and owner.startswith("dead container"):
        owner = "dead container"
    elif owner not in (None, "host", "unseen"):
        owner = "other"
    return replace(process, title=_title(process.title), owner=owner)


def _title(title: str | None) -> str | None:
    if not title:
        return None
    first = title.split()[0].rpartition("/")[2].rstrip(":")
    worker = re.match(r"VLLM::[A-Za-z]+(?:_(?:PP|TP|DP|EP|DCP|PCP)\d{1,3})*", first)
    if worker:
        return worker[0]
    plain = re.sub(r"(?<=python)3?\.\d+$|(?<=python)3$", "3", first)
    return plain if plain in PROGRAMS else "other"


def _container(name: str) -> str:
    return name if re.fullmatch(r"sm86-[0-9a-z-]{1,20}|cpu-smoke", name) else hashed(name, 6)


def _driver(driver: Driver) -> Driver:
    return replace(driver, problem=_library_words(driver.problem))


def _library_words(words: str | None) -> str | None:
    """NVML's own sentences are the same everywhere; another one is not taken over."""
    return words if words and re.fullmatch(r"[A-Za-z /,-]{1,80}|no answer within \d+ s", words) else None


def _host(host: Host) -> Host:
    kernel = host.kernel
    if kernel:
        parts = re.split(r"[-_+]", kernel)
        kernel = "-".join(part for part in parts if re.fullmatch(r"[\d.]+|rc\d+|fc\d+", part) or part in KERNEL_WORDS)
    leftovers = host.shm_leftovers
    return replace(
        host,
        kernel=kernel,
        shm_leftovers=None if leftovers is None else tuple(re.split(r"[-_.]", name)[0] for name in leftovers),
    )


def _disk(disk: Disk) -> Disk:
    return replace(disk, path=None)


def _docker(docker: Docker) -> Docker:
    def names(found: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if found is None else tuple(map(_container, found))

    runtimes = docker.runtimes
    common = re.compile(r"runc|nvidia|io\.containerd")
    return replace(
        docker,
        problem=None,
        compose_problem="not usable" if docker.compose_problem else None,
        runtimes=None if runtimes is None else tuple(name for name in runtimes if common.match(name)),
        gpu_containers=names(docker.gpu_containers),
        lost_gpus=names(docker.lost_gpus),
        restarting=None if docker.restarting is None else tuple(
            f"{_container(name.partition(' (')[0])} ({name.rpartition('(')[2]}" for name in docker.restarting
        ),
    )  # fmt: skip


def _toolkit(toolkit: Toolkit) -> Toolkit:
    devices = toolkit.cdi_devices
    return replace(
        toolkit,
        # a device may be named by its UUID
        cdi_devices=None if devices is None else tuple(
            name if re.fullmatch(r"nvidia\.com/gpu=(?:\d+|all)", name) else "nvidia.com/gpu=other" for name in devices
        ),
        compat_folders=None if toolkit.compat_folders is None else tuple("a folder" for _ in toolkit.compat_folders),
    )  # fmt: skip


def _port(port: Port) -> Port:
    holder = port.holder
    if holder:
        known = holder.startswith("container ")
        holder = f"container {_container(holder[10:])}" if known else "a process"
    return replace(port, address=None, holder=holder)


def _kernel(log: KernelLog) -> KernelLog:
    return replace(
        log,
        xids=None if log.xids is None else tuple(replace(entry, text=_xid_words(entry)) for entry in log.xids),
        others=None if log.others is None else tuple(map(_fault, log.others)),
    )


def _xid_words(entry: Xid) -> str:
    """The words of an Xid name the process that met it; two sentences of the driver's own are kept."""
    return next((words for words in ("GPU has fallen off the bus", "GPU recovery action") if words in entry.text), "")


def _fault(line: str) -> str:
    kinds = [word for word in (*FAULTS, *SEVERITIES) if word in line]
    if "DMAR" in line and "DMAR fault" not in kinds:
        kinds.insert(0, "DMAR fault")
    return " ".join((*kinds, *re.findall(_PCI, line)))


def _every_string(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_every_string(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: _every_string(getattr(value, item.name), change) for item in fields(value)})
    return value
