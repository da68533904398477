"""Files that are never half written, and input that never makes a command wait: only regular files are read."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from io import BufferedReader
from pathlib import Path

from sm86.errors import CouldNotRun

NULL_DEVICE = os.makedev(1, 3)

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class NotRegular(OSError):
    """Something else than a regular file where a file is read. `strerror` says what, so that the words of any other
    read error fit it too."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        self.kind = kind

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path) -> BufferedReader:
    """The file, open for reading bytes; links are followed.

    Raises OSError as `open` does, and NotRegular for a folder, FIFO, device or socket: opening a FIFO waits until
    somebody writes, and reading a device may never end.
    """
    _require_regular(path, os.stat(path))
    # without O_NONBLOCK, what became a FIFO after the look would wait after all
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The bytes of a regular file. most: the largest size that is read. Raises OSError, NotRegular, and OSError with
    EFBIG for a larger file."""
    with open_regular(path) as file:
        data = file.read() if most is None else file.read(most + 1)
    if most is not None and len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return data


def _require_regular(path: Path, found: os.stat_result) -> None:
    # the null device is an empty file: the services mount it where no key file is given
    null = stat.S_ISCHR(found.st_mode) and found.st_rdev == NULL_DEVICE
    if not stat.S_ISREG(found.st_mode) and not null:
        raise NotRegular(path, _KINDS.get(stat.S_IFMT(found.st_mode), "no file"))


def require_writable(path: Path) -> None:
    """Raise CouldNotRun where `write_atomic` would: for a command that works long before it writes. Makes parent
    folders; the file itself is not touched."""
    _refuse_other_kinds(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise CouldNotRun(
            f"cannot write {path}: {error.strerror or error}", "make the folder writable, or give another name"
        ) from error


def _refuse_other_kinds(path: Path) -> None:
    """A device or FIFO must not be replaced by a file: for root that would be the machine's own /dev/null."""
    with contextlib.suppress(OSError):
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise CouldNotRun(f"cannot write {path}: it is {_KINDS.get(kind, 'no file')}", "give the name of a file")


def write_atomic(path: Path, data: str | bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Text is written as UTF-8 with the newlines it has. Parent folders are made. Raises CouldNotRun
    (no permission, full disk, a device or FIFO of that name); the old file is then still there and no temporary file is
    left.
    """
    _refuse_other_kinds(path)
    payload = data.encode("utf-8") if isinstance(data, str) else data
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise CouldNotRun(
            f"cannot write {path}: {error.strerror or error}",
            "make the folder writable, or free some space, and run it again",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
