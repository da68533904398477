"""What lies in a checkpoint's folder: facts for the checks, and a hash that names the checkpoint. Reads no tensor.

The launcher looks here before it starts a server, `invoke model.check` when somebody asks: the same facts, and the
same hash in the manifest, in records and in lock files.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm86.files import open_regular, read_regular
from sm86.json_text import parse as parse_json
from sm86.weights import header

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX = ".safetensors"

MAX_CONFIG = 16 << 20
MAX_INDEX = 256 << 20
"""Bytes; what is larger is no such file, and is not read."""

_LFS = b"version https://git-lfs"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file. problem: what is wrong with it as a file, "" where nothing is; size in bytes.

    tensors: name -> type and shape, from its header; empty where there is a problem. data_bytes: theirs, together.
    """

    name: str
    size: int
    header_sha256: str
    problem: str = ""
    tensors: Mapping[str, header.Tensor] = field(default_factory=dict)
    data_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder as found. problem: why it could not be read at all, "" where it could.

    config: config.json; config_problem: why there is none. index: which file holds each tensor, None where there is no
    index; index_total: the bytes it claims, None where it does not say; index_problem: what is wrong with it.
    shards: the files that the index names, or the only ones there are. strangers: weight files that no index names.
    """

    path: Path
    problem: str = ""
    config: Mapping[str, Any] | None = None
    config_problem: str = ""
    index: Mapping[str, str] | None = None
    index_total: int | None = None
    index_problem: str = ""
    shards: tuple[Shard, ...] = ()
    strangers: tuple[str, ...] = ()
    sha256: str | None = None


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Without the search for circles among objects. Nothing here makes any, and it would walk a hundred thousand
    tensors again and again while they come: a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def look(path: Path) -> ModelFolder:
    """The facts; never raises for what it finds."""
    with no_collector():
        return _look(path)


def _look(path: Path) -> ModelFolder:
    problem = _folder_problem(path)
    if problem:
        return ModelFolder(path, problem=problem)
    config_bytes, config_problem = read(path / CONFIG, MAX_CONFIG)
    config = None
    if config_bytes is not None:
        config, config_problem = json_object(config_bytes, CONFIG)
    found = _weight_files(path)
    shards = tuple(_shard(path, name) for name in found.names)
    sha256 = None
    if config_bytes is not None and shards and not any(shard.problem for shard in shards):
        sha256 = _model_hash(config_bytes, found.index_bytes, shards)
    return ModelFolder(
        path,
        "",
        config,
        config_problem,
        found.index,
        found.total,
        found.problem,
        shards,
        _strangers(path, found.names),
        sha256,
    )


def read(path: Path, most: int) -> tuple[bytes | None, str]:
    """The file's bytes and "", or None and what is wrong, in words that begin with the file's name."""
    try:
        return read_regular(path, most), ""
    except OSError as error:
        return None, f"{path.name} {why(path, error)}"


def json_object(data: bytes, name: str) -> tuple[dict[str, Any] | None, str]:
    """The JSON object of those bytes and "", or None and what is wrong."""
    if data.startswith(_BOM):
        # Python would read it, most other readers would not
        return None, f"{name} begins with a byte order mark, which JSON does not allow"
    try:
        value = parse_json(data.decode("utf-8"))
    except ValueError:
        return None, f"{name} is not valid JSON"
    return (value, "") if isinstance(value, dict) else (None, f"{name} is no JSON object")


def why(path: Path, error: OSError) -> str:
    """Why a file could not be read, as the rest of a sentence."""
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return f"is a link to {os.readlink(path)}, which is not there"
        return "is not there"
    return f"cannot be read: {error.strerror}"


def _folder_problem(path: Path) -> str:
    try:
        if not path.exists():
            if path.is_symlink():
                return f"is a link to {os.readlink(path)}, which is not there"
            return "is not there"
        if not path.is_dir():
            return "is a file, not a folder"
        return "" if any(path.iterdir()) else "is empty"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


@dataclass(frozen=True, slots=True)
class _Found:
    names: tuple[str, ...]
    index_bytes: bytes = b""
    problem: str = ""
    index: Mapping[str, str] | None = None
    total: int | None = None


def _weight_files(path: Path) -> _Found:
    index = path / INDEX
    if os.path.lexists(index):
        data, problem = read(index, MAX_INDEX)
        if data is None:
            return _Found((), problem=problem)
        value, problem = json_object(data, INDEX)
        files = (value or {}).get("weight_map")
        if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
            return _Found((), data, problem or f"{INDEX} has no weight_map")
        names = tuple(sorted(set(files.values())))
        outside = next((name for name in names if not _is_plain_name(name)), None)
        if outside is not None:
            return _Found((), data, f"{INDEX} names {outside[:80]!r}, which is no file of this folder")
        metadata = (value or {}).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return _Found(names, data, "", files, total if type(total) is int else None)
    if os.path.lexists(path / SINGLE):
        return _Found((SINGLE,))
    alone = tuple(_weight_names(path))
    return _Found(alone, problem="" if alone else f"there is neither {INDEX} nor any .safetensors file")


def _is_plain_name(name: str) -> bool:
    return "/" not in name and name.isprintable() and name not in ("", ".", "..")


def _weight_names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir() if entry.suffix == SUFFIX)
    except OSError:
        return []


def _strangers(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in _weight_names(path) if names and name not in names)


def _shard(folder: Path, name: str) -> Shard:
    path = folder / name
    size = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(header.LENGTH_BYTES)
            if start == _LFS[: header.LENGTH_BYTES]:
                return Shard(name, size, "", "is a Git LFS pointer, not the weights")
            text = file.read(header.length_of(start, size))
        found = header.parse(text, size)
    except OSError as error:
        return Shard(name, size, "", why(path, error))
    except header.HeaderFault as fault:
        return Shard(name, size, "", str(fault))
    return Shard(name, size, hashlib.sha256(text).hexdigest(), "", found.tensors, found.data_bytes)


def _model_hash(config: bytes, index: bytes, shards: tuple[Shard, ...]) -> str:
    """SHA-256 over config.json, the index, and of every weight file its name, size and header's SHA-256.

    It tells checkpoints apart by their shapes, types and layout; the weights' own bytes are not read.
    """
    whole = hashlib.sha256()
    for part in (config, index):
        whole.update(hashlib.sha256(part).digest())
    for shard in shards:
        whole.update(f"{shard.name}\0{shard.size}\0{shard.header_sha256}\n".encode())
    return whole.hexdigest()
