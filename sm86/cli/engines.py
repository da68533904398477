"""Which engine runs an envelope, and with what: the one place that puts the command line's choices together."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sm86.errors import CouldNotRun
from sm86.host.engine import ENGINES, ServerEngine
from sm86.launch import overrides as given
from sm86.spec import PROOF, Envelope, load_all, load_pins

if TYPE_CHECKING:
    from sm86.host.docker import DockerGateway

ROOT = Path(__file__).resolve().parents[2]
"""The clone: compose.yaml, .env and models/ lie at its top."""


def open_engine(
    envelope: Envelope,
    engine: str = "docker",
    port: str | int | None = None,
    overrides: Sequence[str] = (),
    to_start: bool = False,
    dry_run: bool = False,
    root: Path | None = None,
) -> ServerEngine:
    """The engine for one envelope. port: None for SM86_PORT of the shell or `.env`, else 8000; overrides: NAME=VALUE of
    this run; to_start: it will be started, so with --engine local its interpreter and model are looked up (the
    embedded default's are made, which takes minutes the first time); dry_run: they are only named.

    Raises CouldNotRun: unknown engine, wrong port or override, faulty `.env`, no Docker, no interpreter or model.
    """
    from sm86.cli.guard import whole_number

    if engine not in ENGINES:
        raise CouldNotRun(f"there is no engine {engine!r}", f"use one of: {', '.join(ENGINES)}")
    root = root or ROOT
    number = whole_number(port, "port", 1, 65535)
    settings = parse_overrides(overrides)
    check_dotenv(root)
    if engine == "docker":
        if envelope.status == PROOF:
            raise CouldNotRun(
                f"{envelope.name} proves the code path on a GPU that is no SM86; it has no Compose service",
                f"start it as a process on that machine: invoke up --envelope {envelope.name} --engine local",
            )
        from sm86.host.docker_engine import DockerEngine

        return DockerEngine(envelope, docker_engine(), root, number, settings)
    return _local(envelope, number, settings, to_start, dry_run, root)


def docker_engine() -> DockerGateway:
    """Docker's engine, for a command that takes --engine. Raises CouldNotRun, with the other engine in the mend."""
    from sm86.host.docker import require_engine

    with or_local():
        return require_engine()


@contextmanager
def or_local() -> Iterator[None]:
    """Adds the other engine to the mend of what keeps Docker's from being used."""
    from sm86.host.docker import LOCAL_ENGINE_HINT

    try:
        yield
    except CouldNotRun as error:
        error.mend = f"{error.mend}, {LOCAL_ENGINE_HINT}"
        raise


def parse_overrides(texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE texts, each a known override with a value of its form; a later one of the same name wins."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CouldNotRun(f"--override {text!r} is not NAME=VALUE", "write for example --override NCCL_ALGO=Ring")
        given.read(name, value, "--override")
        settings[name] = value
    return settings


def check_dotenv(root: Path = ROOT) -> None:
    """Raise CouldNotRun for the first fault of the clone's `.env`; none is right as well."""
    from sm86.render.dotenv import check_dotenv as check
    from sm86.render.variables import settings

    check(root / ".env", {variable.name for variable in settings(load_all())})


def _local(
    envelope: Envelope, port: int | None, overrides: dict[str, str], to_start: bool, dry_run: bool, root: Path
) -> ServerEngine:
    from sm86.cli.guard import whole_number
    from sm86.host.local import RUN_DIR, Launch, LocalEngine
    from sm86.host.settings import effective, read_dotenv
    from sm86.render.service import service_of
    from sm86.render.variables import PORT, PORT_DEFAULT

    dotenv = read_dotenv(root / ".env")
    text = effective(PORT, os.environ, dotenv, PORT_DEFAULT)
    number = port if port is not None else whole_number(text, PORT, 1024, 65535)
    assert number is not None
    launch = None
    if to_start or dry_run:
        python, model = _rig(envelope, dotenv, root) if envelope.uses_gpu else _embedded(envelope, root, dry_run)
        passed = {name: dotenv[name] for name in (*given.BY_NAME, *given.SETTINGS) if dotenv.get(name)}
        # the shell wins over .env, as it does with Compose
        own = {name: value for name, value in passed.items() if name not in os.environ}
        search = _search_path(root) if envelope.uses_gpu else {}
        launch = Launch(python, model, {**dict(envelope.environment), **own, **search})
    grace = float(service_of(envelope, load_pins()).stop_grace_s)
    return LocalEngine(envelope, number, launch, grace, root / RUN_DIR, overrides, port_matters=port is not None)


def _search_path(root: Path) -> dict[str, str]:
    """The launcher runs with -P, so a product that is not installed has to be on the search path by name."""
    import importlib.metadata

    try:
        importlib.metadata.version("sm86")
        return {}
    except importlib.metadata.PackageNotFoundError:
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}


def _rig(envelope: Envelope, dotenv: dict[str, str], root: Path) -> tuple[Path, Path]:
    from sm86.host.settings import effective
    from sm86.render.variables import MODEL, MODELS_DIR, MODELS_DIR_DEFAULT

    if importlib.util.find_spec("vllm") is None:
        raise CouldNotRun(
            f"this Python ({sys.executable}) has no vllm, so it cannot serve {envelope.name}",
            f"use the engine docker, or an environment with vllm {load_pins().version('vllm')} and this product in it",
        )
    models = Path(effective(MODELS_DIR, os.environ, dotenv, MODELS_DIR_DEFAULT))
    folder = effective(MODEL, os.environ, dotenv, envelope.model.folder)
    model = (root / models / folder).resolve()
    if not model.is_dir():
        raise CouldNotRun(
            f"there is no model at {model}",
            f"invoke model.fetch fetches it, or set {MODELS_DIR} to the folder that has {folder}",
        )
    return Path(sys.executable), model


def _embedded(envelope: Envelope, root: Path, dry_run: bool) -> tuple[Path, Path]:
    from sm86.embedded import environment

    if dry_run:
        folder = root / environment.FOLDER
        return folder / "venv/bin/python3", folder / "models" / envelope.model.folder
    return environment.ensure(root)
