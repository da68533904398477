"""Rendered texts against the files that are there: what differs, and writing it. The only module here that writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.render.all import MARK

OWN_FOLDERS = ("compose",)
"""Folders where a rendered file that no longer follows from a spec is looked for."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that is not as the specs want it: `state` is "missing", "differs" or "stale" (it belongs to nothing)."""

    path: str
    state: str


def compare(files: Mapping[str, str], root: Path) -> tuple[Change, ...]:
    """What differs below `root`, by path. Raises CouldNotRun for a file that cannot be read."""
    changes = []
    for path, text in files.items():
        there = _read(root / path)
        if there is None:
            changes.append(Change(path, "missing"))
        elif there != text.encode():
            changes.append(Change(path, "differs"))
    changes += [Change(path, "stale") for path in _rendered(root) if path not in files]
    return tuple(sorted(changes, key=lambda change: change.path))


def apply(files: Mapping[str, str], changes: Sequence[Change], root: Path) -> None:
    """Write what is missing or differs, remove what is stale; every file whole or not at all."""
    for change in changes:
        path = root / change.path
        if change.state != "stale":
            write_atomic(path, files[change.path])
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CouldNotRun(f"cannot remove {path}: {error.strerror}", "make its folder writable") from error


def _rendered(root: Path) -> list[str]:
    """Files in the own folders that say they were rendered; a person's own files beside them are left alone."""
    found = []
    for folder in OWN_FOLDERS:
        for path in sorted((root / folder).glob("*.yaml")):
            content = _read(path)
            if content is not None and MARK.encode() in content.partition(b"\n")[0]:
                found.append(path.relative_to(root).as_posix())
    return found


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror}", "it must be a readable file") from error
