"""`invoke up`, `down`, `status` and `logs`: an envelope's server, whatever engine runs it."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sm86.boot import phases as p
from sm86.boot.state import MISSING
from sm86.cli import boot_view
from sm86.cli.engines import open_engine
from sm86.cli.guard import whole_number
from sm86.cli.intended import tell_intended
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_INTERRUPTED, EXIT_OK, CouldNotRun
from sm86.spec import Envelope, load_envelope

if TYPE_CHECKING:
    from sm86.host.engine import ServerEngine
    from sm86.host.watch import BootResult

SCHEMA_UP = "sm86.up"
SCHEMA_STATUS = "sm86.status"
VERSION = 1

MAX_TAIL = 1_000_000


def up(
    envelope_name: str,
    engine: str = "docker",
    port: str | int | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Start an envelope and wait until it serves. Exit code 0: it serves (also if it did before); 1: it failed; 2: it
    could not be started; 130: interrupted, the server goes on.

    A server that was started before and still boots is watched. One that died is not restarted, and is left for
    inspection; one that hangs is left running. Writes a record of kind "boot" for every start that it watched whole
    and that was not refused.
    """
    from sm86.host.health import health
    from sm86.host.watch import boot_and_wait

    envelope = load_envelope(envelope_name)
    server = open_engine(envelope, engine, port, overrides, dry_run=dry_run)
    if dry_run:
        return tell_intended("up", server.plan(), json)
    before = server.state()
    if before.is_up:
        other = server.differs()
        if other:
            raise CouldNotRun(
                f"{envelope.name} already runs as {server.describe()}, but {other}",
                f"invoke down --envelope {envelope.name}{_engine_option(engine)}, then up again",
            )
        if health(server.base_url) == 200:
            return _already(envelope, server, engine, json)
    else:
        server = open_engine(envelope, engine, port, overrides, to_start=True)
    try:
        with boot_view.progress(f"{envelope.name} {'is starting' if before.is_up else 'starts'} ({engine})") as show:
            result = boot_and_wait(server, envelope, show, attach=before.is_up)
    except KeyboardInterrupt:
        return _interrupted(envelope, server, engine)
    path = None if result.attached or _refused(result) else _record(result, server, envelope)
    if json:
        print(json_module.dumps(_as_json(result, envelope, server, path), indent=2))
    elif result.ok:
        _tell_success(result, envelope, engine)
    else:
        _tell_failure(result, envelope, server, engine)
    if result.ok:
        return EXIT_OK
    return EXIT_COULD_NOT_RUN if _refused(result) else EXIT_FINDING


def down(envelope_name: str, engine: str = "docker", dry_run: bool = False) -> int:
    """Stop an envelope; caches and weights stay. Exit code 0: nothing of it runs; 1: something is still there."""
    envelope = load_envelope(envelope_name)
    server = open_engine(envelope, engine)
    state = server.state()
    if state.kind == MISSING:
        print(f"{envelope.name} does not run.")
        return EXIT_OK
    if dry_run:
        print(f"would stop {server.describe()} ({state.words()})")
        return EXIT_OK
    print(f"stopping {server.describe()} ({state.words()}) ...", file=sys.stderr, flush=True)
    stopped = server.stop()
    if stopped.leftovers:
        print(f"{envelope.name} is not wholly gone: {', '.join(stopped.leftovers)}")
        print("mend: see dmesg; a process that waits inside the driver ends only with a reboot")
        return EXIT_FINDING
    how = ", by force: it did not end within its grace" if stopped.forced else ""
    print(f"{envelope.name} stopped in {boot_view.duration(stopped.seconds)}{how}.")
    return EXIT_OK


def status(envelope_name: str, engine: str = "docker", json: bool = False) -> int:
    """Say what state an envelope's server is in. Exit code 0: it serves; 1: it does not (yet, or any more)."""
    from sm86.host.health import health

    envelope = load_envelope(envelope_name)
    server = open_engine(envelope, engine)
    state = server.state()
    answer = health(server.base_url) if state.is_up else None
    serves = state.is_up and answer == 200
    url = server.base_url if state.is_up else None
    if json:
        values = {
            "schema": SCHEMA_STATUS,
            "version": VERSION,
            "envelope": envelope.name,
            "engine": engine,
            "serves": serves,
            "base_url": url,
            "health": answer,
            "state": asdict(state),
        }
        print(json_module.dumps(values, indent=2))
    elif state.kind == MISSING:
        print(f"{envelope.name}: not started")
    else:
        words = "serves" if serves else "does not serve"
        print(f"{envelope.name}: {words} ({server.describe()}: {state.words()})")
        if state.started_at:
            print(f"  started  {state.started_at}")
        if url:
            print(f"  url      {url}  (health: {'no answer' if answer is None else answer})")
        if state.error:
            print(f"  engine   {state.error}")
    return EXIT_OK if serves else EXIT_FINDING


def logs(envelope_name: str, engine: str = "docker", follow: bool = False, tail: str | int | None = None) -> int:
    """Print an envelope's server log as it is; with `follow` until the server ends (Ctrl-C lets it run on)."""
    envelope = load_envelope(envelope_name)
    server = open_engine(envelope, engine)
    lines = whole_number(tail, "tail", 0, MAX_TAIL)
    found = False
    while True:
        for chunk in server.log_chunks(follow, lines):
            found = True
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        state = server.state()
        if not (follow and state.is_up):
            break
        # restarted by its policy: what it says from now on
        lines = 0
    if not found and state.kind == MISSING:
        raise CouldNotRun(f"{envelope.name} has no log: it was not started", f"invoke up --envelope {envelope.name}")
    return EXIT_OK


def record_of(result: BootResult, server: ServerEngine, envelope: Envelope) -> Any:
    """The boot as a record: seconds of each phase and of the whole, one verdict for each phase. Not written."""
    from sm86.host.facts import conditions
    from sm86.record import Number, Record, Verdict

    states = {p.PASSED: "pass", p.FAILED: "fail", p.NOT_APPLICABLE: "not applicable"}
    numbers = [Number(phase.name, round(phase.seconds, 3), "s") for phase in result.phases if phase.seconds is not None]
    failure = result.failure
    return Record(
        kind="boot",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=result.started,
        seconds=round(result.seconds, 3),
        conditions=conditions(server, envelope, result.manifest),
        numbers=(*numbers, Number("boot", round(result.seconds, 3), "s")),
        verdicts=tuple(
            Verdict(phase.name, states.get(phase.state, "not seen"), p.MEANING[phase.name]) for phase in result.phases
        ),
        details={
            "runs_on": server.kind,
            "state": asdict(result.state),
            "failure": None if failure is None else _failure(failure),
        },
    )


def _refused(result: BootResult) -> bool:
    return result.failure is not None and result.failure.could_not_run


def _record(result: BootResult, server: ServerEngine, envelope: Envelope) -> str:
    from sm86.record import save

    return str(save(record_of(result, server, envelope)))


def _tell_success(result: BootResult, envelope: Envelope, engine: str) -> None:
    mark = "" if envelope.uses_gpu else "  (CPU engine: its times and numbers are CPU numbers)"
    before = " (it had been started before)" if result.attached else ""
    print(f"{envelope.name} serves after {boot_view.duration(result.seconds)}{before}{mark}")
    print("\n".join(boot_view.summary(result.phases, result.seconds)))
    _tell_next(result.base_url, envelope, engine)


def _tell_next(base_url: str, envelope: Envelope, engine: str) -> None:
    option = _engine_option(engine)
    print(f"  url      {base_url}/v1   model {envelope.serve.served_model_name}")
    for task, what in (("verify", "check its log"), ("bench", "measure it"), ("down", "stop it")):
        print(f"  {f'invoke {task} --envelope {envelope.name}{option}':<60} {what}")


def _already(envelope: Envelope, server: ServerEngine, engine: str, json: bool) -> int:
    if json:
        values = {"envelope": envelope.name, "engine": engine, "outcome": "already serves", "base_url": server.base_url}
        print(json_module.dumps({"schema": SCHEMA_UP, "version": VERSION, **values}, indent=2))
        return EXIT_OK
    print(f"{envelope.name} already serves ({server.describe()}: {server.state().words()}).")
    _tell_next(server.base_url, envelope, engine)
    return EXIT_OK


def _tell_failure(result: BootResult, envelope: Envelope, server: ServerEngine, engine: str) -> None:
    failure = result.failure
    assert failure is not None
    failed = next((phase.name for phase in result.phases if phase.state == p.FAILED), "start")
    print(f"{envelope.name} failed in phase {failed} after {boot_view.duration(result.seconds)}: {failure.kind}")
    print("\n".join(boot_view.summary(result.phases, result.seconds)))
    print(failure.what)
    for number, text in failure.lines:
        # a refusal of the launcher is its own two lines, which stand here already
        if text not in (f"sm86: {failure.what}", f"mend: {failure.mend}"):
            print(f"  | {number}: {text}")
    print(f"mend: {failure.mend}")
    option = f"--envelope {envelope.name}{_engine_option(engine)}"
    if result.left_running:
        print(f"It is left running for inspection ({server.describe()}): invoke logs {option}; invoke down {option}")
    else:
        print(f"It is kept from restarting, and its log is kept: invoke logs {option}; invoke down {option}")


def _interrupted(envelope: Envelope, server: ServerEngine, engine: str) -> int:
    option = f"--envelope {envelope.name}{_engine_option(engine)}"
    if server.state().is_up:
        print(f"\nsm86: interrupted; {envelope.name} goes on starting in the background", file=sys.stderr)
        print(f"  invoke up {option} watches it again; invoke down {option} stops it", file=sys.stderr)
    else:
        print(f"\nsm86: interrupted; {envelope.name} was not started", file=sys.stderr)
    return EXIT_INTERRUPTED


def _as_json(result: BootResult, envelope: Envelope, server: ServerEngine, record: str | None) -> dict[str, Any]:
    return {
        "schema": SCHEMA_UP,
        "version": VERSION,
        "envelope": envelope.name,
        "engine": server.kind,
        "outcome": "serves" if result.ok else "failed",
        "base_url": result.base_url,
        "seconds": round(result.seconds, 3),
        "mark": "" if envelope.uses_gpu else "CPU",
        "attached": result.attached,
        "left_running": result.left_running,
        "phases": [asdict(phase) for phase in result.phases],
        "state": asdict(result.state),
        "failure": None if result.failure is None else _failure(result.failure),
        "record": record,
    }


def _failure(failure: Any) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "what": failure.what,
        "mend": failure.mend,
        "lines": [{"line": number, "text": text} for number, text in failure.lines],
    }


def _engine_option(engine: str) -> str:
    return "" if engine == "docker" else f" --engine {engine}"
