"""The one gateway to the Docker engine: every question to it goes through here, and every failure is typed.

What is knowingly not covered: engines other than Docker's own (podman's socket answers most of this,
untested), Swarm, and engines on another machine (`local_only` refuses them).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from sm86.errors import CouldNotRun
from sm86.host.containers import (
    ContainerFacts,
    Death,
    EngineFacts,
    ImageFacts,
    container_facts,
    deaths_of,
    engine_facts,
    image_facts,
)

MINIMUM_API = (1, 41)
"""Docker Engine 20.10, the oldest that the Compose files and the image build were seen to work with."""

ANSWER_WITHIN_S = 15.0
"""A healthy engine answers in milliseconds; a busy one (a build, a pull) was seen to take seconds."""

IMAGE_WITHIN_S = 900.0
"""Silence allowed while an image is packed or unpacked: 2.7 GB took more than 15 s, a rig's image is larger."""

LOCAL_ENGINE_HINT = "or use --engine local, which needs no Docker"
"""What a command that takes --engine adds to the mend; one that is about images has no other engine."""


class NoDocker(CouldNotRun):
    """Docker is not installed: neither an engine's socket nor the docker program is there."""


class EngineNotRunning(CouldNotRun):
    """Docker is installed, but no engine answers at its socket."""


class NoRights(CouldNotRun):
    """The engine's socket is there and this user may not use it."""


class EngineTooOld(CouldNotRun):
    """The engine's API is older than MINIMUM_API, or it refuses ours as too old."""


class EngineHangs(CouldNotRun):
    """The engine took the question and did not answer in time."""


class EngineConfused(CouldNotRun):
    """Something answered, but not as a Docker engine does; or its address makes no sense."""


class EngineElsewhere(CouldNotRun):
    """The engine runs on another machine, so its ports and folders are not this one's."""


class EngineRefused(CouldNotRun):
    """The engine understood and said no; its own words are the evidence."""


def docker_program() -> str | None:
    """Path of the docker command-line client, None where there is none on PATH."""
    return shutil.which("docker")


def require_engine(answer_within_s: float = ANSWER_WITHIN_S) -> DockerGateway:
    """A gateway to the engine that DOCKER_HOST, or else the current docker context, names.

    Raises, all within about `answer_within_s` seconds: NoDocker, EngineNotRunning, NoRights, EngineTooOld,
    EngineHangs, EngineConfused.
    """
    try:
        from docker.client import DockerClient
    except ImportError:
        raise CouldNotRun(
            "the Python package docker is not installed", "install the product with its host extra: pip install .[host]"
        ) from None

    endpoint = os.environ.get("DOCKER_HOST") or "the default socket"
    try:
        client = DockerClient.from_env(version="auto", timeout=answer_within_s)
        endpoint = _endpoint(client) or endpoint
        version, info = client.version(), client.info()
    except Exception as error:
        raise _typed(error, endpoint) from None
    facts = engine_facts(endpoint, version, info)
    if facts.api < MINIMUM_API:
        raise EngineTooOld(
            f"Docker engine {facts.version} at {endpoint} has API {facts.api[0]}.{facts.api[1]}",
            f"update Docker to 20.10 or newer (API {MINIMUM_API[0]}.{MINIMUM_API[1]})",
        )
    if facts.os_type and facts.os_type != "linux":
        raise EngineConfused(f"the Docker engine runs {facts.os_type} containers", "switch it to Linux containers")
    return DockerGateway(client, facts)


class DockerGateway:
    """Questions to one engine. Every method raises the typed failures above, never the SDK's own."""

    def __init__(self, client: Any, facts: EngineFacts) -> None:
        self._client = client
        self.facts = facts

    def local_only(self) -> None:
        """Raise EngineElsewhere unless the engine runs on this machine."""
        host = self.facts.endpoint
        near = ("unix:", "http+unix:", "npipe:", "http+docker:", "tcp://127.", "tcp://localhost", "tcp://[::1]")
        http = ("http://127.", "http://localhost", "http://[::1]", "https://127.", "https://localhost")
        if not host.startswith(near + http):
            raise EngineElsewhere(
                f"the Docker engine is on another machine ({host})",
                "run the command there, or unset DOCKER_HOST / choose a local docker context",
            )

    def container(self, name: str) -> ContainerFacts | None:
        """The container of that name or id as it is now; None where there is none."""
        inspected = self._ask(lambda: self._client.api.inspect_container(name))
        return None if inspected is None else container_facts(inspected)

    def containers(self, label: str | None = None) -> tuple[ContainerFacts, ...]:
        """All containers, running or not, by name; with `label` ("key" or "key=value") those that carry it."""
        chosen = {"label": label} if label else None
        listed = self._ask(lambda: self._client.api.containers(all=True, filters=chosen)) or []
        found = [self.container(item["Id"]) for item in listed]
        return tuple(sorted((facts for facts in found if facts), key=lambda facts: facts.name))

    def publisher_of(self, port: int) -> ContainerFacts | None:
        """The running container that publishes this TCP port of the host; None where none does."""
        listed = self._ask(lambda: self._client.api.containers(filters={"publish": f"{port}/tcp"})) or []
        for item in listed:
            facts = self.container(item["Id"])
            if facts and any(published == port for _, _, published in facts.ports):
                return facts
        return None

    def image(self, name: str) -> ImageFacts | None:
        """The image of that name or id; None where the engine does not have it."""
        inspected = self._ask(lambda: self._client.api.inspect_image(name))
        return None if inspected is None else image_facts(inspected)

    def deaths(self, container_id: str, since: float) -> tuple[Death, ...]:
        """Every end of the container's process from `since` (seconds since the epoch) until now.

        The engine forgets old events (it keeps about a thousand), so this is for the last minutes.
        """

        def ask() -> Any:
            chosen = {"container": container_id, "event": ["die", "oom"]}
            stream = self._client.api.events(since=int(since), until=int(time.time()) + 1, filters=chosen, decode=True)
            return list(stream)

        return tuple(death for death in deaths_of(self._ask(ask) or []) if death.time >= since)

    def log_stream(
        self, name: str, follow: bool, since: float | None = None, tail: int | None = None
    ) -> Iterator[bytes]:
        """The container's stdout and stderr as they came, in chunks; ends when the process does, or at once
        without `follow`. A following stream blocks while the server is silent: read it in a thread.

        since: seconds since the epoch; tail: lines from the end. Empty where there is no container.
        """
        options: dict[str, Any] = {"stdout": True, "stderr": True, "stream": True, "follow": follow}
        if since is not None:
            options["since"] = since
        if tail is not None:
            options["tail"] = tail
        stream = self._ask(lambda: self._client.api.logs(name, **options))
        if stream is None:
            return
        try:
            with self._typed_failures():
                yield from stream
        finally:
            stream.close()

    def stop(self, name: str, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s` seconds; a stopped container is not restarted by its policy."""
        # the engine answers only when the container has ended, so the wait for the answer includes the grace
        self._ask(lambda: self._client.api.stop(name, timeout=int(grace_s)))

    def remove(self, name: str) -> None:
        """Remove a stopped container with its anonymous volumes; named volumes stay."""
        self._ask(lambda: self._client.api.remove_container(name, v=True))

    def image_inside(self, name: str, argv: Sequence[str], within_s: float) -> tuple[int, str, str]:
        """Run `argv` in a throw-away container of the image, without network, as the image's user.

        Returns its exit code, stdout and stderr. Raises CouldNotRun when it does not end within `within_s` seconds;
        the container is removed in every case.
        """
        api = self._client.api
        created = self._ask(
            lambda: api.create_container(
                name,
                command=list(argv[1:]),
                entrypoint=[argv[0]],
                host_config=api.create_host_config(network_mode="none", init=True),
            )
        )
        if created is None:
            raise CouldNotRun(f"there is no image {name}", "build it, or name one that `docker images` lists")
        try:
            self._ask(lambda: api.start(created["Id"]))
            code = self._wait(created["Id"], within_s)
            out, err = (
                (self._ask(lambda out=out: api.logs(created["Id"], stdout=out, stderr=not out)) or b"").decode(
                    "utf-8", "replace"
                )
                for out in (True, False)
            )
            return code, out, err
        finally:
            self._ask(lambda: api.remove_container(created["Id"], v=True, force=True))

    @contextmanager
    def throwaway(
        self, image: str, argv: Sequence[str], gpus: bool, labels: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """The id of a container of `image` that runs `argv`, without a network; removed at the end in every case.

        gpus: with all GPUs, the host's shared memory and the limits that a server's service has.
        """
        import docker.types

        api = self._client.api
        requests = [docker.types.DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu"]])] if gpus else None
        host = api.create_host_config(
            network_mode="none",
            init=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            device_requests=requests,
            ipc_mode="host" if gpus else None,
            shm_size=None if gpus else "1g",
            ulimits=[docker.types.Ulimit(name="memlock", soft=-1, hard=-1)] if gpus else None,
        )
        made = self._ask(
            lambda: api.create_container(
                image, command=list(argv[1:]), entrypoint=[argv[0]], labels=dict(labels or {}), host_config=host
            )
        )
        if made is None:
            raise CouldNotRun(f"there is no image {image}", "build it: invoke build, or set SM86_IMAGE")
        try:
            self._ask(lambda: api.start(made["Id"]))
            yield str(made["Id"])
        finally:
            self._ask(lambda: api.remove_container(made["Id"], v=True, force=True))

    def _wait(self, container_id: str, within_s: float) -> int:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            facts = self.container(container_id)
            if facts is not None and not facts.is_up:
                return facts.exit_code or 0
            time.sleep(0.2)
        raise CouldNotRun(f"the container did not end within {within_s:.0f} s", "see whether the machine is overloaded")

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """What `question` gets from the SDK's low-level API; None where the engine knows no such thing."""
        return self._ask(lambda: question(self._client.api))

    def image_history(self, name: str) -> tuple[tuple[str, int], ...]:
        """(command that made it, bytes) of each layer, newest first; empty where there is no such image."""
        rows = self._ask(lambda: self._client.api.history(name)) or []
        return tuple((str(row.get("CreatedBy") or ""), int(row.get("Size") or 0)) for row in rows)

    def image_export(self, name: str) -> Iterator[bytes]:
        """The image with its name, as the stream that `docker save` writes. Raises CouldNotRun where there is none."""
        stream = self._ask(lambda: self._patient(lambda api: api.get_image(name)))
        if stream is None:
            raise CouldNotRun(f"there is no image {name}", "build it, or name one that `docker images` lists")
        with self._typed_failures():
            yield from stream

    def image_import(self, stream: IO[bytes]) -> tuple[str, ...]:
        """Load images from such a stream; their names. An engine may take a stream without an image for success."""
        rows = self._ask(lambda: self._patient(lambda api: list(api.load_image(stream)))) or []
        words = [str(row.get("stream") or "").strip() for row in rows if isinstance(row, dict)]
        errors = [str(row["error"]) for row in rows if isinstance(row, dict) and row.get("error")]
        if errors:
            raise EngineRefused(
                f"the Docker engine refused the archive: {errors[0]}", "save it again, or copy it again"
            )
        return tuple(word.split(": ", 1)[1] for word in words if word.startswith("Loaded image"))

    def _patient(self, question: Any) -> Any:
        """Ask with the patience that whole images take: engines pack one wholly before they send its first byte."""
        api = self._client.api
        before, api.timeout = api.timeout, IMAGE_WITHIN_S
        try:
            return question(api)
        finally:
            api.timeout = before

    def image_config(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The image's user and environment."""
        inspected = self._ask(lambda: self._client.api.inspect_image(name)) or {}
        config = inspected.get("Config") or {}
        return str(config.get("User") or ""), tuple(config.get("Env") or ())

    def _ask(self, question: Any) -> Any:
        import docker.errors

        try:
            with self._typed_failures():
                return question()
        except docker.errors.NotFound:
            return None

    @contextmanager
    def _typed_failures(self) -> Iterator[None]:
        import docker.errors

        try:
            yield
        except (docker.errors.NotFound, GeneratorExit, CouldNotRun):
            raise
        except Exception as error:
            raise _typed(error, self.facts.endpoint) from None


def _endpoint(client: Any) -> str:
    """The address the client really uses, also when a docker context named it."""
    custom = getattr(client.api, "_custom_adapter", None)
    path = getattr(custom, "socket_path", "")
    if path:
        return f"unix://{path}"
    ssh = getattr(custom, "ssh_host", "")
    return f"ssh://{ssh}" if ssh else str(client.api.base_url)


def _typed(error: BaseException, endpoint: str) -> CouldNotRun:
    """The failure that an exception of the SDK, of requests or of the socket means."""
    import docker.errors
    import requests.exceptions

    chain = list(_chain(error))

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(item, kinds) for item in chain)

    words = next((str(item) for item in chain if str(item)), type(error).__name__)
    evidence = tuple(line for line in words.splitlines() if line.strip())[:3]
    if has(PermissionError):
        return NoRights(
            f"this user may not talk to the Docker engine at {endpoint}",
            "sudo usermod -aG docker $USER and log in again, or run with sudo",
        )
    if has(FileNotFoundError, ConnectionRefusedError):
        if has(FileNotFoundError) and not docker_program():
            return NoDocker("Docker is not installed", "install Docker Engine 20.10 or newer")
        return EngineNotRunning(
            f"no Docker engine runs at {endpoint}",
            "start it (sudo systemctl start docker, or Docker Desktop)",
        )
    if has(requests.exceptions.Timeout, TimeoutError):
        return EngineHangs(
            f"the Docker engine at {endpoint} did not answer in time",
            "see its log (journalctl -u docker) and restart it",
        )
    if has(docker.errors.InvalidVersion) or "is too old" in words or "client version" in words:
        return EngineTooOld(
            f"the Docker engine at {endpoint} and this program share no API version",
            "update Docker to 20.10 or newer, and the Python package docker with it",
            evidence,
        )
    if has(docker.errors.TLSParameterError):
        return EngineConfused(
            f"the TLS settings for {endpoint} are wrong", "check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH", evidence
        )
    api = next((item for item in chain if isinstance(item, docker.errors.APIError)), None)
    if api is not None:
        told = " ".join(str(api.explanation or api).split())
        return EngineRefused(f"the Docker engine refused: {told}", "mend what it names, then run it again")
    if has(ConnectionError, requests.exceptions.ConnectionError):
        return EngineNotRunning(
            f"the connection to the Docker engine at {endpoint} failed",
            "see whether it runs (docker info)",
            evidence,
        )
    return EngineConfused(
        f"what answers at {endpoint} is not a usable Docker engine",
        "check DOCKER_HOST and docker context ls",
        evidence,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, and the errors that requests and urllib3 keep in their arguments."""
    waiting, seen = [error], set()
    while waiting:
        item = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        near: list[object] = [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
        for found in near:
            if isinstance(found, BaseException):
                waiting.append(found)
            elif isinstance(found, tuple):
                waiting.extend(part for part in found if isinstance(part, BaseException))
