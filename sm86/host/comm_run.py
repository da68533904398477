"""Running the driver of the comm matrix: as a process of this machine, or in a throw-away container of the image."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import IO

from sm86.errors import CheckFailed, CouldNotRun
from sm86.host.docker import DockerGateway

DRIVER = ("-P", "-m", "sm86.comm.driver")
LABEL = "sm86.comm"
TICK_S = 0.5
END_S = 10.0


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """One matrix at a time on this machine: two would measure each other. Raises CouldNotRun."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    except OSError as error:
        raise CouldNotRun(
            f"cannot write {file}: {error.strerror}", "make the folder writable, or free some space"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CouldNotRun("another invoke comm measures at this moment", "wait until it has ended") from None
        yield


def local_lines(python: Path, plan: str, search: Mapping[str, str], within_s: float) -> Generator[str]:
    """The driver's output, line by line, with this interpreter; ends with it, and ends it in every case.

    search: PYTHONPATH where the product is not installed there. Raises CheckFailed: no end within `within_s` seconds,
    or an exit code other than 0.
    """
    child = subprocess.Popen(
        [str(python), *DRIVER, plan],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **search},
        start_new_session=True,
    )
    assert child.stdout is not None and child.stderr is not None
    errors: list[bytes] = []
    listener = threading.Thread(target=lambda: errors.append(child.stderr.read()), daemon=True)  # type: ignore[union-attr]
    listener.start()
    try:
        yield from _bounded(_chunks(child.stdout), within_s)
        code = child.wait(END_S)
        listener.join(END_S)
        _require_good(code, b"".join(errors).decode("utf-8", "replace"))
    finally:
        _end(child)


def _chunks(pipe: IO[bytes]) -> Iterator[bytes]:
    while chunk := os.read(pipe.fileno(), 1 << 16):
        yield chunk


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
    if child.poll() is None:
        # the ranks end by themselves when the driver's end of their pipe closes
        child.kill()
        child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def container_lines(docker: DockerGateway, image: str, plan: str, gpus: bool, within_s: float) -> Generator[str]:
    """The same in a container of the image, with the service's own limits and without a network; it is removed."""
    with docker.throwaway(image, ("python3", *DRIVER, plan), gpus, {LABEL: "1"}) as container:
        yield from _bounded(docker.log_stream(container, follow=True), within_s)
        facts = docker.container(container)
        code = facts.exit_code if facts is not None and not facts.is_up else None
        words = b"".join(docker.log_stream(container, follow=False, tail=5)).decode("utf-8", "replace")
        _require_good(code or 0, words)


def _require_good(code: int, words: str) -> None:
    if code:
        evidence = tuple(line for line in words.splitlines() if line.strip())[-5:]
        raise CheckFailed(
            f"the comm matrix ended early, with exit code {code}",
            "see its last words; the rows it had measured are not kept",
            evidence,
        )


def _bounded(chunks: Iterator[bytes], within_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """Whole lines of a stream that may block: read in a thread, so that an interrupt and the limit are heeded."""
    waiting: queue.Queue[bytes | Exception | None] = queue.Queue()

    def pump() -> None:
        try:
            for chunk in chunks:
                waiting.put(chunk)
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    threading.Thread(target=pump, daemon=True, name="comm output").start()
    deadline, rest = clock() + within_s, b""
    while True:
        try:
            item = waiting.get(timeout=TICK_S)
        except queue.Empty:
            if clock() >= deadline:
                raise CheckFailed(
                    f"the comm matrix did not end within {within_s / 60:.0f} minutes",
                    "a process may hang inside the driver: see dmesg for Xid errors",
                ) from None
            continue
        if isinstance(item, Exception):
            raise item
        if item is None:
            if rest:
                yield rest.decode("utf-8", "replace")
            return
        *whole, rest = (rest + item).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
