"""Looking at a checkpoint and judging it, whole: what `invoke model.check` reports. Reads files, writes none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CheckFailed, CouldNotRun
from sm86.weights import folder, quantization, tokenizer
from sm86.weights.findings import Finding
from sm86.weights.hashing import hash_files
from sm86.weights.judge import Wanted, judge
from sm86.weights.lock import Lock, Locked, is_part
from sm86.weights.locked import judge_lock
from sm86.weights.places import HUB_CACHE, Place

SMALL_BYTES = 1 << 30
"""A file that holds no tensors and is larger is not hashed unasked."""

_SHA256 = re.compile(r"[0-9a-f]{64}")

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A judged checkpoint. lock: what it was compared with, if anything; hashed: whether every byte was read."""

    place: Place
    found: folder.ModelFolder
    findings: tuple[Finding, ...]
    lock: Lock | None
    hashed: bool

    @property
    def tensors(self) -> int:
        return sum(len(shard.tensors) for shard in self.found.shards)

    @property
    def weight_bytes(self) -> int:
        return sum(shard.size for shard in self.found.shards)

    @property
    def repository(self) -> str | None:
        return self.place.repository or (self.lock.repository if self.lock else None)

    @property
    def revision(self) -> str | None:
        return self.place.revision or (self.lock.revision if self.lock else None)


def inspect(place: Place, wanted: Wanted, lock: Lock | None, every_byte: bool, advance: Advance) -> Inspection:
    """Judge the checkpoint. every_byte: hash all files (minutes); advance: called with the bytes hashed.

    Raises CouldNotRun only where the folder itself cannot be listed.
    """
    with folder.no_collector():
        return _inspect(place, wanted, lock, every_byte, advance)


def _inspect(place: Place, wanted: Wanted, lock: Lock | None, every_byte: bool, advance: Advance) -> Inspection:
    found = folder.look(place.folder)
    if found.problem:
        raise CouldNotRun(
            f"{place.folder} {found.problem}", "give the folder that holds the checkpoint's config.json and weights"
        )
    sizes = file_sizes(place.folder)
    hashes: dict[str, str | OSError] | None = None
    small: dict[str, str | OSError] = {}
    if every_byte:
        small = hashes = _hashes(place.folder, sizes, advance)
    elif lock is not None:
        few = [name for name, size in sizes.items() if not name.endswith(folder.SUFFIX) and size <= SMALL_BYTES]
        small = _hashes(place.folder, few, lambda count: None)
    findings = judge(found, wanted, tokenizer.judge(place.folder, found.config))
    findings += judge_lock(
        lock,
        found,
        sizes,
        small,
        hashes,
        place.revision,
        _blobs(place),
    )
    return Inspection(place, found, tuple(findings), lock, every_byte)


def bytes_to_hash(place: Place) -> int:
    """How many bytes `inspect` with every_byte, or `make_lock`, reads."""
    return sum(file_sizes(place.folder).values())


def make_lock(place: Place, repository: str | None, revision: str | None, advance: Advance) -> Lock:
    """The lock of what lies there; every byte is read. Raises CheckFailed for a checkpoint that is not whole: a lock
    of damaged files would call the damage right."""
    found = folder.look(place.folder)
    problems = [found.problem, found.config_problem, found.index_problem]
    problems += [f"{shard.name} {shard.problem}" for shard in found.shards if shard.problem]
    problem = next((text for text in problems if text), "")
    if problem or found.sha256 is None:
        raise CheckFailed(
            f"{place.folder} is not whole: {problem}",
            f"invoke model.check {place.folder} shows what is wrong; nothing was locked",
        )
    sizes = file_sizes(place.folder)
    hashes = _hashes(place.folder, sizes, advance)
    files = {}
    for name, digest in hashes.items():
        if isinstance(digest, OSError):
            raise CouldNotRun(f"cannot read {place.folder / name}: {digest.strerror}", "nothing was locked; mend it")
        files[name] = Locked(sizes[name], digest)
    return Lock(repository or place.repository, revision or place.revision, found.sha256, files)


def file_sizes(path: Path) -> dict[str, int]:
    """Size in bytes of every regular file that is a part of the checkpoint, by name; links are followed.

    Raises CouldNotRun where the folder cannot be listed.
    """
    sizes = {}
    try:
        for entry in sorted(path.iterdir()):
            if is_part(entry.name) and entry.is_file():
                sizes[entry.name] = entry.stat().st_size
    except OSError as error:
        raise CouldNotRun(f"{path} cannot be read: {error.strerror}", "give a folder that you may read") from None
    return sizes


def provenance(seen: Inspection) -> str:
    """Where the weights come from, in the runbook's terms."""
    if seen.found.config is None:
        return f"not known: {seen.found.config_problem}"
    section = seen.found.config.get("quantization_config")
    if isinstance(section, dict) and section:
        version = section.get("autoround_version")
        by = f", written by AutoRound {str(version)[:40]}" if version else ""
        words = f"{quantization.words(section)}{by}"
        return f"already quantized ({words}): quantization is a property of the checkpoint, nothing here quantizes"
    return "not quantized: quantization is a property of the checkpoint, nothing here quantizes"


def _hashes(path: Path, names: Mapping[str, int] | list[str], advance: Advance) -> dict[str, str | OSError]:
    # the largest first, so that the last worker does not begin a large one alone
    order = sorted(names, key=lambda name: -names[name]) if isinstance(names, Mapping) else names
    return {file.name: digest for file, digest in hash_files([path / name for name in order], advance).items()}


def _blobs(place: Place) -> dict[str, str]:
    """What a hub cache calls the contents of its files: the name of the linked blob, where it is a SHA-256 (it is for
    what the hub keeps as large files; small ones have a git hash)."""
    if place.layout != HUB_CACHE:
        return {}
    found = {}
    for entry in place.folder.iterdir():
        target = entry.readlink().name if entry.is_symlink() else ""
        if _SHA256.fullmatch(target):
            found[entry.name] = target
    return found
