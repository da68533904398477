"""`invoke verify`: a log judged by its envelope's rules, as a table, as plain lines when piped, or as JSON."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.files import open_regular
from sm86.record import save
from sm86.record.store import RESULTS_DIR
from sm86.spec import Envelope, load_envelope
from sm86.verify.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding, Report
from sm86.verify.record import report_to_record
from sm86.verify.verify import verify_log

CHUNK_BYTES = 1 << 20

_STYLE = {PASS: "green", FAIL: "bold red", NOT_SEEN: "yellow", NOT_APPLICABLE: "dim"}


def verify(
    envelope: str,
    log: str | None = None,
    engine: str = "docker",
    git_rev: str | None = None,
    json: bool = False,
    chunks: Iterable[bytes] | None = None,
    results: Path | None = RESULTS_DIR,
) -> int:
    """Judge a log and print the report; the record goes to `results` (None: nowhere).

    log: a path, or "-" for standard input; without one the server that runs on `engine` ("docker" or "local") is
    asked for its log, unless `chunks` already is that log. git_rev: the commit that must run.
    Returns 0 when every rule that applies passes, else 1. Raises CouldNotRun: no such log, nothing to judge in it.
    """
    spec = load_envelope(envelope)
    started, clock = datetime.now(UTC), time.monotonic()
    where = "standard input" if log == "-" else log or f"the log of {spec.name}"
    source = chunks if chunks is not None else _chunks(spec, log, engine)
    report = verify_log(spec, source, git_rev, where)
    record = report_to_record(report, spec, started, round(time.monotonic() - clock, 3))
    saved = save(record, results) if results is not None else None
    if json:
        print(json_module.dumps(to_json(report, saved), indent=2, ensure_ascii=False))
    else:
        show(report, saved)
    return report.exit_code


def to_json(report: Report, saved: Path | None = None) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "schema": "sm86.verify",
        "version": 1,
        "envelope": report.envelope,
        "envelope_digest": report.envelope_digest,
        "passed": report.passed,
        "counts": report.counts(),
        "boots": report.boots,
        "lines": report.lines,
        "engine_version": report.engine_version,
        "findings": [asdict(finding) for finding in report.findings],
        "record": str(saved) if saved else None,
    }


def show(report: Report, saved: Path | None = None) -> None:
    """Print the report: a table on a terminal, plain lines without control characters elsewhere."""
    if sys.stdout.isatty():
        _show_table(report)
    else:
        for finding in report.findings:
            _show_plain(finding)
    print(verdict(report))
    if saved is not None:
        print(f"record: {saved}")


def verdict(report: Report) -> str:
    """The report in one line."""
    counts = report.counts()
    states = ", ".join(f"{counts[state]} {state}" for state in (PASS, FAIL, NOT_SEEN, NOT_APPLICABLE) if counts[state])
    return f"{report.envelope}: {'verified' if report.passed else 'NOT verified'} ({states})"


def _show_plain(finding: Finding) -> None:
    print(f"{finding.state:<15}{finding.rule:<21}{finding.text}")
    if finding.state in (FAIL, NOT_SEEN):
        print(f"{'':<36}mend: {finding.mend}")
    for line in finding.evidence:
        print(f"{'':<36}{line.line}: {line.text}")


def _show_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{report.envelope}: {report.lines} lines, {report.boots} start(s)", show_lines=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("finding, and the lines of the log that show it")
    for finding in report.findings:
        cell = Text(finding.text)
        if finding.state in (FAIL, NOT_SEEN):
            cell.append(f"\nmend: {finding.mend}", style="italic")
        for line in finding.evidence:
            cell.append(f"\n{line.line}: ", style="cyan")
            cell.append(line.text, style="dim")
        table.add_row(finding.rule, Text(finding.state, style=_STYLE[finding.state]), cell)
    Console().print(table)


def _chunks(envelope: Envelope, log: str | None, engine: str) -> Iterator[bytes]:
    if log is None:
        return _of_server(envelope, engine)
    return chunks_of(log)


def chunks_of(log: str) -> Iterator[bytes]:
    """A log by its path, or "-" for standard input; CouldNotRun where it cannot be read."""
    return _of_stdin() if log == "-" else _of_file(Path(log))


def _of_file(path: Path) -> Iterator[bytes]:
    mend = "give the path of a server's log, or - for standard input"
    if path.is_dir():
        raise CouldNotRun(f"{path} is a folder", mend)
    try:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror or error}", mend) from None


def _of_stdin() -> Iterator[bytes]:
    if sys.stdin is None or sys.stdin.isatty():
        raise CouldNotRun("standard input is the terminal", "pipe a log into it: docker logs NAME 2>&1 | ... --log -")
    while chunk := sys.stdin.buffer.read(CHUNK_BYTES):
        yield chunk


def _of_server(envelope: Envelope, engine: str) -> Iterator[bytes]:
    """The whole log that the engine still has, earlier starts of the same server included."""
    from sm86.boot.state import MISSING
    from sm86.cli.engines import open_engine

    server = open_engine(envelope, engine)
    if server.state().kind == MISSING:
        raise CouldNotRun(
            f"{envelope.name} has no server on the engine {engine}, so there is no log of it",
            f"start it with invoke up --envelope {envelope.name}, or give a log with --log FILE",
        )
    return server.log_chunks(follow=False)
