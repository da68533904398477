"""What the Docker engine says of a container, an image and itself, as typed facts. Pure: JSON in, facts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine that answers: where, which, and what it offers.

    api: (major, minor) of its API; runtimes: names as in daemon.json; cdi_dirs: folders of device
    descriptions, empty where the engine is too old to say; rootless, snap: how it was installed;
    root_dir: the folder on its machine that holds images and volumes; cgroup_driver: "systemd" or "cgroupfs";
    cgroup_version: "1" or "2"; default_runtime: the one for containers that name none.
    """

    endpoint: str
    version: str
    api: tuple[int, int]
    os_type: str
    architecture: str
    runtimes: tuple[str, ...] = ()
    cdi_dirs: tuple[str, ...] = ()
    rootless: bool = False
    snap: bool = False
    root_dir: str = ""
    cgroup_driver: str = ""
    cgroup_version: str = ""
    default_runtime: str = ""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """One container as the engine knows it. This, and no client's exit code, is what the product believes.

    status: created, running, paused, restarting, removing, exited or dead; exit_code is of the last end
    and means nothing while running; health: starting, healthy, unhealthy, or "" without a health check;
    error: the engine's own words when it could not start the container; times are RFC 3339, UTC;
    stop_grace_s: seconds between SIGTERM and SIGKILL, None where the container does not say; wants_gpu: it was made
    with GPUs.
    """

    id: str
    name: str
    image_id: str
    image: str
    status: str
    exit_code: int
    oom_killed: bool
    restart_count: int
    restart_policy: str
    restart_cap: int
    health: str
    health_output: str
    error: str
    created_at: str
    started_at: str
    finished_at: str
    stop_grace_s: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, str, int], ...] = ()
    wants_gpu: bool = False

    @property
    def is_up(self) -> bool:
        """A process runs in it, or soon will again."""
        return self.status in ("running", "paused", "restarting")

    def published(self, container_port: int) -> tuple[str, int] | None:
        """(host address, host port) that reaches `container_port`/tcp; None where it is not published."""
        wanted = f"{container_port}/tcp"
        return next(((address, port) for name, address, port in self.ports if name == wanted), None)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image: its id (sha256:...), its names, labels and size in bytes."""

    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    created: str


@dataclass(frozen=True, slots=True)
class Death:
    """One end of a container's process, from the engine's events: seconds since the epoch, and how it ended."""

    time: float
    exit_code: int
    oom_killed: bool


def engine_facts(endpoint: str, version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineFacts:
    """Facts from the engine's `/version` and `/info`; a field that is missing is empty."""
    major, _, minor = str(version.get("ApiVersion", "0.0")).partition(".")
    options = " ".join(info.get("SecurityOptions") or ())
    return EngineFacts(
        endpoint=endpoint,
        version=str(version.get("Version", "")),
        api=(_whole(major), _whole(minor)),
        os_type=str(version.get("Os") or info.get("OSType") or ""),
        architecture=str(version.get("Arch") or info.get("Architecture") or ""),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_dirs=tuple(info.get("CDISpecDirs") or ()),
        rootless="rootless" in options,
        snap="/snap/" in str(info.get("DockerRootDir", "")),
        root_dir=str(info.get("DockerRootDir") or ""),
        cgroup_driver=str(info.get("CgroupDriver") or ""),
        cgroup_version=str(info.get("CgroupVersion") or ""),
        default_runtime=str(info.get("DefaultRuntime") or ""),
    )


def container_facts(inspected: Mapping[str, Any]) -> ContainerFacts:
    """Facts from the engine's answer to an inspection of a container."""
    state = inspected.get("State") or {}
    config = inspected.get("Config") or {}
    policy = (inspected.get("HostConfig") or {}).get("RestartPolicy") or {}
    health = state.get("Health") or {}
    checks = health.get("Log") or [{}]
    return ContainerFacts(
        id=str(inspected.get("Id", "")),
        name=str(inspected.get("Name", "")).lstrip("/"),
        image_id=str(inspected.get("Image", "")),
        image=str(config.get("Image", "")),
        status=str(state.get("Status", "")),
        exit_code=_whole(state.get("ExitCode")),
        oom_killed=bool(state.get("OOMKilled")),
        restart_count=_whole(inspected.get("RestartCount")),
        restart_policy=str(policy.get("Name") or "no"),
        restart_cap=_whole(policy.get("MaximumRetryCount")),
        # a stopped container keeps its last health, which then says nothing
        health=str(health.get("Status", "")) if state.get("Running") else "",
        health_output=" ".join(str((checks[-1] or {}).get("Output", "")).split()),
        error=" ".join(str(state.get("Error", "")).split()),
        created_at=str(inspected.get("Created", "")),
        started_at=str(state.get("StartedAt", "")),
        finished_at=str(state.get("FinishedAt", "")),
        stop_grace_s=config.get("StopTimeout"),
        labels=dict(config.get("Labels") or {}),
        # an entry without a sign is a name that was passed on and not set: the process does not have it
        environment=dict(item.partition("=")[::2] for item in config.get("Env") or () if "=" in item),
        ports=tuple(_ports((inspected.get("NetworkSettings") or {}).get("Ports") or {})),
        wants_gpu=_wants_gpu(inspected.get("HostConfig") or {}),
    )


def image_facts(inspected: Mapping[str, Any]) -> ImageFacts:
    """Facts from the engine's answer to an inspection of an image."""
    return ImageFacts(
        id=str(inspected.get("Id", "")),
        names=tuple(inspected.get("RepoTags") or ()),
        labels=dict((inspected.get("Config") or {}).get("Labels") or {}),
        size=_whole(inspected.get("Size")),
        created=str(inspected.get("Created", "")),
    )


def deaths_of(events: list[Mapping[str, Any]]) -> tuple[Death, ...]:
    """Every `die` in the engine's events of one container, in order; `oom` before it says why."""
    deaths: list[Death] = []
    oom = False
    for event in events:
        action = str(event.get("Action") or event.get("status") or "")
        if action == "oom":
            oom = True
        elif action == "die":
            attributes = (event.get("Actor") or {}).get("Attributes") or {}
            seconds = float(event.get("timeNano") or 0) / 1e9 or float(event.get("time") or 0)
            deaths.append(Death(seconds, _whole(attributes.get("exitCode")), oom))
            oom = False
    return tuple(deaths)


def _wants_gpu(config: Mapping[str, Any]) -> bool:
    """Asked for devices (--gpus, Compose's reservations, CDI) or through the nvidia runtime."""
    asked = config.get("DeviceRequests") or ()
    devices = [str(device) for request in asked for device in request.get("DeviceIDs") or ()]
    gpu = any("gpu" in word for request in asked for group in request.get("Capabilities") or () for word in group or ())
    return gpu or any("nvidia" in name for name in (*devices, str(config.get("Runtime") or "")))


def _ports(published: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    return [
        (name, str(binding.get("HostIp", "")), _whole(binding.get("HostPort")))
        for name, bindings in published.items()
        for binding in bindings or ()
    ]


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
