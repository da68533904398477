"""What a ladder does to the world: each rung's server started, verified, measured and stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.cli import boot_view
from sm86.cli.ending import keep_log
from sm86.cli.engines import open_engine
from sm86.cli.served import gpu_watcher, gpus_of
from sm86.errors import CheckFailed, CouldNotRun, printable
from sm86.ladder.rungs import Rung
from sm86.measure.telemetry import summarise
from sm86.record import Conditions, Record, save

if TYPE_CHECKING:
    from sm86.host.engine import ServerEngine


class LadderHands:
    """`sm86.ladder.climb.Hands` with real servers on `engine`. repeats, decode_tokens: None for the envelope's own."""

    def __init__(
        self,
        engine: str,
        port: str | int | None,
        repeats: int | None,
        decode_tokens: int | None,
        results: Path,
        open_server: Callable[..., ServerEngine] = open_engine,
    ) -> None:
        self._engine = engine
        self._port = port
        self._repeats = repeats
        self._decode_tokens = decode_tokens
        self._results = results
        self._open = open_server
        # the engine object that started a process is the only one to learn its exit code
        self._running: dict[str, ServerEngine] = {}
        self._manifest: Mapping[str, Any] | None = None
        self.conditions: Conditions | None = None
        """Of the last server that was started here."""

    def check(self, rung: Rung) -> str:
        """What can be known before a rung is started; the image's id, "" for a process. CouldNotRun: it cannot."""
        from sm86.measure.plan import plan

        plan(rung.envelope, self._repeats, self._decode_tokens)
        # what a start of it lacks, an interpreter or a model, is told before anything is begun
        server = self._server(rung, to_start=True)
        if server.state().is_up:
            raise self._runs_already(rung)
        check = getattr(server, "check", None)
        return check() if check is not None else ""

    def boot(self, rung: Rung) -> Record:
        from sm86.cli.boot import record_of
        from sm86.host.watch import boot_and_wait

        if self._server(rung).state().is_up:
            raise self._runs_already(rung)
        server = self._server(rung, to_start=True)
        self._running[rung.key] = server
        watched = _Watched(rung)
        with watched, boot_view.progress(f"{rung.envelope.name} starts ({self._engine})") as show:
            result = boot_and_wait(server, rung.envelope, show)
        self._manifest = result.manifest
        record = record_of(result, server, rung.envelope)
        if result.failure is not None and result.failure.could_not_run:
            raise CouldNotRun(
                f"{rung.envelope.name} was not started: {result.failure.what}",
                result.failure.mend,
                tuple(f"{number}: {text}" for number, text in result.failure.lines),
            )
        self.conditions = record.conditions
        return replace(record, details={**record.details, "telemetry": watched.seen(gpus_of(result.manifest))})

    def verify(self, rung: Rung) -> Record:
        from sm86.verify.record import report_to_record
        from sm86.verify.verify import verify_log

        started, clock = datetime.now(UTC), time.monotonic()
        log = self._server(rung).log_chunks(follow=False, this_run=True)
        report = verify_log(rung.envelope, log, None, f"the log of {rung.envelope.name}")
        return report_to_record(report, rung.envelope, started, round(time.monotonic() - clock, 3))

    def bench(self, rung: Rung, verified: bool) -> Record:
        from sm86.cli.bench import progress
        from sm86.measure.api_key import read_api_key
        from sm86.measure.bench import run
        from sm86.measure.client import Client, parse_address
        from sm86.measure.plan import plan
        from sm86.measure.result import to_record

        steps = plan(rung.envelope, self._repeats, self._decode_tokens)
        client = Client(parse_address(self._server(rung).base_url), read_api_key(None))
        state = "pass" if verified else "fail"
        watcher = gpu_watcher(rung.envelope, self._manifest)
        with progress() as shown:
            return to_record(run(rung.envelope, steps, client, self.conditions, state, shown, telemetry=watcher))

    def down(self, rung: Rung) -> None:
        from sm86.boot.state import MISSING

        server = self._server(rung)
        if server.state().kind == MISSING:
            return
        try:
            keep_log(server, say, self._results)
            stopped = server.stop()
        except KeyboardInterrupt:
            # who is impatient must not leave a server on the GPUs
            server.stop()
            raise
        self._running.pop(rung.key, None)
        if stopped.leftovers:
            raise CheckFailed(
                f"{rung.envelope.name} is not wholly gone: {', '.join(stopped.leftovers)}",
                "see dmesg; a process that waits inside the driver ends only with a reboot",
            )

    def save(self, record: Record) -> str:
        return str(save(record, self._results))

    def now(self) -> tuple[str, float]:
        return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"), time.monotonic()

    def _server(self, rung: Rung, to_start: bool = False) -> ServerEngine:
        running = self._running.get(rung.key)
        if running is not None:
            return running
        overrides = tuple(f"{name}={value}" for name, value in rung.overrides)
        return self._open(rung.envelope, self._engine, self._port, overrides, to_start=to_start)

    def _runs_already(self, rung: Rung) -> CouldNotRun:
        option = "" if self._engine == "docker" else f" --engine {self._engine}"
        return CouldNotRun(
            f"{rung.envelope.name} already runs, and a ladder starts its own server",
            f"stop it first: invoke down --envelope {rung.envelope.name}{option}",
        )


class _Watched:
    """The GPUs while a block runs; `seen` then gives what a record keeps of those that the server runs on."""

    def __init__(self, rung: Rung) -> None:
        self._watcher = gpu_watcher(rung.envelope)
        self._began = time.perf_counter()
        self._ended = self._began

    def __enter__(self) -> _Watched:
        if self._watcher is not None:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        self._ended = time.perf_counter()

    def seen(self, uuids: Sequence[str]) -> Mapping[str, Any]:
        if self._watcher is not None:
            self._watcher.only(uuids)
        return summarise(self._watcher, ((self._began, self._ended),), self._began).to_json()


def say(text: str) -> None:
    print(printable(f"sm86: {text}"), file=sys.stderr, flush=True)
