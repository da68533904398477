"""Whether the locks in the repository are those of the pins, and as they were written. Pure, and needs no index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sm86.image.lock_sums import altered
from sm86.image.locks import LOCKS_DIR, Lock, locked_versions, resolved_locks, torch_cpu_lock, vllm_source_lock
from sm86.image.names import OFFICIAL_BASE
from sm86.spec.pins import Pins

BASE_FILE = "base.txt"
BASE_HEADER = "# Made by `invoke lock`: the base image, and its digest where a registry answered."
NOT_PINNED = "# No registry answered when this was made: the name alone does not say which bytes it means."
_BASE = re.compile(re.escape(OFFICIAL_BASE) + r"(@sha256:[0-9a-f]{64})?")
_ENTRY = re.compile(r"[a-z0-9.-]+==[^\s\\]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+")


def base_lock(digest: str | None) -> str:
    """Text of base.txt: the official base, with the digest ("sha256:...") that the registry gave, if any."""
    lines = [BASE_HEADER, f"{OFFICIAL_BASE}@{digest}"] if digest else [BASE_HEADER, NOT_PINNED, OFFICIAL_BASE]
    return "\n".join(lines) + "\n"


def locked_base(text: str) -> str:
    """The base image that base.txt names: with its digest, or without one; the official name for an empty text."""
    names = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return names[0] if names else OFFICIAL_BASE


def problems(contents: Mapping[str, bytes], sums: str, pins: Pins, files: tuple[str, ...] | None = None) -> list[str]:
    """What of the locks (contents by file name, `sums` as SHA256SUMS says) does not follow from the pins, or is not as
    it was written; of `files` and the base only, where given."""
    texts = {name: data.decode("utf-8", "replace") for name, data in contents.items()}
    judged = {name: data for name, data in contents.items() if files is None or name in (*files, BASE_FILE)}
    return [*_problems(texts, pins, files), *(f"{LOCKS_DIR}/{name} {why}" for name, why in altered(sums, judged))]


def _problems(texts: Mapping[str, str], pins: Pins, files: tuple[str, ...] | None) -> Iterator[str]:
    written = {"cpu-torch.txt": torch_cpu_lock(pins), "native-source.txt": vllm_source_lock(pins)}
    for lock in resolved_locks(pins):
        if files is None or lock.file in files:
            yield from _of_lock(lock, texts.get(lock.file))
    for name, wanted in written.items():
        if (files is None or name in files) and texts.get(name) != wanted:
            yield f"{LOCKS_DIR}/{name} is not what the pins say"
    if BASE_FILE not in texts:
        yield f"{LOCKS_DIR}/{BASE_FILE} is missing"
    base = locked_base(texts.get(BASE_FILE, ""))
    if not _BASE.fullmatch(base):
        yield f"{LOCKS_DIR}/{BASE_FILE} names {base}, the base image is {OFFICIAL_BASE}"


def _of_lock(lock: Lock, text: str | None) -> Iterator[str]:
    place = f"{LOCKS_DIR}/{lock.file}"
    if text is None:
        yield f"{place} is missing"
        return
    versions = locked_versions(text)
    names = [line.partition("==")[0] for line in text.splitlines() if line and line[0] not in "# "]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{place} names {name} twice"
    for requirement in lock.requirements:
        name, pinned, version = requirement.partition("==")
        found = versions.get(re.split("[<>=]", name)[0])
        if found is None:
            yield f"{place} does not name {name}"
        elif pinned and found != version:
            yield f"{place} names {name} {found}, the pin is {version}"
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    if _ENTRY.sub("", body).strip():
        yield f"{place} holds a line that is no package with its hash"
