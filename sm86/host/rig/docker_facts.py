"""Docker, Compose and the NVIDIA Container Toolkit as facts; a failure of theirs is a fact, too."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sm86.doctor.facts import Docker, Toolkit
from sm86.errors import CouldNotRun
from sm86.host.compose import ComposeTooOld, NoCompose, require_compose
from sm86.host.containers import ContainerFacts
from sm86.host.docker import (
    DockerGateway,
    EngineHangs,
    EngineNotRunning,
    EngineTooOld,
    NoDocker,
    NoRights,
    docker_program,
    require_engine,
)
from sm86.host.process import run
from sm86.host.rig.sysfs import read

ANSWER_S = 6.0
INSIDE_S = 6.0
MOST_INSIDE = 4
MANY_RESTARTS = 3
STATES: tuple[tuple[type[CouldNotRun], str], ...] = (
    (NoDocker, "missing"),
    (EngineNotRunning, "not running"),
    (NoRights, "no rights"),
    (EngineHangs, "hang"),
)
PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli")
CDI_FOLDERS = ("etc/cdi", "var/run/cdi")


@dataclass(frozen=True, slots=True)
class Engine:
    """The facts, and what other questions need of the engine. running: id -> name of what runs, None: not asked;
    root_dir: where images lie; images: names of those there are asked for."""

    facts: Docker
    running: Mapping[str, str] | None = None
    root_dir: str | None = None
    gateway: DockerGateway | None = None


def engine(answer_s: float = ANSWER_S, inside_s: float = INSIDE_S) -> Engine:
    """The Docker engine; whatever keeps it from answering is the facts' state. Compose is asked apart."""
    try:
        gateway = require_engine(answer_s)
        # the folders, ports and processes of another machine are none of this one's facts
        gateway.local_only()
        containers = gateway.containers()
    except EngineTooOld as error:
        return Engine(Docker(state="error", problem=error.what))
    except CouldNotRun as error:
        state = next((state for kind, state in STATES if isinstance(error, kind)), "error")
        return Engine(Docker(state=state, problem=error.what))
    told = gateway.facts
    alive = [one for one in containers if one.status in ("running", "paused")]
    with_gpus = tuple(one.name for one in alive if one.wants_gpu)
    facts = Docker(
        state="ok",
        version=told.version or None,
        api=told.api,
        runtimes=told.runtimes,
        default_runtime=told.default_runtime or None,
        rootless=told.rootless,
        snap=told.snap,
        cgroup_driver=told.cgroup_driver or None,
        cgroup_version=told.cgroup_version or None,
        gpu_containers=with_gpus,
        lost_gpus=_lost(with_gpus, inside_s),
        restarting=tuple(_restarting(containers)),
    )
    return Engine(facts, {one.id: one.name for one in alive}, told.root_dir or None, gateway)


def with_compose(facts: Docker) -> Docker:
    """The facts with Compose's version, or why there is none."""
    try:
        found = require_compose()
    except (NoCompose, ComposeTooOld) as error:
        return replace(facts, compose_problem=error.what)
    except CouldNotRun as error:
        return replace(facts, compose_problem=error.what)
    return replace(facts, compose=".".join(map(str, found.version)))


def _restarting(containers: tuple[ContainerFacts, ...]) -> list[str]:
    return [
        f"{one.name} ({one.restart_count})"
        for one in containers
        if one.restart_count > MANY_RESTARTS and one.status in ("running", "restarting")
    ]


def _lost(names: tuple[str, ...], inside_s: float) -> tuple[str, ...] | None:
    """Running containers with GPUs in which nvidia-smi fails; None where that could not be tried."""
    program = docker_program()
    if names and program is None:
        return None
    lost = []
    for name in names[:MOST_INSIDE]:
        try:
            told = run((program or "docker", "exec", name, "nvidia-smi", "-L"), inside_s)
        except CouldNotRun:
            continue
        words = told.out + told.err
        # a container without nvidia-smi says nothing about its GPUs
        if not told.ok and re.search(r"NVML|couldn't communicate|No devices", words):
            lost.append(name)
    return tuple(lost)


def toolkit(root: Path, cdi_dirs: tuple[str, ...] = ()) -> Toolkit:
    """What hands GPUs to containers: programs on PATH, CDI files, the toolkit's own settings."""
    programs = tuple(name for name in PROGRAMS if shutil.which(name))
    version = None
    if "nvidia-ctk" in programs:
        try:
            told = re.search(r"(\d+\.\d+\.\d+)", run(("nvidia-ctk", "--version"), 5).out)
        except CouldNotRun:
            told = None
        version = told[1] if told else None
    devices, driver = _cdi(root, cdi_dirs)
    return Toolkit(version, programs, devices, driver, _no_cgroups(root))


def _cdi(root: Path, further: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    folders = dict.fromkeys((*CDI_FOLDERS, *(folder.lstrip("/") for folder in further)))
    names: list[str] = []
    driver = None
    for folder in folders:
        try:
            files = sorted((root / folder).iterdir())
        except OSError:
            continue
        for file in files:
            text = read(file) if file.suffix in (".yaml", ".yml", ".json") else None
            if text and "nvidia.com/" in text:
                found, version = devices_of(text)
                names += found
                driver = driver or version
    return tuple(dict.fromkeys(names)), driver


def devices_of(text: str) -> tuple[list[str], str | None]:
    """Device names of a CDI file ("nvidia.com/gpu=0"), and the driver version its library paths are of. A file that is
    no YAML names none."""
    import yaml

    try:
        value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return [], None
    if not isinstance(value, dict) or not isinstance(value.get("devices"), list):
        return [], None
    found = [
        f"{value.get('kind')}={device['name']}"
        for device in value["devices"]
        if isinstance(device, dict) and "name" in device
    ]
    library = re.search(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3}\.\d{2,3}(?:\.\d{2})?)", text)
    return found, library[1] if library else None


def _no_cgroups(root: Path) -> bool | None:
    import tomllib

    text = read(root / "etc/nvidia-container-runtime/config.toml")
    if text is None:
        return None
    try:
        value = tomllib.loads(text).get("nvidia-container-cli", {}).get("no-cgroups", False)
    except (tomllib.TOMLDecodeError, AttributeError):
        return None
    return bool(value)
