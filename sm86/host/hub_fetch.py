"""Fetching a checkpoint from the model hub: resumable, checked, nothing under its final name that is not whole.

A file grows as `.sm86-fetch/HASH-NAME.part` in the target folder and gets its name when its hash is right. What breaks
off, by itself or by Ctrl-C, goes on from there in the next run; a part is named by the hash of what it will be, so that
another revision never continues it. `.sm86-fetch/done.json` stays: it spares the next run the hashing of what is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.errors import CheckFailed, CouldNotRun
from sm86.files import open_regular, read_regular, write_atomic
from sm86.host.hub import Hub, Listing, RemoteFile
from sm86.host.hub_transfer import CHUNK, Digests, Progress, Transfer, disk
from sm86.json_text import parse as parse_json

WORK = ".sm86-fetch"
STATE = "done.json"
CONNECTIONS = 4
SPARE_BYTES = 1 << 30
"""Left free on the disk: it is rarely ours alone."""

OTHER_FORMATS = frozenset({".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5", ".ckpt", ".ot", ".py"})
"""Weights in other formats, and code: nothing of a repository is run here."""

HIDDEN = "."


@dataclass(frozen=True, slots=True)
class Todo:
    """What there is to do. present: files that are there already; held: bytes that parts hold; free: of the disk."""

    files: tuple[RemoteFile, ...]
    present: tuple[RemoteFile, ...]
    held: int
    free: int

    @property
    def missing_bytes(self) -> int:
        return sum(file.size for file in self.files) - self.held

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in (*self.files, *self.present))


def wanted_files(listing: Listing) -> tuple[RemoteFile, ...]:
    """The files that serving needs: weights as safetensors, configuration, tokenizer, and the texts beside them."""
    return tuple(
        file
        for file in listing.files
        if not file.name.startswith(HIDDEN) and Path(file.name).suffix.lower() not in OTHER_FORMATS
    )


@dataclass(slots=True)
class Fetch:
    """One fetch into one folder. wait: sleeps that many seconds (a test passes its own)."""

    hub: Hub
    listing: Listing
    target: Path
    progress: Progress
    wait: Callable[[float], object]
    connections: int = CONNECTIONS

    def look(self, check: bool = True) -> Todo:
        """What is there and what is missing. check: hash files whose contents nobody has checked yet, or take those
        of the right size as they are (a dry run)."""
        known = self._known()
        missing: list[RemoteFile] = []
        present: list[RemoteFile] = []
        for file in wanted_files(self.listing):
            (present if self._is_there(file, known, check) else missing).append(file)
        held = sum(min(_size(self._part(file)), file.size) for file in missing)
        return Todo(tuple(missing), tuple(present), held, _free(self.target))

    def run(self) -> dict[str, tuple[int, str]]:
        """Fetch what is missing; gives size and SHA-256 of every file by name.

        Raises CouldNotRun (disk, network, hub; what has come is kept) and CheckFailed (contents that are not what the
        hub lists, twice).
        """
        with self._alone():
            todo = self.look()
            require_room(todo, self.target)
            self._in_parallel(sorted(todo.files, key=lambda file: -file.size))
            known = self._known()
            return {file.name: (file.size, known[file.name]["sha256"]) for file in wanted_files(self.listing)}

    def tidy(self) -> None:
        """Remove the parts of other revisions, after a fetch that is whole."""
        for part in (self.target / WORK).glob("*.part"):
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        work = self.target / WORK
        try:
            work.mkdir(parents=True, exist_ok=True)
            handle = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CouldNotRun(
                f"cannot write to {self.target}: {error.strerror}", "give a folder that this user may write to"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise CouldNotRun(f"another fetch into {self.target} is running", "wait for it, or end it") from None
        try:
            yield
        finally:
            os.close(handle)

    def _part(self, file: RemoteFile) -> Path:
        # the name too: two files may have the same contents, and come at the same time
        return self.target / WORK / f"{_key(file)[:20]}-{file.name}.part"

    def _known(self) -> dict[str, Any]:
        """Files checked before: name -> size, modification time and SHA-256."""
        try:
            values = parse_json(read_regular(self.target / WORK / STATE, 16 << 20))
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def _is_there(self, file: RemoteFile, known: dict[str, Any], check: bool) -> bool:
        path = self.target / file.name
        if _size(path) != file.size or not path.is_file():
            return False
        note = known.get(file.name)
        if (
            isinstance(note, dict)
            and note.get("mtime_ns") == path.stat().st_mtime_ns
            and note.get("hash") == _key(file)
        ):
            return True
        if not check:
            return True
        self.progress.say(f"{file.name} is there: checking it")
        digests = Digests(file)
        try:
            with open_regular(path) as there:
                while data := there.read(CHUNK):
                    digests.update(data)
        except OSError as error:
            self.progress.say(f"{file.name} cannot be read ({error.strerror}), and is fetched anew")
            return False
        if not digests.right():
            self.progress.say(f"{file.name} has other contents than the hub lists, and is fetched anew")
            return False
        self._note(file, digests.sha256)
        return True

    _noting = threading.Lock()

    def _note(self, file: RemoteFile, sha256: str) -> None:
        with self._noting:
            stamp = (self.target / file.name).stat().st_mtime_ns
            values = {**self._known(), file.name: {"hash": _key(file), "sha256": sha256, "mtime_ns": stamp}}
            write_atomic(self.target / WORK / STATE, json.dumps(values))

    def _in_parallel(self, files: list[RemoteFile]) -> None:
        waiting: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
        for file in files:
            waiting.put(file)
        stop = threading.Event()
        faults: list[BaseException] = []

        def work() -> None:
            while not stop.is_set():
                try:
                    file = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._fetch(file, stop)
                except BaseException as fault:
                    faults.append(fault)
                    stop.set()

        # daemons: one that waits for a silent server must not keep an interrupted command alive
        workers = [threading.Thread(target=work, daemon=True) for _ in range(min(self.connections, len(files)))]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.2)
        except BaseException:
            stop.set()
            for worker in workers:
                worker.join(1.0)
            raise
        if faults:
            raise faults[0]

    def _fetch(self, file: RemoteFile, stop: threading.Event) -> None:
        part = self._part(file)
        for again in (False, True):
            digests = Transfer(self.hub, self.listing, file, part, self.progress, self.wait, stop).receive()
            if digests is None:
                return
            if digests.right():
                self._name(part, file, digests.sha256)
                return
            part.unlink(missing_ok=True)
            self.progress.advance(-file.size)
            if again:
                raise CheckFailed(
                    f"{file.name} came twice with other contents than the hub lists (SHA-256 {digests.sha256[:12]}...)",
                    "try another network or mirror: something on the way changes what it passes on",
                )
            self.progress.say(f"{file.name} came with other contents than the hub lists: once more, from its beginning")

    def _name(self, part: Path, file: RemoteFile, sha256: str) -> None:
        with disk(self.target):
            os.replace(part, self.target / file.name)
        self._note(file, sha256)
        self.progress.say(f"{file.name}: whole")


def require_room(todo: Todo, target: Path) -> None:
    """Raises CouldNotRun where the disk has no room for what is missing and SPARE_BYTES."""
    needed = todo.missing_bytes + SPARE_BYTES
    if todo.files and todo.free < needed:
        raise CouldNotRun(
            f"{target} has {todo.free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed for what is missing",
            "make room, or choose another folder (--to); nothing was fetched",
        )


def _key(file: RemoteFile) -> str:
    return file.sha256 or file.git_sha1 or ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1 if not path.name.endswith(".part") else 0


def _free(target: Path) -> int:
    place = target.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
