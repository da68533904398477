"""How many bytes each installed package takes in an image, as its files are there now. Runs inside an image.

A package's own list (RECORD) names the files that it came with. What a build stripped, replaced or took away is
measured as it is; bytecode counts for its source's package, and a file that no list names for the package whose folder
it lies in.
"""

from __future__ import annotations

import csv
import importlib.metadata
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

DPKG_LISTS = Path("/var/lib/dpkg/info")
NOBODYS = "(of no package)"


def package_sizes() -> dict[str, dict[str, int]]:
    """Bytes by package, largest first, in "python" and in "debian"."""
    owners: dict[str, str] = {}
    roots: set[str] = set()
    for item in importlib.metadata.distributions():
        root = str(item.locate_file(""))
        roots.add(root)
        name = re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower()
        owners.update(dict.fromkeys(recorded(item.read_text("RECORD") or "", root), name))
    python = by_owner(_files(roots), owners, roots)
    return {"python": dict(python.most_common()), "debian": dict(debian(DPKG_LISTS).most_common())}


def recorded(record: str, root: str) -> Iterator[str]:
    """Paths that a RECORD's text names, whole and below `root`."""
    for row in csv.reader(record.splitlines()):
        if row:
            yield os.path.normpath(os.path.join(root, row[0]))


def by_owner(files: Iterable[tuple[str, int]], owners: Mapping[str, str], roots: Iterable[str]) -> Counter[str]:
    """Package -> bytes. files: (path, bytes); owners: path -> package; roots: folders that hold several packages."""
    shared = set(roots)
    folders: dict[str, str] = {}
    for path, name in owners.items():
        folder = os.path.dirname(path)
        while folder not in folders and folder not in shared and folder != os.path.dirname(folder):
            folders[folder] = name
            folder = os.path.dirname(folder)
    found: Counter[str] = Counter()
    for path, size in files:
        found[owners.get(path) or owners.get(_source(path)) or _nearest(path, folders, shared)] += size
    return found


def debian(lists: Path) -> Counter[str]:
    """Package -> bytes of the files that its list in `lists` names and that are there."""
    found: Counter[str] = Counter()
    for path in lists.glob("*.list"):
        for line in path.read_text(errors="replace").splitlines():
            if os.path.isfile(line) and not os.path.islink(line):
                found[path.stem.partition(":")[0]] += os.path.getsize(line)
    return found


def _files(roots: Iterable[str]) -> Iterator[tuple[str, int]]:
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                yield path, os.lstat(path).st_size


def _source(path: str) -> str:
    """The source that a file of bytecode was made of: `a/__pycache__/b.cpython-311.pyc` is of `a/b.py`."""
    folder, name = os.path.split(path)
    above, last = os.path.split(folder)
    return os.path.join(above, name.partition(".")[0] + ".py") if last == "__pycache__" else path


def _nearest(path: str, folders: Mapping[str, str], shared: set[str]) -> str:
    folder = os.path.dirname(path)
    while folder not in folders and folder not in shared and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folders.get(folder, NOBODYS)
