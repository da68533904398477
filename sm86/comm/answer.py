"""What the driver says of each run, as lines of JSON on its standard output. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json

PREFIX = "SM86-COMM "
"""Before every line that is ours: libraries print to the same stream."""

MEASURED, UNAVAILABLE, WRONG, FAILED, TIMEOUT = "measured", "not available", "wrong values", "failed", "timed out"
STATES = (MEASURED, UNAVAILABLE, WRONG, FAILED, TIMEOUT)


@dataclass(frozen=True, slots=True)
class Cell:
    """One size in one run. us: microseconds of one all-reduce, the slowest rank's; error: the largest error over the
    bound that rounding allows (above 1: wrong); bit_equal: all ranks hold the same bits; ran: which way, in words."""

    us: float
    error: float
    bit_equal: bool
    ran: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One setting, one repeat, in processes of its own. why: one line where it was not measured."""

    setting: str
    repeat: int
    state: str
    why: str
    seconds: float
    cells: Mapping[int, Cell] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        cells = {
            str(size): {"us": c.us, "error": c.error, "bit_equal": c.bit_equal, "ran": c.ran}
            for size, c in self.cells.items()
        }
        return {
            "setting": self.setting,
            "repeat": self.repeat,
            "state": self.state,
            "why": self.why,
            "seconds": self.seconds,
            "cells": cells,
            "facts": dict(self.facts),
        }


def run_of(values: Any) -> Run:
    """The run of such JSON. Raises CouldNotRun."""
    try:
        if values["state"] not in STATES:
            raise ValueError(values["state"])
        cells = {
            int(size): Cell(float(c["us"]), float(c["error"]), bool(c["bit_equal"]), str(c["ran"]))
            for size, c in values["cells"].items()
        }
        return Run(
            str(values["setting"]),
            int(values["repeat"]),
            values["state"],
            str(values["why"]),
            float(values["seconds"]),
            cells,
            dict(values["facts"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CouldNotRun(
            f"the driver's answer is not understood ({error!r})", "build the image of this revision: invoke build"
        ) from None


def run_in_line(line: str) -> Run | None:
    """The run that a line of the driver's output holds; None for any other line."""
    if not line.startswith(PREFIX):
        return None
    try:
        return run_of(parse_json(line[len(PREFIX) :]))
    except ValueError:
        raise CouldNotRun(
            "the driver's answer is cut in the middle", "see whether the disk or the memory ran out, and run it again"
        ) from None
