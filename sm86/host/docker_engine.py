"""Engine `docker`: one service of the rendered Compose files, as a container that carries the envelope's name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host import compose, preflight
from sm86.host.compose import Compose, Service
from sm86.host.containers import ContainerFacts
from sm86.host.docker import DockerGateway
from sm86.host.engine import CREATED, EXITED, MISSING, RESTARTING, RUNNING, EngineState, Stopped
from sm86.host.timestamps import epoch
from sm86.image.names import target_of
from sm86.spec import Envelope
from sm86.spec.argv import CONTAINER_PORT

DIGEST_LABEL = "sm86.envelope-digest"
SERVICE_LABEL = "com.docker.compose.service"
CLONE_LABEL = "com.docker.compose.project.working_dir"
"""The folder that Compose was called for: the clone whose files made the container."""

IMAGE_ID = "SM86_IMAGE_ID"
"""How the launcher is told which image it runs in; nothing inside a container knows it."""

DEFAULT_GRACE_S = 30

_KINDS = {"created": CREATED, "running": RUNNING, "paused": RUNNING, "restarting": RESTARTING}


class NotOurs(CouldNotRun):
    """A container has the envelope's name and was not made from the rendered files, or from those of another clone."""


class DockerEngine:
    """One envelope's server as a container. Compose is only needed to start it, not to look or stop."""

    kind = "docker"

    def __init__(
        self,
        envelope: Envelope,
        docker: DockerGateway,
        root: Path,
        port: int | None = None,
        overrides: Mapping[str, str] | None = None,
        with_compose: Compose | None = None,
    ) -> None:
        """root: the folder of compose.yaml; port: the host port, None for what the shell, `.env` or the file says;
        overrides: settings of this run, handed to Compose as variables."""
        self.envelope = envelope
        self._docker = docker
        self._root = root
        self._overrides = dict(overrides or {})
        self._port = port
        self._compose = with_compose
        self._resolved: Service | None = None

    @property
    def base_url(self) -> str:
        facts = self._facts()
        published = facts.published(CONTAINER_PORT) if facts and facts.is_up else None
        if published:
            address, port = published
        else:
            service = self._service()
            address, port = service.host_address, service.host_port
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(address, address)
        return f"http://{host}:{port}"

    def describe(self) -> str:
        return f"container {self.envelope.name}"

    def plan(self) -> tuple[str, ...]:
        import shlex

        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(self._environment().items()))
        argv = compose.create_argv(self._needed_compose(), self._root, self.envelope.name, again=True)
        service = self._service()
        return (f"{settings}{shlex.join(argv)}", f"image: {service.image}", f"url: {self.base_url}")

    def check(self) -> str:
        """Everything that can be known before the container is made; the image's id. Raises what preflight finds."""
        self._docker.local_only()
        service = self._service()
        self._facts()
        # first what takes longest to mend, so that nobody builds an image for hours on a machine without GPUs
        if service.wants_gpu:
            preflight.require_gpus(self._docker.facts, self.envelope.serve.tensor_parallel)
        preflight.require_folders(service)
        image_id = preflight.require_image(self._docker, service, target_of(self.envelope.engine))
        preflight.require_port(self._docker, service)
        return image_id

    def start(self) -> None:
        """A new container in any case, so that its log and its restart count are this start's alone."""
        facts = self._facts()
        if facts and facts.is_up:
            raise CouldNotRun(
                f"{self.envelope.name} already runs as a container", f"invoke down --envelope {self.envelope.name}"
            )
        environment = {**self._environment(), IMAGE_ID: self.check()}
        try:
            compose.create(self._needed_compose(), self._root, self._service(), environment, again=True)
        except CouldNotRun:
            left = self._facts()
            if left and not left.is_up:
                self._docker.remove(left.id)
            raise

    def state(self) -> EngineState:
        facts = self._facts()
        if facts is None:
            return EngineState(MISSING)
        kind = _KINDS.get(facts.status, EXITED)
        code: int | None = facts.exit_code if kind in (EXITED, RESTARTING) else None
        oom = facts.oom_killed if kind in (EXITED, RESTARTING) else False
        if facts.restart_count and kind != EXITED:
            # the container runs again, so its own exit code and flag no longer tell of the end before
            deaths = self._docker.deaths(facts.id, epoch(facts.created_at))
            if deaths:
                code, oom = deaths[-1].exit_code, deaths[-1].oom_killed
        return EngineState(
            kind,
            code,
            oom,
            facts.restart_count,
            facts.restart_cap,
            facts.health,
            facts.error,
            facts.started_at,
            facts.image_id,
        )

    def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False) -> Iterator[bytes]:
        facts = self._facts()
        if facts is None:
            return iter(())
        # the engine notes the start a moment after the first words, but the end before it exactly
        runs_again = facts.restart_count > 0 and facts.status == "running"
        since = epoch(facts.finished_at) if this_run and runs_again else None
        return self._docker.log_stream(facts.id, follow, since, tail)

    def stop(self) -> Stopped:
        """Stop and remove this container only; named volumes (caches) and other envelopes stay."""
        began = time.monotonic()
        was = self.state()
        facts = self._facts()
        if facts is None:
            return Stopped(was, 0.0)
        if facts.is_up:
            self._docker.stop(facts.id, DEFAULT_GRACE_S if facts.stop_grace_s is None else facts.stop_grace_s)
        ended = self._docker.container(facts.id)
        forced = was.is_up and ended is not None and ended.exit_code == 137 and not ended.oom_killed
        self._docker.remove(facts.id)
        left = self._docker.container(facts.id)
        return Stopped(
            was, time.monotonic() - began, forced, (f"container {left.name} ({left.status})",) if left else ()
        )

    def halt(self) -> None:
        """Stop it from being restarted, and leave the container, its state and its log for inspection."""
        facts = self._facts()
        if facts and facts.is_up:
            self._docker.stop(facts.id, DEFAULT_GRACE_S if facts.stop_grace_s is None else facts.stop_grace_s)

    def differs(self) -> str | None:
        facts = self._facts()
        if facts is None:
            return None
        digest = facts.labels.get(DIGEST_LABEL)
        if digest != self.envelope.digest():
            return "its envelope was another one (the file has changed since)"
        published = facts.published(CONTAINER_PORT)
        if self._port is not None and published and published[1] != self._port:
            return f"it publishes port {published[1]}"
        for name, value in self._overrides.items():
            has = facts.environment.get(name)
            if has != value:
                return f"it has {name}={has}" if has is not None else f"it was started without {name}"
        return None

    def _facts(self) -> ContainerFacts | None:
        facts = self._docker.container(self.envelope.name)
        if facts and facts.labels.get(SERVICE_LABEL) != self.envelope.name:
            raise NotOurs(
                f"a container named {facts.name} was not made from the rendered files",
                f"look at it (docker inspect {facts.name}), then docker rm -f {facts.name}",
            )
        clone = facts.labels.get(CLONE_LABEL) if facts else None
        if facts and clone and Path(clone).resolve() != self._root.resolve():
            raise NotOurs(
                f"the container {facts.name} belongs to another clone, {clone}",
                f"use it from there (invoke down --envelope {facts.name} stops it), "
                f"or, if that clone is gone, docker rm -f {facts.name}",
            )
        return facts

    def _needed_compose(self) -> Compose:
        if self._compose is None:
            self._compose = compose.require_compose()
        return self._compose

    def _environment(self) -> dict[str, str]:
        port = {} if self._port is None else {"SM86_PORT": str(self._port)}
        return {**self._overrides, **port}

    def _service(self) -> Service:
        if self._resolved is None:
            self._resolved = compose.read_service(
                self._needed_compose(), self._root, self.envelope.name, self._environment()
            )
        return self._resolved
