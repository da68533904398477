"""What the checkpoint of a family says of itself: facts to compare a downloaded one with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Facts of a family's checkpoint beyond its model's. Empty texts mean: nothing is published, do not compare.

    config: values of config.json by key. revision: the commit of the model hub to fetch.
    """

    packing_format: str = ""
    autoround_version: str = ""
    revision: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
