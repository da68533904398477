"""What lies in the model's folder: facts for the checks, and a hash that names the checkpoint. Reads no tensor."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.json_text import parse as parse_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 256 * 1024 * 1024
"""Bytes; a safetensors header is JSON of some MiB at most, so a larger length is no safetensors file."""

_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file. problem: what is wrong with it as a file, "" where nothing is; size in bytes."""

    name: str
    size: int
    header_sha256: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder as found. problem: why it could not be read at all, "" where it could.

    config: config.json; config_problem: why there is none. index_problem: of the weights' index. shards: the files
    that the index names, or the only ones there are.
    """

    path: Path
    problem: str = ""
    config: Mapping[str, Any] | None = None
    config_problem: str = ""
    index_problem: str = ""
    shards: tuple[Shard, ...] = ()
    sha256: str | None = None


def look(path: Path) -> ModelFolder:
    """The facts; never raises for what it finds."""
    problem = _folder_problem(path)
    if problem:
        return ModelFolder(path, problem=problem)
    config_bytes, config_problem = _read_file(path / "config.json")
    config = None
    if config_bytes is not None:
        config, config_problem = _object(config_bytes, "config.json")
    names, index_bytes, index_problem = _shard_names(path)
    shards = tuple(_shard(path, name) for name in names)
    sha256 = None
    if config_bytes is not None and shards and not any(shard.problem for shard in shards):
        sha256 = _model_hash(config_bytes, index_bytes, shards)
    return ModelFolder(path, "", config, config_problem, index_problem, shards, sha256)


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


def _read_file(path: Path) -> tuple[bytes | None, str]:
    try:
        return path.read_bytes(), ""
    except OSError as error:
        return None, f"{path.name} {_why(path, error)}"


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return f"is a link to {os.readlink(path)}, which is not there"
        return "is not there"
    return f"cannot be read: {error.strerror}"


def _object(data: bytes, name: str) -> tuple[dict[str, Any] | None, str]:
    try:
        value = parse_json(data)
    except ValueError:
        return None, f"{name} is not valid JSON"
    return (value, "") if isinstance(value, dict) else (None, f"{name} is no JSON object")


def _shard_names(path: Path) -> tuple[tuple[str, ...], bytes, str]:
    """Names of the weight files, the index's bytes, and what is wrong with the index."""
    index = path / INDEX
    if os.path.lexists(index):
        data, problem = _read_file(index)
        if data is None:
            return (), b"", problem
        value, problem = _object(data, INDEX)
        files = (value or {}).get("weight_map")
        if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
            return (), data, problem or f"{INDEX} has no weight_map"
        return tuple(sorted(set(files.values()))), data, ""
    if os.path.lexists(path / SINGLE):
        return (SINGLE,), b"", ""
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".safetensors")
    except OSError:
        names = []
    return tuple(names), b"", "" if names else f"there is neither {INDEX} nor any .safetensors file"


def _shard(folder: Path, name: str) -> Shard:
    path = folder / name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return Shard(name, 0, "", "is empty")
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if start == _LFS[:8]:
                return Shard(name, size, "", "is a Git LFS pointer, not the weights")
            if not 2 <= length <= MAX_HEADER:
                return Shard(name, size, "", "is no safetensors file")
            header = file.read(length)
    except OSError as error:
        return Shard(name, 0, "", _why(path, error))
    try:
        tensors = parse_json(header)
        ends = [value["data_offsets"][1] for key, value in tensors.items() if key != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        problem = "is cut short in its header" if len(header) < length else "is no safetensors file"
        return Shard(name, size, "", problem)
    if size < wanted:
        return Shard(
            name, size, "", f"has {size} bytes, but its header tells of {wanted}: the download is not complete"
        )
    return Shard(name, size, hashlib.sha256(header).hexdigest())


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
