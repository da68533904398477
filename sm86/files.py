"""Files that are never half written: everything is written beside its place and renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from sm86.errors import CouldNotRun


def write_atomic(path: Path, data: str | bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Text is written as UTF-8 with the newlines it has. Parent folders are made. Raises CouldNotRun
    (no permission, full disk); the old file is then still there and no temporary file is left.
    """
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
