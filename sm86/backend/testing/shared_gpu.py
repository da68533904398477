"""Several ranks on one GPU: the driver gives each process its time slices in turn, so no two kernels ever run at once.

What a rank waits for comes when its slice has ended and the peer's has begun: milliseconds for what takes microseconds
between two GPUs. Values, deaths, late ranks and the way through host memory are real; no time is. So a run is given
seconds, each scenario gets its share of them, and the number of calls is what was made in it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from sm86.backend.testing.budget import Budget
from sm86.backend.testing.gpu_group import visible_gpus
from sm86.errors import CouldNotRun

NOTE = "ranks share one GPU, time-sliced: function only"
USUAL_START_S = 6.0
"""Guess of what a scenario needs beside its calls and waits, until two have been seen; the first loads from disk."""
SPARE_S = 3.0
"""Kept at the end of a budget, to write what there is."""
LEAST_CALLS_S = 1.0


def shared_gpus(ranks: int) -> list[str]:
    """One GPU, the first visible one, for every rank. Raises CouldNotRun: no GPU, or one for one process only."""
    found = visible_gpus()
    if not found:
        raise CouldNotRun("no GPU is visible", "run it where CUDA_VISIBLE_DEVICES names a GPU, or is not set")
    mode = asked(found[0], "compute_mode")
    if mode is not None and "default" not in mode.lower():
        raise CouldNotRun(
            f"the GPU is in compute mode {mode}: it does not admit {ranks} processes",
            "run it on a GPU whose compute mode is Default",
        )
    return [found[0]] * ranks


def asked(gpu: str, fields: str) -> str | None:
    """What nvidia-smi says about a GPU (its index or UUID); None when it says nothing."""
    argv = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


@dataclass(frozen=True, slots=True)
class Part:
    """What a scenario needs. weight: of its calls in the time that is left for calls, 0: a fixed small number of them;
    waits_s: what it waits for on purpose."""

    weight: float
    waits_s: float = 0.0


class Shares:
    """How the budget is divided among the scenarios that are still to come. Reads no clock but the budget's."""

    def __init__(self, budget: Budget, most_s: float) -> None:
        self._budget, self._most_s = budget, most_s
        self._starts: list[float] = []

    def start_s(self) -> float:
        """What a scenario takes beside its calls and waits: the mean of the last three, without the first."""
        seen = self._starts[1:][-3:]
        return sum(seen) / len(seen) if seen else USUAL_START_S

    def fits(self, part: Part) -> bool:
        """Whether a scenario can be begun, with the least of calls."""
        return self._budget.allows(self.start_s() + part.waits_s + (LEAST_CALLS_S if part.weight else 0.0))

    def calls_s(self, parts: Sequence[Part]) -> float:
        """Seconds for the calls of the first of `parts`, which are all that are still to come."""
        if not parts[0].weight:
            return LEAST_CALLS_S
        needed = SPARE_S + sum(self.start_s() + part.waits_s for part in parts)
        spare = (self._budget.left() - needed) * parts[0].weight / sum(part.weight for part in parts)
        return max(LEAST_CALLS_S, min(spare, self._most_s))

    def limit_s(self, part: Part, calls_s: float) -> float:
        """When a scenario hangs that was given so many seconds: far beyond what it takes, and not all that is left."""
        return 20.0 + self.enough_s(part, calls_s)

    def enough_s(self, part: Part, calls_s: float) -> float:
        """What a scenario that does not hang ends in, even on a machine that has become slower."""
        return 5.0 + 2 * (self.start_s() + part.waits_s + calls_s)

    def took(self, seconds: float, part: Part, calls_s: float) -> None:
        """A scenario has ended, after so many seconds with so many in its calls."""
        self._starts.append(max(0.0, seconds - part.waits_s - calls_s))
