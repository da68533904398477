"""`invoke demo`: the whole product on a real engine without a GPU, step by step, ending in one report."""

from __future__ import annotations

import json as json_module
import shlex
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sm86.cli import boot, boot_view
from sm86.cli.ending import end
from sm86.cli.engines import ROOT, open_engine, or_local
from sm86.cli.served import served
from sm86.errors import EXIT_FINDING, EXIT_OK, CheckFailed, CouldNotRun
from sm86.record import Record, save
from sm86.record.store import results_dir
from sm86.spec import Envelope, load_envelope

if TYPE_CHECKING:
    from sm86.host.engine import ServerEngine

ENVELOPE = "cpu-smoke"
SCHEMA = "sm86.demo"
VERSION = 1


def demo(
    engine: str = "docker",
    port: str | int | None = None,
    offline_base: bool = False,
    keep: bool = False,
    json: bool = False,
    dry_run: bool = False,
) -> int:
    """Build, boot, verify, benchmark and report the embedded default. dry_run: say with what, do nothing.

    Exit code 0: it served, its log proves every rule, and the text is coherent; 1: one of these is not so; 2: it
    could not run. The server is stopped at the end, also after a fault, unless `keep`.
    """
    envelope = load_envelope(ENVELOPE)
    if dry_run:
        return _show_plan(envelope, engine, port, offline_base, keep, json)
    _build(engine, offline_base)
    server = open_engine(envelope, engine, port, to_start=True)
    before = server.state()
    if before.is_up:
        option = "" if engine == "docker" else f" --engine {engine}"
        raise CouldNotRun(f"{envelope.name} already runs", f"stop it first: invoke down --envelope {ENVELOPE}{option}")
    records: list[Record] = []
    try:
        records.append(_boot(server, envelope))
        records += _prove(server, envelope)
    finally:
        log = end(server, before, _say, stop=not keep)
    paths = [save(record) for record in records]
    good = all(_is_good(record) for record in records)
    if json:
        values = [record.to_json() for record in records]
        print(json_module.dumps({"schema": SCHEMA, "version": VERSION, "good": good, "records": values}, indent=2))
    else:
        from rich.console import Console

        from sm86.report.terminal import report

        Console().print(report(envelope, records))
        print("records: " + ", ".join(map(str, paths)))
        if log is not None:
            print(f"log: {log}")
        print("The demo is complete." if good else "The demo ran, and something is not as it should be: see above.")
    return EXIT_OK if good else EXIT_FINDING


def _show_plan(
    envelope: Envelope, engine: str, port: str | int | None, offline_base: bool, keep: bool, json: bool
) -> int:
    server = open_engine(envelope, engine, port, dry_run=True)
    steps = []
    if engine == "docker":
        plan, _ = _build_plan(offline_base)
        if plan.make_base:
            steps.append(f"make the base image {plan.build.base} from Debian packages (debootstrap)")
        steps.append(f"build: {shlex.join(plan.argv)}")
    steps += [f"boot: {line}" for line in server.plan()]
    steps.append(f"verify its log, and measure it {envelope.bench.repeats} times")
    steps.append("leave it running" if keep else "stop it")
    steps.append(f"write the records and the server's log into {results_dir() / ENVELOPE}")
    if json:
        values = {"schema": SCHEMA, "version": VERSION, "dry_run": True, "steps": steps}
        print(json_module.dumps(values, indent=2))
    else:
        print("\n".join(steps))
    return EXIT_OK


def _build_plan(offline_base: bool) -> tuple[Any, Any]:
    """The plan of the image's build, and the engine to build it with."""
    from sm86.host import build as host

    with or_local():
        docker = host.engine()
    request = host.Request("cpu", None, offline_base, None, False, False)
    return host.plan(request, ROOT, docker, _say), docker


def _build(engine: str, offline_base: bool) -> None:
    if engine != "docker":
        return
    from sm86.host import build as host

    _say("building the CPU image (the first time takes minutes)")
    plan, docker = _build_plan(offline_base)
    for note in plan.notes:
        _say(note)
    host.build(plan, ROOT, docker, _say)


def _boot(server: ServerEngine, envelope: Envelope) -> Record:
    from sm86.host.watch import boot_and_wait

    with boot_view.progress(f"{envelope.name} starts ({server.kind})") as show:
        result = boot_and_wait(server, envelope, show)
    record = boot.record_of(result, server, envelope)
    if result.failure is not None:
        save(record)
        lines = tuple(f"{number}: {text}" for number, text in result.failure.lines)
        raise CheckFailed(f"{envelope.name} did not start: {result.failure.what}", result.failure.mend, lines)
    return record


def _prove(server: ServerEngine, envelope: Envelope) -> list[Record]:
    from sm86.cli.bench import progress
    from sm86.measure.api_key import read_api_key
    from sm86.measure.bench import run
    from sm86.measure.client import Client, parse_address
    from sm86.measure.plan import plan
    from sm86.measure.result import to_record
    from sm86.verify.record import report_to_record

    _say("verifying its log")
    started, clock = datetime.now(UTC), time.monotonic()
    now = served(envelope, server)
    verified = report_to_record(now.report, envelope, started, round(time.monotonic() - clock, 3))
    state = "pass" if now.report.passed else "fail"
    with progress() as shown:
        client = Client(parse_address(now.base_url), read_api_key(None))
        result = run(envelope, plan(envelope), client, now.conditions, state, shown)
    return [verified, to_record(result)]


def _is_good(record: Record) -> bool:
    """Every verdict passes or does not apply; of a benchmark only those that make a measurement coherent."""
    if record.kind == "bench":
        from sm86.measure.judge import is_good

        return is_good(record.verdicts)
    return all(verdict.state in ("pass", "not applicable") for verdict in record.verdicts)


def _say(text: str) -> None:
    print(f"sm86: {text}", file=sys.stderr, flush=True)
