"""Why the GPU idles inside a step: whether it waits for the host between what is launched one by one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm86.trace.analysis import FileResult

MUCH = 0.25
"""From this share of a step on, idling is worth a sentence."""

MOST = 0.5
"""With this share of it outside the graphs, the host is named: inside a graph nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Idling of the median step. ns; alone: GPU events of a step that are in no graph; host: the host limits."""

    span: float
    idle: float
    in_graphs: float
    alone: float
    host: bool

    def words(self) -> str:
        """The sentence for the table and the report; empty where the host does not limit."""
        if not self.host:
            return ""
        outside = 1 - self.in_graphs / self.idle
        return (
            f"the GPU idles {self.idle / self.span:.0%} of a step, {outside:.0%} of that outside the graphs: the host, "
            f"which launches {self.alone:.0f} kernels and copies of a step one by one, limits this run (under the "
            "profiler, which slows the host too), and faster kernels would gain little"
        )


def idle_of(result: FileResult) -> Idle | None:
    """None where steps or graphs are not told, so that idling cannot be placed."""
    steps, graphs = result.steps, result.graphs
    if steps is None or graphs is None or not steps.units or not graphs.units:
        return None
    averaged = [shape for shape in steps.shapes if shape.averaged]
    units = sum(shape.units for shape in averaged)
    launches = sum(shape.graphs * shape.units for shape in averaged) / units if units else 0.0
    if not launches:
        return None
    idle = max(0.0, steps.span.median - steps.busy.median)
    in_graphs = min(idle, launches * max(0.0, graphs.span.median - graphs.busy.median))
    every = sum(row.calls for row in steps.buckets) / steps.units
    inside = launches * sum(row.calls for row in graphs.buckets) / graphs.units
    host = idle > MUCH * steps.span.median and idle - in_graphs > MOST * idle
    return Idle(steps.span.median, idle, in_graphs, max(0.0, every - inside), host)
