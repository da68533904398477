"""A doctor's report as a person reads it: what is wrong first, in words, then what is right, in one line each."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from sm86.cli.doctor import summary
from sm86.doctor.facts import Rig
from sm86.doctor.finding import FAIL, OK, STATES, UNKNOWN, WARN, Finding, Report
from sm86.doctor.placement import Placement
from sm86.doctor.words import gib, gpus_of

_STYLE = {OK: "green", WARN: "yellow", FAIL: "bold red", UNKNOWN: "magenta"}
WIDTH = 18


def show(rig: Rig, report: Report, where: str) -> None:
    """Print it: with colours on a terminal, plain lines without control characters elsewhere."""
    if report.mark:
        _say(f"{report.mark}: not gathered on a machine")
    if where:
        _say(f"facts: {where}{f', gathered {rig.taken}' if rig.taken else ''}")
    ordered = [finding for state in STATES for finding in report.findings if finding.state == state]
    few_facts = rig.host.memory_total is None and rig.docker.state is None
    if few_facts:
        # a bare topology: forty lines of "not known" would hide the little that is
        unknown = [finding.rule for finding in ordered if finding.state == UNKNOWN]
        ordered = [finding for finding in ordered if finding.state != UNKNOWN]
    if sys.stdout.isatty():
        _rich(ordered)
    else:
        for finding in ordered:
            _plain(finding)
    if few_facts and unknown:
        _say(f"{'unknown':<9}{len(unknown)} checks need more than these facts tell: {', '.join(unknown)}")
    for line in card_lines(rig):
        _say(line)
    for words in report.missed:
        _say(f"{'missed':<9}{words}")
    if rig.gpus == ():
        _say(f"{report.not_applicable} checks are about GPUs and what serves them, and do not apply here")
    if report.placement:
        show_placement(report.placement)
    _say(summary(report))


def card_lines(rig: Rig) -> list[str]:
    """One line for each card with what is known of it; none where only the topology is known."""
    lines = []
    for gpu in rig.gpus or ():
        memory = "" if gpu.memory_total is None else gib(gpu.memory_total)
        if gpu.memory_total is not None and gpu.memory_free is not None:
            memory += f", {gib(gpu.memory_free)} free"
        power = "" if gpu.power is None else f"{gpu.power:.0f} W"
        if gpu.power is not None and gpu.power_limit is not None:
            power += f" of {gpu.power_limit:.0f}"
        link = "" if gpu.pcie.width is None else f"generation {gpu.pcie.generation} x{gpu.pcie.width} now"
        parts = (
            gpu.name,
            gpu.bus_id,
            memory,
            "" if gpu.temperature is None else f"{gpu.temperature} °C",
            "" if gpu.sm_clock is None else f"{gpu.sm_clock} MHz",
            power,
            link,
            "" if gpu.numa is None else f"node {gpu.numa}",
            gpu.problem,
        )
        if gpu.name or gpu.bus_id or gpu.problem:
            lines.append(f"GPU {gpu.index:<3}  {'; '.join(part for part in parts if part)}")
    return lines


def show_placement(placement: Placement) -> None:
    """Which GPUs, in which order, and why."""
    split = f"TP{placement.tensor_parallel}"
    if placement.pipeline_parallel > 1:
        split += f" x PP{placement.pipeline_parallel}"
    _say(f"placement: {split} on {' then '.join(gpus_of(group) for group in placement.groups)}")
    _say(f"  {placement.reason}")
    for note in placement.notes:
        _say(f"  {note}")
    for index, reason in placement.left_out:
        _say(f"  GPU {index} is left out: {reason}")
    if placement.setting:
        _say(f"  in .env: {placement.setting}")


def _plain(finding: Finding) -> None:
    _say(f"{finding.state:<9}{finding.rule:<{WIDTH}}{finding.what}")
    if finding.state != OK:
        _say(f"{'':<9}{'':<{WIDTH}}why: {finding.why}")
        _say(f"{'':<9}{'':<{WIDTH}}mend: {finding.mend}")


def _rich(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        cell = Text(_printable(finding.what))
        if finding.state != OK:
            cell.append(f"\nwhy: {_printable(finding.why)}", style="dim")
            cell.append(f"\nmend: {_printable(finding.mend)}", style="italic")
        table.add_row(Text(finding.state, style=_STYLE[finding.state]), finding.rule, cell)
    Console().print(table)


def _say(line: str) -> None:
    print(_printable(line))


def _printable(text: str) -> str:
    """Facts of another machine, titles of processes and words of other programs may hold anything, also codes that a
    terminal obeys, and ends of lines that would make two findings of one."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """What is being done, on stderr where that is a terminal; nothing elsewhere."""
    if not (sys.stderr is not None and sys.stderr.isatty()):
        yield lambda words: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda words: status.update(words)
