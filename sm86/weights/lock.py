"""A checkpoint's lock file: which repository and commit it is, and the size and SHA-256 of every file. Pure.

The same in form on every machine, with no time and no path in it, so that it can be committed and compared. It plays
the part of the hub's own file list for who has the files but no hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.files import read_regular
from sm86.json_text import parse as parse_json

SCHEMA = "sm86.model-lock"
VERSION = 1
MAX_BYTES = 16 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_PART = frozenset({".md", ".gitattributes", ".gitignore", ".png", ".jpg", ".jpeg", ".svg", ".pdf"})


@dataclass(frozen=True, slots=True)
class Locked:
    """One file: its size in bytes and the SHA-256 of its contents."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A checkpoint as it was locked. model_hash: `sm86.weights.folder`'s; files: by name, sorted."""

    repository: str | None
    revision: str | None
    model_hash: str
    files: Mapping[str, Locked]

    def text(self) -> str:
        """The file's contents; `read` gives the same lock back."""
        values = {
            "schema": SCHEMA,
            "version": VERSION,
            "repository": self.repository,
            "revision": self.revision,
            "model_hash": self.model_hash,
            "files": {name: {"size": file.size, "sha256": file.sha256} for name, file in sorted(self.files.items())},
        }
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read(path: Path) -> Lock:
    """The lock in a file. Raises CouldNotRun: missing, unreadable, no lock file, or one of another version."""
    mend = "give a file that invoke model.lock or model.fetch wrote"
    try:
        values = parse_json(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror}", mend) from None
    except ValueError:
        raise CouldNotRun(f"{path} is not JSON", mend) from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise CouldNotRun(f"{path} is no lock file of a checkpoint", mend)
    if values.get("version") != VERSION:
        raise CouldNotRun(
            f"{path} is a lock file of version {values.get('version')!r}; this program reads version {VERSION}",
            "use the program version that wrote it, or lock the checkpoint again",
        )
    try:
        return Lock(
            _text_or_none(values["repository"]),
            _text_or_none(values["revision"]),
            _sha256(values["model_hash"]),
            {
                _name(name): Locked(_size(file["size"]), _sha256(file["sha256"]))
                for name, file in values["files"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CouldNotRun(f"{path} is damaged: {error}", mend) from None


def is_part(name: str) -> bool:
    """Whether a file of the folder shapes what is served; read-me texts, pictures and hidden files do not."""
    return not name.startswith(".") and not (_NO_PART & {Path(name).suffix.lower(), name}) and name != "LICENSE"


def differences(lock: Lock, sizes: Mapping[str, int], hashes: Mapping[str, str]) -> list[str]:
    """What is not as locked, one line per file. sizes: the files that are there; hashes: SHA-256 of those read."""
    lines = []
    for name in sorted(set(lock.files) | {name for name in sizes if is_part(name)}):
        if name not in lock.files:
            lines.append(f"{name} is not in the lock file")
        elif name not in sizes:
            lines.append(f"{name} is not there")
        elif sizes[name] != lock.files[name].size:
            lines.append(f"{name} has {sizes[name]:,} bytes, locked are {lock.files[name].size:,}")
        elif name in hashes and hashes[name] != lock.files[name].sha256:
            lines.append(
                f"{name} has other contents than were locked: SHA-256 {hashes[name][:12]}..., "
                f"locked {lock.files[name].sha256[:12]}..."
            )
    return lines


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _name(name: Any) -> str:
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no file name")
    return name


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]} is no size")
    return value


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is no SHA-256")
    return value
