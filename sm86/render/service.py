"""Envelope -> the facts of its Compose service, each text already a Compose expression. Pure.

The template only lays them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm86.image.names import OFFICIAL_BASE, image_name, target_of
from sm86.launch.overrides import IMAGE_ID
from sm86.render import variables
from sm86.render.scalar import literal, variable
from sm86.spec.argv import CONTAINER_PORT, MODELS_DIR, serve_argv
from sm86.spec.envelope import Envelope
from sm86.spec.pins import Pins

PROJECT = "sm86"
"""The Compose project, whatever the clone's folder is called: container and volume names are fixed as well."""

KEY_TARGET = "/run/secrets/sm86_api_key"
CACHE_TARGET = "/cache"
LOCKS_TARGET = "/run/sm86"
LOCKS_VOLUME = "sm86-locks"
"""One volume for all envelopes: the launcher's locks only work in a place that all containers share."""

START_FACTOR = 2
"""Failed probes count after twice the expected boot: a first one compiles and reads weights from a cold disk."""

PROBE_INTERVAL_S = 10
PROBE_TIMEOUT_S = 10
PROBE_RETRIES = 6
"""A server that answers no more is called unhealthy after at most (10 s + 10 s) x 6 = 2 minutes."""

RESTARTS = 3

SHM_GPU = "16gb"
SHM_CPU = "1gb"
"""Limits, not reservations, of a container's own /dev/shm."""

LOG_FILE_MIB = 64
LOG_FILES = 4
"""256 MiB: a serving engine writes about 5 MiB a day besides a line for each request, and a boot less than 1 MiB."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount, read-only; the host's path must exist."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Volume:
    """A named volume. `name` is the same in the file and in the engine."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Service:
    """One Compose service. Texts are Compose expressions (`$` doubled, variables written out); durations in seconds."""

    name: str
    title: str
    caveat: str
    image: str
    pull_policy: str
    target: str
    build_args: tuple[tuple[str, str], ...]
    command: tuple[str, ...]
    environment: tuple[str, ...]
    mounts: tuple[Mount, ...]
    volumes: tuple[Volume, ...]
    port: str
    labels: tuple[tuple[str, str], ...]
    uses_gpu: bool
    expected_s: int
    start_period_s: int
    stop_grace_s: int


def service_of(envelope: Envelope, pins: Pins) -> Service:
    """The service that starts this envelope. Raises CouldNotRun for a value that Compose cannot carry."""
    target = target_of(envelope.engine)
    gpu = envelope.uses_gpu
    key = Mount(variable(variables.API_KEY_FILE, variables.NO_KEY_FILE), KEY_TARGET)
    weights = Mount(variable(variables.MODELS_DIR, variables.MODELS_DIR_DEFAULT), MODELS_DIR)
    return Service(
        name=envelope.name,
        title=envelope.title,
        caveat=envelope.caveat,
        image=variable(variables.IMAGE[target], image_name(target)),
        pull_policy=variable(variables.PULL, variables.PULL_DEFAULT),
        target=target,
        build_args=_build_args(target, pins),
        command=_command(envelope),
        environment=_environment(envelope),
        mounts=(weights, key) if gpu else (key,),
        volumes=(Volume(f"sm86-cache-{target}", CACHE_TARGET), Volume(LOCKS_VOLUME, LOCKS_TARGET)),
        port=f"{variable(variables.BIND, variables.BIND_DEFAULT)}"
        f":{variable(variables.PORT, variables.PORT_DEFAULT)}:{CONTAINER_PORT}",
        labels=(
            ("sm86.envelope", literal(envelope.name)),
            ("sm86.envelope-digest", envelope.digest()),
            ("sm86.status", literal(envelope.status)),
        ),
        uses_gpu=gpu,
        expected_s=envelope.boot.expected_s,
        start_period_s=min(START_FACTOR * envelope.boot.expected_s, envelope.boot.limit_s),
        stop_grace_s=60 if gpu else 30,
    )


def _command(envelope: Envelope) -> tuple[str, ...]:
    launcher = ("--envelope", envelope.name, "--envelope-digest", envelope.digest(), "--")
    model = f"{MODELS_DIR}/{envelope.model.folder}"
    serve = [literal(argument) for argument in serve_argv(envelope)]
    if envelope.uses_gpu:
        # only here a run may point at another checkpoint; the CPU image carries its own
        at = serve.index(literal(model))
        serve[at] = f"{literal(MODELS_DIR)}/{variable(variables.MODEL, envelope.model.folder)}"
    return (*map(literal, launcher), *serve)


def _environment(envelope: Envelope) -> tuple[str, ...]:
    own = dict(envelope.environment)
    per_run = {item.name for item in variables.PER_RUN if envelope.uses_gpu or item.name != variables.GPUS}
    lines = [
        f"{literal(name)}={variable(name, value) if name in per_run else literal(value)}" for name, value in own.items()
    ]
    # a name without a value: set on the host, it is passed on; unset, it is absent and not empty
    lines += [item.name for item in variables.PER_RUN if item.name in per_run and item.name not in own]
    return (*lines, IMAGE_ID)


def _build_args(target: str, pins: Pins) -> tuple[tuple[str, str], ...]:
    return (("BASE_IMAGE", variable(variables.BASE_IMAGE, OFFICIAL_BASE)),)
