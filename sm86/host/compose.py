"""Docker Compose: which one this machine has, what it makes of the rendered files, and starting one service.

Compose is asked to read the files and to create the container; whether that runs is the engine's word
(`sm86.host.docker`), never Compose's exit code.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.host.docker import LOCAL_ENGINE_HINT
from sm86.host.process import Result, run
from sm86.json_text import parse as parse_json

MINIMUM = (2, 20)
"""`include`, which the root compose.yaml is made of, came with Compose 2.20."""

FILE = "compose.yaml"

ASK_S = 30.0
CREATE_S = 180.0
"""Creating a container makes volumes and may wait for another one's removal; it never pulls or builds here."""


class NoCompose(CouldNotRun):
    """Neither `docker compose` nor `docker-compose` is there."""


class ComposeTooOld(CouldNotRun):
    """The newest Compose found cannot read the files."""


class ComposeInvalid(CouldNotRun):
    """Compose does not accept the files or the variables; its own words say where."""


class ComposeFailed(CouldNotRun):
    """Compose or the engine refused to create or start the container."""


@dataclass(frozen=True, slots=True)
class Compose:
    """A usable Compose: how it is called and its version."""

    command: tuple[str, ...]
    version: tuple[int, ...]

    def argv(self, root: Path, service: str, *words: str) -> tuple[str, ...]:
        """The whole command line for `words` on one service's profile, whatever the working folder is."""
        place = ("--project-directory", str(root), "--file", str(root / FILE))
        return (*self.command, *place, "--profile", service, *words)


@dataclass(frozen=True, slots=True)
class Service:
    """One service as Compose resolved it, all variables and `.env` included.

    binds: (host path, container path) of each bind mount; wants_gpu: it asks for NVIDIA devices.
    """

    name: str
    container_name: str
    image: str
    host_port: int
    host_address: str
    binds: tuple[tuple[str, str], ...]
    environment: Mapping[str, str | None]
    command: tuple[str, ...]
    wants_gpu: bool


def require_compose() -> Compose:
    """The first that is new enough of: `docker compose`, `docker-compose` on PATH, the one beside this Python.

    Raises NoCompose or ComposeTooOld.
    """
    old: list[str] = []
    for command in _candidates():
        version = _version_of(command)
        if version is None:
            continue
        if version >= MINIMUM:
            return Compose(command, version)
        old.append(f"{' '.join(command)} is {'.'.join(map(str, version))}")
    if old:
        raise ComposeTooOld(
            f"Docker Compose is too old: {'; '.join(old)}",
            f"install Compose {MINIMUM[0]}.{MINIMUM[1]} or newer (package docker-compose-plugin), {LOCAL_ENGINE_HINT}",
        )
    raise NoCompose(
        "Docker Compose is not installed: neither `docker compose` nor `docker-compose` answers",
        f"install the package docker-compose-plugin (2.20 or newer), {LOCAL_ENGINE_HINT}",
    )


def read_service(compose: Compose, root: Path, name: str, environment: Mapping[str, str]) -> Service:
    """What Compose makes of service `name`. Raises ComposeInvalid with Compose's own first line."""
    if not (root / FILE).is_file():
        raise CouldNotRun(f"there is no {FILE} in {root}", "run invoke render, in a clone of the repository")
    result = run(compose.argv(root, name, "config", "--format", "json"), ASK_S, environment)
    if not result.ok:
        raise _invalid(result)
    try:
        services = parse_json(result.out)["services"]
        return _service(name, services[name])
    except ComposeInvalid:
        raise
    except (ValueError, TypeError):
        raise ComposeInvalid(f"{' '.join(compose.command)} config did not print JSON", "update Compose") from None
    except KeyError as missing:
        raise ComposeInvalid(
            f"{FILE} has no service {name!r} (missing: {missing})",
            "invoke render writes the services of sm86/spec/envelopes; put the envelope's file there",
        ) from None


def create(compose: Compose, root: Path, service: Service, environment: Mapping[str, str], again: bool) -> None:
    """`up -d` of that service alone: no build, no pull, no dependencies; with `again` a new container in any case.

    Raises a ComposeFailed that names what the engine refused.
    """
    result = run(create_argv(compose, root, service.name, again), CREATE_S, environment)
    if not result.ok:
        raise create_failure(result, service)


def create_argv(compose: Compose, root: Path, name: str, again: bool) -> tuple[str, ...]:
    words = ["up", "--detach", "--no-build", "--no-deps", "--pull", "never"]
    if again:
        words.append("--force-recreate")
    return compose.argv(root, name, *words, name)


def create_failure(result: Result, service: Service) -> ComposeFailed:
    """The failure that Compose's words mean; with its last lines as evidence."""
    words = " ".join(result.last_words(8))
    for pattern, what, mend in _CREATE_FAILURES:
        found = re.search(pattern, words, re.IGNORECASE)
        if found:
            named = found.groupdict()
            facts = {"name": service.name, "port": service.host_port, "image": service.image, **named}
            return ComposeFailed(what.format(**facts), mend.format(**facts), result.last_words(2))
    return ComposeFailed(
        f"Compose could not start {service.name} (exit code {result.code})",
        "mend what its last lines name, then run it again",
        result.last_words(5),
    )


_TOOLKIT = (
    "install the NVIDIA Container Toolkit, then: sudo nvidia-ctk runtime configure && sudo systemctl restart docker"
)

_CREATE_FAILURES = (
    (
        r"could not select device driver .*(nvidia|gpu|capabilities)",
        "the Docker engine has no NVIDIA device driver",
        f"{_TOOLKIT}; a Docker from snap cannot use GPUs, install Docker's own packages",
    ),
    (r"(unknown or invalid runtime name|unknown runtime).*nvidia", "the Docker engine has no runtime nvidia", _TOOLKIT),
    (
        r"unresolvable CDI devices?:? ?(?P<device>\S*)",
        "the Docker engine finds no CDI description of the GPUs ({device})",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, then restart Docker",
    ),
    (
        r"driver/library version mismatch",
        "the NVIDIA driver in the kernel and its libraries are of different versions",
        "reboot the machine (a driver update was installed), or reload the driver's modules",
    ),
    (
        r"(nvml error|initialization error|driver not loaded|nvidia-container-cli).*",
        "the NVIDIA driver does not answer the container toolkit",
        "run nvidia-smi on this machine; if that fails too, install or reload the driver",
    ),
    (
        r"(port is already allocated|address already in use|ports are not available)",
        "port {port} is taken",
        "stop what uses it, or choose another port: --port N or SM86_PORT=N",
    ),
    (
        r"(no such image|pull access denied|image .* not found|manifest unknown|not found: manifest)",
        "the image {image} is not on this machine",
        "invoke build",
    ),
    (
        r"bind source path does not exist: (?P<path>\S+)",
        "the folder or file {path} does not exist",
        "create it, or set SM86_MODELS_DIR / SM86_API_KEY_FILE to the one you mean",
    ),
    (
        r'container name "?/?(?P<other>[\w.-]+)"? is already in use',
        "a container that Compose did not make is called {other}",
        "look at it (docker inspect {other}), then docker rm -f {other}",
    ),
    (r"no space left on device", "the disk of the Docker engine is full", "free some space (docker system df)"),
    (
        r"permission denied.*docker\.?sock|docker\.sock.*permission denied",
        "this user may not talk to the Docker engine",
        "sudo usermod -aG docker $USER and log in again, or run with sudo",
    ),
    (
        r"(cannot connect to the docker daemon|error during connect)",
        "Compose reaches no Docker engine",
        "start it (sudo systemctl start docker), and see that DOCKER_HOST is what you mean",
    ),
    (
        r"memory limit|invalid (shm|memory)",
        "the engine refuses the memory settings of {name}",
        "mend what its last lines name",
    ),
)
"""(pattern in Compose's last words, what, mend), first match wins: the engine's own wordings, 20.10 to 28."""


def _candidates() -> list[tuple[str, ...]]:
    candidates: list[tuple[str, ...]] = []
    docker = shutil.which("docker")
    if docker:
        candidates.append((docker, "compose"))
    for standalone in (shutil.which("docker-compose"), str(Path(sys.executable).parent / "docker-compose")):
        if standalone and os.access(standalone, os.X_OK) and (standalone,) not in candidates:
            candidates.append((standalone,))
    return candidates


def _version_of(command: Sequence[str]) -> tuple[int, ...] | None:
    """(major, minor, ...) that the command names; None where it is not a Compose, cannot run or hangs."""
    try:
        result = run([*command, "version", "--short"], ASK_S)
    except CouldNotRun:
        return None
    # anchored: a docker client without the plugin may print its help, which has version numbers in it
    found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?\S*", result.out.strip()) if result.ok else None
    return tuple(int(part) for part in found.groups() if part) if found else None


def _invalid(result: Result) -> ComposeInvalid:
    lines = result.last_words(20)
    problem = next((line for line in lines if "level=warning" not in line), lines[0] if lines else "no words")
    return ComposeInvalid(
        f"Compose does not accept {FILE}: {problem}",
        "mend the variable or .env line that it names; if it names a rendered file, run invoke render",
        tuple(line for line in lines if line != problem)[:3],
    )


def _service(name: str, values: Mapping[str, Any]) -> Service:
    ports = values.get("ports") or [{}]
    published = str(ports[0].get("published") or "")
    if published and not (published.isdecimal() and 1 <= int(published) <= 65535):
        raise ComposeInvalid(
            f"the host port of {name} is {published}",
            "give one port from 1 to 65535: SM86_PORT or --port",
        )
    devices = (((values.get("deploy") or {}).get("resources") or {}).get("reservations") or {}).get("devices")
    environment = values.get("environment") or {}
    return Service(
        name=name,
        container_name=str(values.get("container_name") or name),
        image=_plain(values.get("image", "")),
        host_port=int(published or 0),
        host_address=str(ports[0].get("host_ip") or "0.0.0.0"),
        binds=tuple(
            (_plain(volume["source"]), _plain(volume["target"]))
            for volume in values.get("volumes") or ()
            if volume.get("type") == "bind"
        ),
        environment={key: None if value is None else _plain(value) for key, value in environment.items()},
        command=tuple(map(_plain, values.get("command") or ())),
        wants_gpu=bool(devices or values.get("gpus") or values.get("runtime") == "nvidia"),
    )


def _plain(value: Any) -> str:
    """The value as the container gets it: `config` prints every `$` doubled, so that its output is a Compose file."""
    return str(value).replace("$$", "$")
