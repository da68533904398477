"""All facts of this machine, from every source at once, each in bounded time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from sm86.doctor.facts import Disk, Docker, Driver, Gpu, Host, KernelLog, Port, Rig, Toolkit, Topology
from sm86.errors import CouldNotRun
from sm86.host.ports import PortTaken, require_free_port
from sm86.host.rig import docker_facts, driver_files, nvml, owners, shm, smi, sysfs
from sm86.host.rig.disks import disks
from sm86.host.rig.kernel_log import kernel_log

T = TypeVar("T")

NVML_S = nvml.TOTAL_S + 5
SOURCE_S = 40.0
"""A source has its own, shorter limits; this one is for what they overlook."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are. models: the folder of the checkpoints; model: the checkpoint's folder in it; port and address:
    what the server publishes; image: the image's name; root: "/" but in tests."""

    models: Path
    model: str
    port: int
    address: str
    image: str
    root: Path = Path("/")


class _Later(Generic[T]):
    """A source that is asked in a thread. One that does not come back is left there: it must not end the others."""

    def __init__(self, name: str, ask: Callable[[], T], otherwise: T) -> None:
        self._name, self._value = name, otherwise
        self.missed: tuple[str, ...] = (f"{name}: no answer in time",)
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        self._thread.start()

    def _run(self, ask: Callable[[], T]) -> None:
        try:
            self._value, self.missed = ask(), ()
        except CouldNotRun as error:
            self.missed = (f"{self._name}: {error.what}",)
        except Exception as error:  # a source that breaks is one that is not known, and the report says so
            self.missed = (f"{self._name}: {type(error).__name__}: {error}",)

    def result(self, within_s: float) -> T:
        self._thread.join(within_s)
        return self._value


def gather(places: Places, environment: Mapping[str, str] | None = None) -> Rig:
    """The facts. Takes as long as the slowest source: about a second, on a machine whose driver hangs a minute.

    environment: this process's, whose LD_LIBRARY_PATH counts. Nothing is changed, and nothing is started but nvidia-smi
    in running containers that were given GPUs.
    """
    from sm86 import __version__

    root = places.root
    ask_nvml = _Later("NVML", nvml.ask, nvml.Told("error", "no answer in time"))
    ask_docker = _Later("Docker", docker_facts.engine, docker_facts.Engine(Docker(state="hang")))
    ask_compose = _Later("Compose", lambda: docker_facts.with_compose(Docker()), Docker())
    ask_toolkit = _Later("container toolkit", lambda: docker_facts.toolkit(root), Toolkit())
    ask_log = _Later("kernel log", kernel_log, KernelLog(readable=False))
    files = driver_files.look(root, os.environ if environment is None else environment)
    cards = sysfs.cards(root)
    engine = ask_docker.result(SOURCE_S)
    found_disks, missed = _disks(places, engine)
    told = ask_nvml.result(NVML_S)
    gpus, driver, topology = _graphics(told, files, cards)
    if gpus is not None:
        gpus = owners.with_owners(gpus, root, engine.running)
    compose = ask_compose.result(SOURCE_S)
    sources = (ask_nvml, ask_docker, ask_compose, ask_toolkit, ask_log)
    log = ask_log.result(SOURCE_S)
    toolkit = ask_toolkit.result(SOURCE_S)
    return Rig(
        gpus=gpus,
        driver=driver,
        topology=topology,
        host=_host(root, cards),
        disks=found_disks,
        docker=replace(engine.facts, compose=compose.compose, compose_problem=compose.compose_problem),
        toolkit=replace(toolkit, compat_folders=files.compat),
        ports=(_port(places, engine),),
        kernel_log=log,
        missed=(*(words for source in sources for words in source.missed), *missed),
        taken=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        product=__version__,
    )


def _graphics(
    told: nvml.Told, files: driver_files.Files, cards: tuple[sysfs.Card, ...] | None
) -> tuple[tuple[Gpu, ...] | None, Driver, Topology]:
    state, problem, version, gpus = told.state, told.problem, told.version, told.gpus
    topology = Topology(told.links, told.peers, "NVML" if told.links else None)
    if gpus is None and state != "hang":
        gpus, version = smi.gpus()
        version = version or told.version
    answers = state in ("ok", "missing", "no driver")
    if gpus is None and cards is not None and (cards or answers):
        # the bus still shows them, with all that is known without the driver
        gpus = tuple(Gpu(index) for index in range(len(cards)))
        gpus = tuple(replace(gpu, bus_id=card.bus_id) for gpu, card in zip(gpus, cards, strict=True))
    if gpus is not None:
        gpus = tuple(_on_bus(gpu, cards or ()) for gpu in gpus)
        if topology.links is None and len(gpus) > 1 and state != "hang":
            topology = smi.topology(len(gpus)) or topology
        if topology.links is None:
            on_bus = {card.bus_id: card for card in cards or ()}
            chosen = tuple(on_bus[key] for gpu in gpus if (key := _short(gpu.bus_id)) in on_bus)
            square = sysfs.links(chosen) if len(chosen) == len(gpus) else None
            topology = replace(topology, links=square, source="sysfs" if square else topology.source)
    if state in ("missing", "error") and not files.module and not cards:
        state = "no driver" if state == "missing" else state
    versions = tuple(sorted({*files.versions, *((version,) if version else ())}))
    driver = Driver(
        nvml=state,
        version=version or files.module,
        cuda=told.cuda,
        module=files.kind,
        loaded=True if files.module is not None or state == "ok" else None if not answers else False,
        problem=problem,
        several=versions,
    )
    return gpus, driver, topology


def _short(bus_id: str | None) -> str:
    """NVML's "00000000:01:00.0" as the bus writes it, "0000:01:00.0"."""
    text = (bus_id or "").lower()
    return text[4:] if len(text) == 16 else text


def _on_bus(gpu: Gpu, cards: tuple[sysfs.Card, ...]) -> Gpu:
    card = next((card for card in cards if card.bus_id == _short(gpu.bus_id)), None)
    if card is None:
        return gpu
    pcie = replace(
        gpu.pcie,
        generation=gpu.pcie.generation or card.generation,
        width=gpu.pcie.width or card.width,
        max_generation=gpu.pcie.max_generation or card.max_generation,
        max_width=gpu.pcie.max_width or card.max_width,
        slot_width=card.slot_width,
    )
    return replace(gpu, pcie=pcie, numa=card.numa, cpus=card.cpus, iommu_group=card.iommu_group, bridges=card.bridges)


def _host(root: Path, cards: tuple[sysfs.Card, ...] | None) -> Host:
    total, free = shm.space(root / "dev/shm")
    return replace(
        sysfs.host(root),
        shm_total=total,
        shm_free=free,
        shm_leftovers=shm.leftovers(root / "dev/shm", root),
        nvidia_devices=None if cards is None else len(cards),
        iommu=sysfs.iommu(root, cards),
    )


def _disks(places: Places, engine: docker_facts.Engine) -> tuple[tuple[Disk, ...], tuple[str, ...]]:
    image = None
    if engine.gateway is not None:
        try:
            image = engine.gateway.image(places.image) is not None
        except CouldNotRun:
            image = None
    folders: list[tuple[str, str, bool | None]] = [("weights", str(places.models / places.model), None)]
    if engine.root_dir:
        folders.append(("images", engine.root_dir, image))
    found, missed = disks(folders)
    return tuple(replace(disk, present=_whole(disk)) if disk.use == "weights" else disk for disk in found), missed


def _whole(disk: Disk) -> bool | None:
    """Whether a checkpoint lies there: its config and a file of weights. Whether it is whole, `model.check` says."""
    if not disk.exists or disk.path is None:
        return disk.exists
    try:
        names = os.listdir(disk.path)
    except OSError:
        return None
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


def _port(places: Places, engine: docker_facts.Engine) -> Port:
    holder = None
    if engine.gateway is not None:
        try:
            publisher = engine.gateway.publisher_of(places.port)
            holder = f"container {publisher.name}" if publisher else None
        except CouldNotRun:
            holder = None
    try:
        require_free_port(places.port, holder, places.address)
    except PortTaken as error:
        return Port(places.port, places.address, False, holder or _holder(error.what))
    except CouldNotRun:
        return Port(places.port, places.address)
    return Port(places.port, places.address, True)


def _holder(words: str) -> str | None:
    return words.partition(" is taken by ")[2] or None
