"""What one run of the matrix does, as the host hands it to the driver inside the image. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sm86.comm.matrix import Setting
from sm86.errors import CouldNotRun

CUDA, CPU = "cuda", "cpu"

RUN_LIMIT_S = 120.0
"""One setting, one repeat: eight processes that import torch and open NCCL take about 20 s, the graphs a few more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """ranks: one process each; device: "cuda" or "cpu" (emulated); sizes in bytes; calls: all-reduces in a graph;
    replays: timed replays of each graph after `warm` others; repeats: fresh processes for each setting."""

    ranks: int
    device: str
    sizes: tuple[int, ...]
    calls: int
    settings: tuple[Setting, ...]
    repeats: int = 3
    replays: int = 30
    warm: int = 10
    limit_s: float = RUN_LIMIT_S

    def order(self) -> Iterator[tuple[int, Setting]]:
        """Every (repeat, setting): interleaved, and each repeat starts elsewhere, so that what drifts (clocks, heat)
        meets all settings alike."""
        count = len(self.settings)
        for repeat in range(self.repeats):
            first = repeat * max(count // max(self.repeats, 1), 1)
            for index in range(count):
                yield repeat, self.settings[(first + index) % count]

    @property
    def runs(self) -> int:
        return self.repeats * len(self.settings)

    @property
    def limit_total_s(self) -> float:
        """The longest that the whole run may take."""
        return self.runs * (self.limit_s + 10.0) + 60.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_of(values: Mapping[str, Any]) -> Plan:
    """The plan of such JSON. Raises CouldNotRun for anything else."""
    try:
        settings = tuple(
            Setting(
                **{
                    **setting,
                    "environment": _pairs(setting["environment"]),
                    "overrides": _pairs(setting["overrides"]),
                }
            )
            for setting in values["settings"]
        )
        return Plan(**{**values, "sizes": tuple(values["sizes"]), "settings": settings})
    except (KeyError, TypeError, ValueError) as error:
        raise CouldNotRun(
            f"the image's driver does not understand this plan ({error!r})",
            "build the image of this revision: invoke build",
        ) from None


def _pairs(values: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in values)
