"""What is known of a failed boot, and what a kind of failure is. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sm86.boot import phases
from sm86.boot.deadline import Expired
from sm86.boot.phases import BootPhases
from sm86.boot.scan import Line, Scanner
from sm86.boot.state import EngineState
from sm86.spec import Envelope

RANK_WAITS = "rank waits"
STOPPED = "stopped"
MEND = "mend"
"""Notices that the scanner keeps beside the table's words: they are not errors."""

ENGINE_ERROR = "engine error"
REFUSED = "refused by the launcher"

_CONSEQUENCES = re.compile(
    r"Engine core initialization failed"
    r"|See (?:root cause|stack trace) \(?above|See stack trace for root cause"
    r"|EngineDeadError|WorkerProc initialization failed"
)
"""Errors that only say that another process has failed."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known when a boot has failed. expired: the bound that was passed, None when the server died;
    memory_ran_out: the kernel ended some process of this machine for want of memory meanwhile."""

    envelope: Envelope
    phases: BootPhases
    state: EngineState
    scanner: Scanner
    expired: Expired | None = None
    health: str = ""
    memory_ran_out: bool = False

    def stage_of(self, line: Line) -> str:
        """Where the engine was when it wrote the line: by its traceback, else by the phase that ran."""
        return STAGE_OF_FRAME.get(line.frame) or self.phases.at_line(line.number)


Sees = Callable[[Case, tuple[Line, ...]], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure.

    words: patterns of which one line at least must match; none where the log need not say it. sees: what else must
    hold. stage: where the engine must have been when it wrote the line. could_not_run: nothing was started that could
    be judged. `what` and `mend` may use {phase}, {code}, {signal}, {restarts}, {cap}, {seconds}, {found} (the first
    line), {detail} (the engine's words), {health} and {name}.
    """

    name: str
    what: str
    mend: str
    words: tuple[str, ...] = ()
    sees: Sees = field(default=lambda case, lines: True)
    stage: tuple[str, ...] = ()
    could_not_run: bool = False


KV_ALLOCATION = "kv allocation"

STAGE_OF_FRAME = {
    "init_device": phases.START,
    "load_model": phases.LOAD,
    "determine_available_memory": phases.PROFILE,
    "profile_run": phases.PROFILE,
    "profile_cudagraph_memory": phases.PROFILE,
    "initialize_kv_cache": KV_ALLOCATION,
    "initialize_kv_cache_tensors": KV_ALLOCATION,
    "compile_or_warm_up_model": phases.PROFILE,
    "capture_model": phases.CAPTURE,
}
"""Functions of vLLM's worker (0.20 to 0.33): in a traceback, the innermost of them says what it was doing."""


def is_consequence(line: Line) -> bool:
    """Does the line only say that another process has failed."""
    return bool(_CONSEQUENCES.search(line.text))


def died(case: Case, lines: tuple[Line, ...]) -> bool:
    """The server ended; it was not given up."""
    return case.expired is None


def gave_up(kind: str) -> Sees:
    """It was given up for that reason."""
    return lambda case, lines: case.expired is not None and case.expired.kind == kind
