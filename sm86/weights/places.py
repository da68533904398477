"""How a checkpoint came to lie where it lies: a plain folder, a model hub's cache, or a folder that its tool filled.

A hub cache (huggingface_hub) is `models--OWNER--NAME/` with `blobs/HASH`, `snapshots/COMMIT/FILE` as links into it, and
`refs/BRANCH` that holds a commit. A folder filled by the same library has `.cache/huggingface/download/FILE.metadata`,
whose first line is the commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular

FOLDER, HUB_CACHE, HUB_DOWNLOAD = "folder", "hub cache", "hub download"

LOCK_SUFFIX = ".lock.json"
COMMIT = re.compile(r"[0-9a-f]{40}")

_CACHE = re.compile(r"models--(?P<owner>[^-].*?)--(?P<name>.+)")
_METADATA = Path(".cache/huggingface/download/config.json.metadata")


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's folder. repository ("OWNER/NAME") and revision (a commit): None where the place does not say."""

    folder: Path
    layout: str
    repository: str | None = None
    revision: str | None = None

    @property
    def lock_path(self) -> Path:
        """Where its lock file lies: beside the folder, so that the folder may be read-only; beside the whole cache
        for a snapshot, whose folder must hold nothing else."""
        whole = self.folder.absolute()
        if self.layout == HUB_CACHE:
            cache = whole.parents[1]
            return cache.with_name(f"{cache.name}.{whole.name[:12]}{LOCK_SUFFIX}")
        return whole.with_name(whole.name + LOCK_SUFFIX)


def locate(path: Path) -> Place:
    """The checkpoint that the path means. Raises CouldNotRun: no such folder, a cache that holds none, or several."""
    try:
        if not path.is_dir():
            if path.is_symlink() and not path.exists():
                raise CouldNotRun(f"{path} is a link to {path.readlink()}, which is not there", "mend the link")
            problem = "is not there" if not path.exists() else "is no folder"
            raise CouldNotRun(f"{path} {problem}", "give the folder that holds the checkpoint's config.json")
        found = _CACHE.fullmatch(path.absolute().name)
        folder = _snapshot(path) if found and (path / "snapshots").is_dir() else path
    except OSError as error:
        raise CouldNotRun(
            f"{path} cannot be read: {error.strerror}", "give a folder that you may read (chmod -R a+rX)"
        ) from None
    whole = folder.absolute()
    cache = _CACHE.fullmatch(whole.parents[1].name) if len(whole.parents) > 1 else None
    if cache and whole.parent.name == "snapshots":
        revision = whole.name if COMMIT.fullmatch(whole.name) else None
        return Place(folder, HUB_CACHE, f"{cache['owner']}/{cache['name']}", revision)
    commit = _first_line(folder / _METADATA)
    if commit is not None:
        return Place(folder, HUB_DOWNLOAD, None, commit if COMMIT.fullmatch(commit) else None)
    return Place(folder, FOLDER)


def _snapshot(cache: Path) -> Path:
    """The snapshot that the cache's branch `main` names, or its only one."""
    snapshots = sorted(entry for entry in (cache / "snapshots").iterdir() if entry.is_dir())
    main = _first_line(cache / "refs" / "main")
    for entry in snapshots:
        if entry.name == main:
            return entry
    if len(snapshots) == 1:
        return snapshots[0]
    if not snapshots:
        raise CouldNotRun(f"{cache} holds no snapshot", "fetch the checkpoint again (invoke model.fetch)")
    raise CouldNotRun(
        f"{cache} holds {len(snapshots)} snapshots",
        f"give one of them: {', '.join(str(entry) for entry in snapshots[:4])}",
    )


def _first_line(path: Path) -> str | None:
    try:
        lines = read_regular(path, 4096).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return lines[0].strip() if lines else None
