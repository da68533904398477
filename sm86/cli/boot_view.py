"""A boot on the terminal: live where there is one, a line for each phase that ends where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sm86.boot import phases as p
from sm86.boot.phases import Phase

if TYPE_CHECKING:
    from rich.table import Table

Show = Callable[[tuple[Phase, ...], float], None]

_MARKS = {p.PASSED: "ok", p.FAILED: "FAILED", p.RUNNING: "...", p.WAITING: "", p.NOT_SEEN: "not seen"}


def duration(seconds: float) -> str:
    """ "0.4 s", "12 s", "4 min 12 s", "1 h 02 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def phase_row(phase: Phase, now: float) -> tuple[str, str, str, str]:
    """Name, state, time, and what it is about or how far it is. `now`: seconds since the boot began."""
    state = _MARKS.get(phase.state, phase.state)
    if phase.seconds is not None:
        time = duration(phase.seconds)
    elif phase.state == p.RUNNING and phase.began is not None:
        time = duration(max(now - phase.began, 0.0))
    else:
        time = ""
    what = p.MEANING[phase.name]
    if phase.progress:
        what += f": {phase.progress.done}/{phase.progress.total} {phase.progress.what}"
    return phase.name, state, time, what


def summary(phases: tuple[Phase, ...], seconds: float) -> list[str]:
    """Every phase of a boot that is over in a plain table, one line each."""
    rows = [phase_row(phase, seconds) for phase in phases]
    rows = [(name, state or "not reached", time, what) for name, state, time, what in rows]
    return [f"  {name:<8}{state:<15}{time:>12}  {what}".rstrip() for name, state, time, what in rows]


@contextmanager
def progress(title: str) -> Iterator[Show]:
    """Show phases on stderr while the block runs: redrawn on a terminal, else a line when a phase has ended."""
    if not sys.stderr.isatty():
        yield _Plain(title)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def show(phases: tuple[Phase, ...], seconds: float) -> None:
            live.update(_table(title, phases, seconds))

        yield show


class _Plain:
    """One line for each phase that has ended, in order, without control characters."""

    def __init__(self, title: str) -> None:
        self._told: set[str] = set()
        print(title, file=sys.stderr, flush=True)

    def __call__(self, phases: tuple[Phase, ...], seconds: float) -> None:
        for phase in phases:
            ended = phase.state in (p.PASSED, p.FAILED, p.NOT_SEEN)
            if ended and phase.name not in self._told:
                self._told.add(phase.name)
                print("\n".join(summary((phase,), seconds)), file=sys.stderr, flush=True)


def _table(title: str, phases: tuple[Phase, ...], seconds: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    colours = {p.PASSED: "green", p.FAILED: "bold red", p.RUNNING: "cyan", p.NOT_SEEN: "yellow"}
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(title, style="bold"), "", Text(duration(seconds), justify="right"), "")
    for phase in phases:
        if phase.state == p.NOT_APPLICABLE:
            continue
        name, state, time, what = phase_row(phase, seconds)
        style = colours.get(phase.state, "dim")
        table.add_row(
            Text(f"  {name}", style=style),
            Text(state, style=style),
            Text(time, justify="right"),
            Text(what, style="dim"),
        )
    return table
