"""Pinned versions, each with the place it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned thing. `distribution` is its name in the package index where that differs from `name`."""

    name: str
    version: str
    source: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Pins:
    """All pins by name. `pins["vllm"].version` is the version string; KeyError for an unknown name."""

    by_name: Mapping[str, Pin]

    def __getitem__(self, name: str) -> Pin:
        return self.by_name[name]

    def version(self, name: str) -> str:
        return self.by_name[name].version
