"""Starting a server and watching it until it answers, dies or is given up: the boot's only loop."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sm86.boot import phases as names
from sm86.boot.deadline import Deadline, Expired
from sm86.boot.failures import Failure, classify, make_scanner
from sm86.boot.kinds import Case
from sm86.boot.phases import BootPhases, Phase, applicable
from sm86.boot.state import CREATED, MISSING, EngineState
from sm86.host import processes
from sm86.host.engine import ServerEngine
from sm86.host.health import health
from sm86.host.timestamps import epoch
from sm86.manifest import Value
from sm86.spec import Envelope
from sm86.verify import events as e
from sm86.verify.reader import LogReader

OnPhase = Callable[[tuple[Phase, ...], float], None]
"""Called with every phase as it stands and the seconds since the boot began: at each change, and each second."""

TICK_S = 0.1
ASK_EVERY_S = 0.5
CATCH_UP_S = 2.0
BURST_S = 2.0
"""A log that was written before is read within this time."""

QUIET_TICKS = 5
"""Ticks without a word after which the log has told what it had; one alone may be a busy machine's pause."""
DRAIN_S = 5.0
"""After a death the rest of the log is waited for; the engine closes the stream within moments."""


@dataclass(frozen=True, slots=True)
class BootResult:
    """How a boot ended. failure: None when the server answers. seconds: from its start.

    attached: it was started by another command before, so the phases that had passed by then have no times.
    left_running: it failed, but a process is still there for inspection.
    manifest: the launcher's, as far as it was printed; None where there was none.
    """

    phases: tuple[Phase, ...]
    seconds: float
    started: datetime
    base_url: str
    state: EngineState
    failure: Failure | None = None
    attached: bool = False
    left_running: bool = False
    manifest: dict[str, Value] | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None


def boot_and_wait(
    engine: ServerEngine,
    envelope: Envelope,
    on_phase: OnPhase | None = None,
    attach: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> BootResult:
    """Start the server (with `attach`: watch one that was started before) and wait until it serves or has failed.

    It ends within the envelope's boot limit. A server that died is kept from restarting and left for inspection; one
    that hangs or is too slow goes on running, which `left_running` says. Raises Sm86Error when it cannot be started;
    KeyboardInterrupt passes through and leaves the server as it is.
    """
    return _Watch(engine, envelope, on_phase or (lambda phases, seconds: None), clock).run(attach)


class _Watch:
    def __init__(self, engine: ServerEngine, envelope: Envelope, on_phase: OnPhase, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._envelope = envelope
        self._tell = on_phase
        self._clock = clock
        self._zero = clock()
        self._started = datetime.now(UTC)
        self._phases = BootPhases(applicable(envelope, engine.kind == "docker"), self._zero)
        self._deadline = Deadline(envelope.boot.limit_s, envelope.serve.tensor_parallel, self._zero)
        self._reader = LogReader()
        self._scanner = make_scanner()
        self._manifest: dict[str, Value] = {}
        self._chunks: queue.Queue[bytes | Exception | None] = queue.Queue(maxsize=64)
        self._health: int | None = None
        self._told = -1.0
        self._log_open = False
        self._over = threading.Event()
        self._oom_kills = processes.oom_kills()

    def run(self, attach: bool) -> BootResult:
        try:
            return self._run(attach)
        finally:
            self._over.set()

    def _run(self, attach: bool) -> BootResult:
        self._show()
        restarts = 0
        if attach:
            restarts = self._engine.state().restart_count
        else:
            self._engine.start()
        self._phases.enter(names.START, self._clock())
        self._deadline.life(self._clock())
        self._show()
        base_url = self._engine.base_url
        # a start of our own is told from its first word, also what came before a restart that was faster than we
        self._follow(this_run=attach)
        asked = -ASK_EVERY_S
        while True:
            self._take_chunk()
            now = self._clock()
            if now - asked < ASK_EVERY_S and self._log_open:
                continue
            asked = now
            state = self._engine.state()
            if state.has_died(restarts) or state.kind in (MISSING, CREATED):
                return self._failed(state, base_url, None, attach)
            self._health = health(base_url)
            if self._health == 200:
                self._catch_up()
                self._phases.passed(self._clock())
                self._show()
                return self._result(state, base_url, attach)
            expired = self._deadline.expired(self._phases.current, self._clock())
            if expired:
                return self._failed(state, base_url, expired, attach)
            if not self._log_open:
                # the stream ended and the server has not: the engine closed it, so it is opened again at its end
                time.sleep(TICK_S)
                self._follow(tail=0, this_run=attach)

    def _follow(self, this_run: bool, tail: int | None = None) -> None:
        chunks, engine, over = self._chunks, self._engine, self._over

        def put(item: bytes | Exception | None) -> bool:
            while not over.is_set():
                try:
                    chunks.put(item, timeout=ASK_EVERY_S)
                    return True
                except queue.Full:
                    continue
            return False

        def pump() -> None:
            try:
                for chunk in engine.log_chunks(follow=True, tail=tail, this_run=this_run):
                    if not put(chunk):
                        return
                put(None)
            except Exception as error:
                put(error)

        self._log_open = True
        # a daemon: a stream that blocks for ever must not keep the command from ending
        threading.Thread(target=pump, daemon=True, name="log").start()

    def _take_chunk(self) -> bool:
        """Take what has come, waiting for it a tick at most; notes when the stream has ended. False: nothing came."""
        try:
            chunk = self._chunks.get(timeout=TICK_S)
        except queue.Empty:
            self._show(tick=True)
            return False
        if isinstance(chunk, Exception):
            raise chunk
        if chunk is None:
            self._log_open = False
        else:
            self._read(chunk)
        return True

    def _catch_up(self) -> None:
        """Read what the server said before it answered: the answer may come faster than its log."""
        deadline = time.monotonic() + CATCH_UP_S
        quiet = 0
        while self._log_open and quiet < QUIET_TICKS and time.monotonic() < deadline:
            quiet = 0 if self._take_chunk() else quiet + 1

    def _read(self, chunk: bytes) -> None:
        now = self._clock()
        changed = False
        joining = False
        for event in self._reader.feed(chunk):
            before = self._phases.list()
            self._phases.observe(event, now)
            changed = changed or self._phases.list() != before
            self._note(event, now)
            if isinstance(event, e.NcclVersion):
                joining = True
            elif not isinstance(event, e.CollectiveStall):
                joining = False
        lines = self._scanner.feed(chunk)
        if any(line.is_life for line in lines):
            self._deadline.life(now)
        if joining:
            self._deadline.nccl_named(now)
        self._show(tick=not changed)

    def _note(self, event: e.Event, now: float) -> None:
        if isinstance(event, e.ManifestMark) and event.begin:
            self._manifest = {}
        elif isinstance(event, e.ManifestEntry) and event.section == "manifest":
            self._manifest[event.key] = event.value
        elif isinstance(event, e.StartupComplete):
            self._deadline.server_says_ready(now)

    def _failed(self, state: EngineState, base_url: str, expired: Expired | None, attach: bool) -> BootResult:
        if expired is None:
            # what keeps a dead server from being restarted also closes its log
            self._engine.halt()
            self._drain()
            after = self._engine.state()
            state = after if after.exit_code is not None and state.exit_code is None else state
        self._phases.failed(self._clock())
        self._show()
        answers = "nothing" if self._health is None else f"HTTP {self._health}"
        kills = processes.oom_kills()
        ran_out = kills is not None and self._oom_kills is not None and kills > self._oom_kills
        case = Case(self._envelope, self._phases, state, self._scanner, expired, answers, ran_out)
        return self._result(state, base_url, attach, classify(case), left_running=expired is not None)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while self._log_open and time.monotonic() < deadline:
            self._take_chunk()
        for event in self._reader.close():
            self._phases.observe(event, self._clock())
        self._scanner.close()

    def _result(
        self,
        state: EngineState,
        base_url: str,
        attached: bool,
        failure: Failure | None = None,
        left_running: bool = False,
    ) -> BootResult:
        found, seconds = self._phases.list(), self._phases.seconds(self._clock())
        if attached:
            # what had passed before came in one burst, whose times mean nothing
            found = tuple(p if (p.began or 0.0) > BURST_S else replace(p, seconds=None) for p in found)
            seconds = max(time.time() - epoch(state.started_at), seconds) if state.started_at else seconds
        return BootResult(
            found,
            seconds,
            self._started,
            base_url,
            state,
            failure,
            attached,
            left_running,
            self._manifest or None,
        )

    def _show(self, tick: bool = False) -> None:
        now = self._clock()
        if not tick or now - self._told >= 1.0:
            self._told = now
            self._tell(self._phases.list(), now - self._zero)
