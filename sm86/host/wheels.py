"""Local wheels for a build: found where the person or pip's configuration says, proven, linked into docker/wheels."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host.process import run
from sm86.image import wheels
from sm86.image.context import WHEELS
from sm86.image.pip_settings import find_links_folders, parse_listing

OVERRIDE = "SM86_WHEELS"


@dataclass(frozen=True, slots=True)
class LocalWheels:
    """used: names linked for the build; refused: names whose contents the lock does not accept."""

    used: tuple[str, ...]
    refused: tuple[str, ...]


def pip_settings() -> dict[str, str]:
    """This machine's pip settings by name; empty where pip cannot be asked."""
    try:
        listing = run((sys.executable, "-m", "pip", "config", "list"), timeout=30)
    except CouldNotRun:
        return {}
    return parse_listing(listing.out) if listing.ok else {}


def folders(given: str | None, environment: Mapping[str, str], settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Where to look: the folder given (--wheels, SM86_WHEELS), else the folders of pip's find-links setting.

    Raises CouldNotRun when a folder that was given does not exist.
    """
    named = given or environment.get(OVERRIDE)
    if named:
        folder = Path(named).expanduser()
        if not folder.is_dir():
            raise CouldNotRun(f"there is no folder of wheels {named}", "name the folder that holds the .whl files")
        return (folder,)
    return tuple(folder for name in find_links_folders(settings) if (folder := Path(name).expanduser()).is_dir())


def link(places: tuple[Path, ...], root: Path, lock: str) -> LocalWheels:
    """Put the wheels that the lock's text accepts into docker/wheels, by hard link where that is possible.

    Wheels that already lie there count as well. A file of the right name and other contents is not used.
    """
    target, accepted = root / WHEELS, wheels.digests(lock)
    used, refused = [], []
    for place in (target, *places):
        for name in wheels.wanted(sorted(os.listdir(place)) if place.is_dir() else (), lock):
            if name in used:
                continue
            if digest(place / name) not in accepted:
                refused.append(name)
                continue
            if place != target:
                _put(place / name, target / name)
            used.append(name)
    return LocalWheels(tuple(used), tuple(name for name in dict.fromkeys(refused) if name not in used))


def _put(source: Path, target: Path) -> None:
    beside = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), beside)
        except OSError:
            shutil.copyfile(source, beside)
        os.replace(beside, target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CouldNotRun(
            f"cannot put {source.name} into {WHEELS}: {error.strerror}", "make the folder writable, or free some space"
        ) from None


def digest(path: Path) -> str:
    """SHA-256 of the file, "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
