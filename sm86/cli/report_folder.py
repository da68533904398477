"""The folder that a report is written into: what an earlier report left there goes, what is another's stays."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular, write_atomic
from sm86.json_text import parse as parse_json

MANIFEST = ".sm86-report.json"
SCHEMA = "sm86.report-files"
VERSION = 1
MAX_BYTES = 1 << 20
LOOKS_LIKE_OURS = ("*.png", "*.html", "*.md")


@dataclass(frozen=True, slots=True)
class Written:
    """files: what the report consists of, in the order given; removed: files of an earlier report that this one does
    not have; foreign: pages and pictures in the folder that no report is known to have written as they are now."""

    files: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()
    foreign: tuple[Path, ...] = ()


def write_folder(out: Path, files: Mapping[str, str | bytes]) -> Written:
    """Write the files (by name) into `out`, in their order, then remove what an earlier report wrote and this one did
    not. A file is an earlier report's only while its bytes are those that the manifest beside it tells: a changed one
    is its changer's. Raises CouldNotRun where something cannot be written, or would be written over a file that no
    report wrote; nothing is removed then.
    """
    _require_folder(out)
    before = _read(out)
    new = {name: _digest(data.encode("utf-8") if isinstance(data, str) else data) for name, data in files.items()}
    for name in new:
        if os.path.lexists(out / name) and not _is(out / name, [*before.get(name, ()), *new[name]]):
            raise CouldNotRun(
                f"{out / name} is no report's, or was changed since, and would be written over",
                "move it away, or give another folder (--out)",
            )
    # either state of a file is known from here on, so that an interruption leaves none that nobody owns
    _save(out, {name: [*before.get(name, ()), *new.get(name, ())] for name in {**before, **new}})
    for name, data in files.items():
        write_atomic(out / name, data)
    removed = []
    for name in sorted(before.keys() - new.keys()):
        if _is(out / name, before[name]):
            with contextlib.suppress(OSError):
                (out / name).unlink()
                removed.append(out / name)
    _save(out, new)
    return Written(tuple(out / name for name in files), tuple(removed), _foreign(out, files))


def _require_folder(out: Path) -> None:
    """Raise CouldNotRun where something else has the folder's name, or its list's, before anything is written."""
    if os.path.lexists(out) and not out.is_dir():
        what = "a link to nothing" if not out.exists() else "no folder"
        raise CouldNotRun(f"{out} is {what}, and a report is a folder", "move it away, or give another folder (--out)")
    if (out / MANIFEST).exists() and not (out / MANIFEST).is_file():
        raise CouldNotRun(f"{out / MANIFEST} is no file", "move it away, or give another folder (--out)")


def _foreign(out: Path, files: Mapping[str, str | bytes]) -> tuple[Path, ...]:
    found = (path for pattern in LOOKS_LIKE_OURS for path in out.glob(pattern))
    return tuple(sorted(path for path in found if path.name not in files and not path.name.startswith(".")))


def _read(out: Path) -> dict[str, list[str]]:
    """Names and digests of an earlier report; none where there is no manifest that can be believed."""
    try:
        values = parse_json(read_regular(out / MANIFEST, MAX_BYTES))
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or (values.get("schema"), values.get("version")) != (SCHEMA, VERSION):
        return {}
    files = values.get("files")
    found = files.items() if isinstance(files, dict) else ()
    return {name: digests for name, digests in found if _is_plain(name) and _are_texts(digests)}


def _is_plain(name: str) -> bool:
    """Whether it names a file of the folder itself, whoever wrote the manifest."""
    return name not in ("", ".", "..", MANIFEST) and not set(name) & {"/", "\\", "\0"}


def _are_texts(digests: object) -> bool:
    return isinstance(digests, list) and all(isinstance(digest, str) for digest in digests)


def _is(path: Path, digests: Sequence[str]) -> bool:
    if path.is_symlink():
        return False
    try:
        return _digest(read_regular(path))[0] in digests
    except OSError:
        return False


def _digest(data: bytes) -> list[str]:
    return [hashlib.sha256(data).hexdigest()]


def _save(out: Path, files: Mapping[str, Sequence[str]]) -> None:
    values = {"schema": SCHEMA, "version": VERSION, "files": dict(sorted(files.items()))}
    try:
        write_atomic(out / MANIFEST, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    except CouldNotRun as error:
        raise CouldNotRun(error.what.replace(str(out / MANIFEST), str(out)), error.mend) from None
