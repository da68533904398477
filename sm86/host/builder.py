"""Finding a docker client that can build with BuildKit, and running it with its progress as it comes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host.process import run
from sm86.image.clients import Client, choose, client_version

ASK_S = 20
OVERRIDE = "SM86_DOCKER"
USUAL_PLACES = ("/usr/bin/docker", "/usr/local/bin/docker")

_NO_BUILDX = "install the buildx plugin (package docker-buildx-plugin, or docker-buildx on Ubuntu)"


def find_client(environment: Mapping[str, str] | None = None) -> Client:
    """The docker client to build with: SM86_DOCKER, else the first on PATH or in the usual places that can.

    Raises CouldNotRun: none there, or none with BuildKit (each one named).
    """
    environment = os.environ if environment is None else environment
    chosen = environment.get(OVERRIDE)
    programs = (chosen,) if chosen else tuple(_programs(environment.get("PATH", "")))
    clients = tuple(client for program in programs if (client := ask_client(program)))
    client = choose(clients)
    if client:
        return client
    if chosen:
        what = clients[0].describe() if clients else chosen
        raise CouldNotRun(f"{OVERRIDE} names {what}, which cannot build with BuildKit", f"unset it, or {_NO_BUILDX}")
    if not clients:
        raise CouldNotRun("there is no docker client", "install Docker Engine 20.10 or newer with its buildx plugin")
    raise CouldNotRun(
        f"no docker client can build with BuildKit: {', '.join(c.describe() for c in clients)}", _NO_BUILDX
    )


def ask_client(program: str) -> Client | None:
    """What the program at that path is; None where it is no docker client, cannot be run, or hangs."""
    try:
        version = client_version(run((program, "--version"), ASK_S).out)
        if version is None:
            return None
        return Client(program, version, run((program, "buildx", "version"), ASK_S).ok)
    except CouldNotRun:
        return None


def stream(
    argv: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path, on_line: Callable[[str], None]
) -> int:
    """Run to the end, each line of stdout and stderr to `on_line` and to the file `log`; the exit code.

    Ctrl-C is passed on to the client, which cancels the build, and then raised again.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # line by line, as a person who waits for an hour's step looks into it
    with log.open("w", encoding="utf-8", buffering=1) as file:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **environment},
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise CouldNotRun(f"cannot run {argv[0]}: {error.strerror}", "check its path and permissions") from None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                on_line(line)
            return process.wait()
        except BaseException:
            # its own session: the terminal's Ctrl-C did not reach it, so it is told once, and waited for
            process.send_signal(signal.SIGINT)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _programs(path: str) -> Iterator[str]:
    seen: set[str] = set()
    on_path = (shutil.which("docker", path=folder) for folder in path.split(os.pathsep) if folder)
    for program in (*on_path, *USUAL_PLACES):
        if program and os.access(program, os.X_OK) and (real := os.path.realpath(program)) not in seen:
            seen.add(real)
            yield program
