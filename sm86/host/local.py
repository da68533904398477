"""Engine `local`: the launcher as a process of this machine, in its own session, for machines without Docker.

The process outlives the command that started it. What later commands need is in `.cache/run/<envelope>/`:
`server.log` (`server.log.1` is the run before) and `server.json` (who it is). A process is only ever believed,
or killed, when its number and its start time both fit, so a reused number is never taken for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.host import processes
from sm86.host.engine import EXITED, MISSING, RUNNING, EngineState, Stopped
from sm86.host.ports import require_free_port
from sm86.json_text import parse as parse_json
from sm86.spec import Envelope, envelope_names, load_envelope
from sm86.spec.argv import serve_argv

RUN_DIR = Path(".cache/run")
HOST = "127.0.0.1"

RUN_VARIABLE = "SM86_RUN_ID"
"""In the environment of the server and of all its children: tells ours from others after the first process has gone."""

POLL_S = 0.1
KILLED_WITHIN_S = 10.0
"""After SIGKILL the kernel still has to free GPU memory; 8 GPUs were seen to take seconds."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What `start` runs. python: the interpreter that has vLLM; model_path: the checkpoint's folder; environment: set
    for the process beside this one's own."""

    python: Path
    model_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """The process on record. exit_code and oom_killed are known only if the command that started it saw the end."""

    run_id: str
    pid: int
    start_ticks: int
    boot_id: str
    port: int
    started: str
    argv: tuple[str, ...]
    oom_kills: int | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    digest: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)


class LocalEngine:
    """One envelope's server as a process. Without `launch` it can be looked at and stopped, not started."""

    kind = "local"

    def __init__(
        self,
        envelope: Envelope,
        port: int,
        launch: Launch | None = None,
        grace_s: float = 30.0,
        run_dir: Path = RUN_DIR,
        overrides: Mapping[str, str] | None = None,
        port_matters: bool = False,
    ) -> None:
        """port: what `start` binds; port_matters: one that runs on another port `differs`; grace_s: between SIGTERM and
        SIGKILL; overrides: settings of this run, NAME to VALUE."""
        self.envelope = envelope
        self._port = port
        self._port_matters = port_matters
        self._overrides = dict(overrides or {})
        self._launch = launch
        self._grace_s = grace_s
        # absolute, so that a later change of the working folder does not lose a running server
        self.folder = (run_dir / envelope.name).absolute()
        self._child: subprocess.Popen[bytes] | None = None
        # who follows the log asks for the state in a thread of its own, and notes an end while another one stops it
        self._record = threading.Lock()

    @property
    def base_url(self) -> str:
        run = self._run()
        return f"http://{HOST}:{run.port if run and self._is_ours_alive(run) else self._port}"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def describe(self) -> str:
        run = self._run()
        return f"process {run.pid}" if run else "no process"

    def argv(self) -> tuple[str, ...]:
        """The launcher's whole command line."""
        launch = self._needed_launch()
        # -P: the folder it runs in must not shadow the installed vllm or sm86
        argv = [str(launch.python), "-P", "-m", "sm86.launch", "--envelope", self.envelope.name]
        sets = [word for name, value in self._overrides.items() for word in ("--set", f"{name}={value}")]
        if _is_shipped(self.envelope):
            place = ("--model-path", str(launch.model_path), "--host", HOST, "--port", str(self._port))
            return (*argv, *place, *sets)
        # the launcher knows the shipped specs alone: a user's own comes with its arguments, as in a Compose service
        serve = serve_argv(self.envelope, str(launch.model_path), HOST, self._port)
        return (*argv, "--envelope-digest", self.envelope.digest(), *sets, "--", *serve)

    def plan(self) -> tuple[str, ...]:
        import shlex

        launch = self._needed_launch()
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(launch.environment.items()))
        return (f"{settings} {shlex.join(self.argv())}".strip(), f"log: {self.log_path}")

    def start(self) -> None:
        """Start the launcher; it goes on when this command ends. Raises CouldNotRun: it runs already, the port is
        taken, the interpreter or the state folder cannot be used."""
        launch = self._needed_launch()
        with self._alone():
            run = self._run()
            if run and self._is_ours_alive(run):
                raise CouldNotRun(
                    f"{self.envelope.name} already runs as process {run.pid}",
                    f"invoke down --envelope {self.envelope.name} --engine local",
                )
            require_free_port(self._port)
            self._start_alone(launch)

    def state(self) -> EngineState:
        with self._record:
            return self._state()

    def _state(self) -> EngineState:
        run = self._run()
        if run is None:
            return EngineState(MISSING)
        if self._child and self._child.pid == run.pid:
            code = self._child.poll()
            if code is None:
                return EngineState(RUNNING, started_at=run.started)
            run = self._ended(run, code)
        elif self._is_ours_alive(run):
            return EngineState(RUNNING, started_at=run.started)
        return EngineState(EXITED, run.exit_code, run.oom_killed, started_at=run.started)

    def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False) -> Iterator[bytes]:
        try:
            file = self.log_path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise CouldNotRun(f"cannot read {self.log_path}: {error.strerror}", "check its permissions") from None
        with file:
            if tail is not None:
                yield b"".join(deque(file, maxlen=tail)) if tail else b""
                file.seek(0, os.SEEK_END) if not tail else None
            while True:
                # asked before reading: what a process wrote before its end is then never missed
                up = follow and self.state().is_up
                chunk = file.read(1 << 16)
                if chunk:
                    yield chunk
                elif not up:
                    return
                else:
                    time.sleep(POLL_S)

    def stop(self) -> Stopped:
        """SIGTERM to every process of the server's session, SIGKILL after the grace; what is left is named."""
        began = time.monotonic()
        was = self.state()
        run = self._run()
        if run is None:
            return Stopped(was, 0.0)
        forced, left = self._end(run)
        if not left:
            # the log stays for whoever asks what happened
            with self._record:
                (self.folder / "server.json").unlink(missing_ok=True)
                self._child = None
        return Stopped(was, time.monotonic() - began, forced, tuple(f"{p.pid} ({p.title})" for p in left))

    def halt(self) -> None:
        run = self._run()
        if run is not None:
            self._end(run)
            self.state()

    def differs(self) -> str | None:
        run = self._run()
        if run is None:
            return None
        if run.digest != self.envelope.digest():
            return "its envelope was another one (the file has changed since)"
        if self._port_matters and run.port != self._port:
            return f"it listens on port {run.port}"
        for name, value in self._overrides.items():
            has = run.overrides.get(name)
            if has != value:
                return f"it has {name}={has}" if has is not None else f"it was started without {name}"
        return None

    def _end(self, run: Run) -> tuple[bool, list[processes.Process]]:
        """End every process of the run: whether SIGKILL was needed, and what is still there."""
        members = self._members(run)
        for member in members:
            processes.send(member.pid, signal.SIGTERM)
        members = self._wait(run, self._grace_s) if members else []
        for member in members:
            processes.send(member.pid, signal.SIGKILL)
        return bool(members), self._wait(run, KILLED_WITHIN_S) if members else []

    def leftovers(self) -> tuple[str, ...]:
        """Processes of the server's session that outlived its first process; empty while that runs."""
        run = self._run()
        if run is None or self.state().is_up:
            return ()
        return tuple(f"{process.pid} ({process.title})" for process in self._members(run))

    def _needed_launch(self) -> Launch:
        if self._launch is None:
            raise CouldNotRun(f"{self.envelope.name} cannot be started from here", "use invoke up")
        return self._launch

    def _start_alone(self, launch: Launch) -> None:
        argv = self.argv()
        run_id = os.urandom(8).hex()
        log = self.log_path
        try:
            if log.exists():
                os.replace(log, log.with_name("server.log.1"))
            with log.open("wb") as output:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **launch.environment, RUN_VARIABLE: run_id},
                )
        except OSError as error:
            raise CouldNotRun(
                f"cannot start {argv[0]}: {error.strerror or error}",
                "check that this interpreter exists and may be run",
            ) from None
        found = processes.read_process(child.pid)
        run = Run(
            run_id=run_id,
            pid=child.pid,
            start_ticks=found.start_ticks if found else 0,
            boot_id=processes.boot_id(),
            port=self._port,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=argv,
            oom_kills=processes.oom_kills(),
            digest=self.envelope.digest(),
            overrides=self._overrides,
        )
        try:
            self._save(run)
        except CouldNotRun:
            # a server that no later command could find again must not stay
            child.kill()
            child.wait()
            raise
        self._child = child

    def _ended(self, run: Run, code: int) -> Run:
        """The run with its end on record, written once."""
        if run.exit_code is not None:
            return run
        before, now = run.oom_kills, processes.oom_kills()
        oom = code == -signal.SIGKILL and before is not None and now is not None and now > before
        run = replace(run, exit_code=128 - code if code < 0 else code, oom_killed=oom)
        self._save(run)
        return run

    def _wait(self, run: Run, seconds: float) -> list[processes.Process]:
        deadline = time.monotonic() + seconds
        while True:
            if self._child:
                self._child.poll()
            members = self._members(run)
            if not members or time.monotonic() >= deadline:
                return members
            time.sleep(POLL_S)

    def _is_ours_alive(self, run: Run) -> bool:
        found = processes.read_process(run.pid)
        return (
            found is not None
            and not found.is_zombie
            and found.start_ticks == run.start_ticks
            and run.boot_id == processes.boot_id()
        )

    def _members(self, run: Run) -> list[processes.Process]:
        if run.boot_id != processes.boot_id():
            return []
        members = processes.session_members(run.pid, run.start_ticks)
        if self._is_ours_alive(run):
            return members
        # the session's number may have been given to someone else by now
        return [member for member in members if member.pid != run.pid and _carries(member, run.run_id)]

    def _run(self) -> Run | None:
        path = self.folder / "server.json"
        try:
            values = parse_json(path.read_text(encoding="utf-8"))
            return Run(**{**values, "argv": tuple(values["argv"])})
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CouldNotRun(f"cannot read {path}: {error.strerror}", "check its permissions") from None
        except (ValueError, TypeError, KeyError):
            raise CouldNotRun(
                f"{path} is damaged", "remove it, and end the server by hand if one still runs (ps -ef | grep vllm)"
            ) from None

    def _save(self, run: Run) -> None:
        write_atomic(self.folder / "server.json", json.dumps(asdict(run), indent=1) + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One command at a time starts this envelope."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise CouldNotRun(
                f"cannot write to {self.folder}: {error.strerror}", "make the folder writable, or free some space"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CouldNotRun(
                    f"another command starts {self.envelope.name} at this moment", "wait for it, then see invoke status"
                ) from None
            yield


def _is_shipped(envelope: Envelope) -> bool:
    """Whether the launcher has this very spec."""
    return envelope.name in envelope_names() and load_envelope(envelope.name).digest() == envelope.digest()


def _carries(process: processes.Process, run_id: str) -> bool:
    """Is it of that run: by the environment it was given, or, where vLLM's title has overwritten that, by the title."""
    try:
        environment = (processes.PROC / str(process.pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{RUN_VARIABLE}={run_id}".encode() in environment or process.title.startswith("VLLM::")
