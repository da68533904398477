"""SHA-256 of files, several at once: a checkpoint is 142 GiB, and one core hashes about 1.5 GB/s at best."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sm86.files import open_regular

CHUNK = 4 << 20
WORKERS = 4
"""More than a disk needs to be kept busy only adds seeks."""


def sha256_of(path: Path, advance: Callable[[int], None], stop: threading.Event) -> str | None:
    """The file's SHA-256; None when `stop` was set. advance: called with the bytes just read. Raises OSError."""
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            if stop.is_set():
                return None
            digest.update(view[:count])
            advance(count)
    return digest.hexdigest()


def hash_files(paths: Iterable[Path], advance: Callable[[int], None]) -> dict[Path, str | OSError]:
    """SHA-256 of every file, or why it could not be read. An interrupt ends it within a chunk."""
    stop = threading.Event()
    lock = threading.Lock()

    def counted(count: int) -> None:
        with lock:
            advance(count)

    def one(path: Path) -> str | OSError | None:
        try:
            return sha256_of(path, counted, stop)
        except OSError as error:
            return error

    listed = list(paths)
    with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        try:
            results = list(pool.map(one, listed))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {path: result for path, result in zip(listed, results, strict=True) if result is not None}
