"""Which revision a folder of files is, read from a few files of git without the git command.

`docker compose build` on a fresh clone runs no command of this product and hands no revision to the build; the
build context carries `.git/HEAD`, the branch refs and the index instead, and this module reads them.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SYMLINK, _GITLINK = 0o120000, 0o160000


@dataclass(frozen=True, slots=True)
class GitFacts:
    """rev: the full revision, or "unknown"; dirty: whether files differ from it, None where that cannot be told."""

    rev: str
    dirty: bool | None


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One tracked file: its path, mode and the id of its contents."""

    path: str
    mode: int
    digest: str


def read_git(root: Path, paths: Iterable[str]) -> GitFacts:
    """Facts of the checkout at `root`, of which only `paths` (files or folders below it) are there to compare.

    dirty is True when a tracked file below `paths` is missing or differs, or when a file is there that git does
    not track; None when the index is missing, or holds changes that were staged and perhaps not committed.
    """
    rev = head_revision(root / ".git")
    try:
        entries, settled = read_index((root / ".git" / "index").read_bytes())
    except (OSError, ValueError):
        return GitFacts(rev, None)
    if _differs(root, tuple(paths), entries):
        return GitFacts(rev, True)
    return GitFacts(rev, False if settled and rev != UNKNOWN else None)


def head_revision(git: Path) -> str:
    """What HEAD points to: a bare revision, a branch's own file, or a packed one."""
    head = _text(git / "HEAD")
    if head.startswith("ref: "):
        ref = head.removeprefix("ref: ")
        if ".." in ref.split("/"):
            return UNKNOWN
        head = _text(git / ref) or next(
            (line.split(" ", 1)[0] for line in _text(git / "packed-refs").splitlines() if line.endswith(f" {ref}")), ""
        )
    return head if _REVISION.fullmatch(head) else UNKNOWN


def read_index(data: bytes) -> tuple[tuple[IndexEntry, ...], bool]:
    """Entries of git's index (version 2 or 3), and whether it is settled: equal to a tree that git has written.

    The index keeps the id of the tree that it equals (its TREE extension) and drops it as soon as something
    is staged. Raises ValueError for another version or damaged data. Source: git's gitformat-index.
    """
    if data[:4] != b"DIRC":
        raise ValueError("not a git index")
    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3):
        raise ValueError(f"git index of version {version}")
    if hashlib.sha1(data[:-20]).digest() != data[-20:] and any(data[-20:]):
        raise ValueError("git index is damaged")
    entries: list[IndexEntry] = []
    place = 12
    try:
        for _ in range(count):
            mode = struct.unpack_from(">I", data, place + 24)[0]
            digest = data[place + 40 : place + 60].hex()
            flags = struct.unpack_from(">H", data, place + 60)[0]
            start = place + 62 + (2 if flags & 0x4000 else 0)
            end = data.index(b"\0", start)
            entries.append(IndexEntry(data[start:end].decode("utf-8", "surrogateescape"), mode, digest))
            place += (end - place) // 8 * 8 + 8
        return tuple(entries), _has_tree(data, place)
    except struct.error:
        raise ValueError("git index is cut") from None


def blob_digest(contents: bytes) -> str:
    """Git's id of a file with these contents."""
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()


def _has_tree(data: bytes, place: int) -> bool:
    while place + 8 <= len(data) - 20:
        size = struct.unpack_from(">I", data, place + 4)[0]
        if data[place : place + 4] == b"TREE":
            # the root comes first: an empty name, NUL, its number of entries, which is -1 once something was staged
            return not data[place + 8 : place + 8 + size].startswith(b"\0-1")
        place += 8 + size
    return False


def _differs(root: Path, paths: tuple[str, ...], entries: Iterable[IndexEntry]) -> bool:
    tracked = {entry.path: entry for entry in entries if _below(entry.path, paths) and entry.mode != _GITLINK}
    if any(name not in tracked for name in _files(root, paths)):
        return True
    for name, entry in tracked.items():
        file = root / name
        try:
            contents = os.fsencode(os.readlink(file)) if entry.mode == _SYMLINK else file.read_bytes()
        except OSError:
            return True
        if blob_digest(contents) != entry.digest:
            return True
    return False


def _files(root: Path, paths: tuple[str, ...]) -> Iterator[str]:
    for name in paths:
        top = root / name
        if top.is_dir() and not top.is_symlink():
            yield from (str(file.relative_to(root)) for file in top.rglob("*") if file.is_symlink() or file.is_file())
        elif top.exists():
            yield name


def _below(name: str, paths: tuple[str, ...]) -> bool:
    return any(name == path or name.startswith(path + "/") for path in paths)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
