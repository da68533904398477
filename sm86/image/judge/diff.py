"""Facts of two images -> what differs: pins, packages, files. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

IGNORED_BUILD_FIELDS = ("git_dirty",)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: its kind ("build", "package", "file"), what, and both values (None: not there)."""

    kind: str
    name: str
    before: str | None
    after: str | None


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Every difference between two images' facts (`probe.facts(files=True)`), by kind and name."""
    changes = _changes("build", _flat(before.get("build") or {}), _flat(after.get("build") or {}))
    changes += _changes("package", before.get("distributions") or {}, after.get("distributions") or {})
    changes += _changes("file", _files(before), _files(after))
    return changes


def tree_digest(facts: Mapping[str, Any]) -> str:
    """SHA-256 over every file's path, mode, size and content: equal for equal file trees."""
    text = json.dumps(sorted(_files(facts).items()), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _files(facts: Mapping[str, Any]) -> dict[str, str]:
    return {path: " ".join(map(str, entry)) for path, entry in (facts.get("files") or {}).items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if key in IGNORED_BUILD_FIELDS:
            continue
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _changes(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    return [
        Change(kind, name, before.get(name), after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
