"""What a ladder does to a server, with a server that only says what happened to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm86.boot.failures import Failure
from sm86.boot.state import EXITED, MISSING, RUNNING, EngineState
from sm86.cli.ladder_hands import LadderHands
from sm86.errors import CheckFailed, CouldNotRun
from sm86.host import facts
from sm86.host.engine import Stopped
from sm86.host.watch import BootResult
from sm86.ladder import judge
from sm86.ladder.cause import MEMORY
from sm86.ladder.rungs import COMM, SEQUENCE, rungs

LOG = (Path(__file__).parents[1] / "launch/data/cpu-smoke.log").read_bytes()
CPU = rungs(SEQUENCE, "cpu-smoke")[0]
RIG = rungs(SEQUENCE)[0]


class Server:
    """A server engine whose state is told; `did` is what was asked of it."""

    kind = "docker"
    base_url = "http://127.0.0.1:9"
    envelope = CPU.envelope

    def __init__(self, state: str = MISSING, leftovers: tuple[str, ...] = (), log: bytes = LOG) -> None:
        self.now, self.left, self.log = state, leftovers, log
        self.did: list[str] = []

    def state(self) -> EngineState:
        return EngineState(self.now, image_id="sha256:1")

    def check(self) -> str:
        self.did.append("check")
        return "sha256:1"

    def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False) -> Iterator[bytes]:
        yield self.log

    def stop(self) -> Stopped:
        self.did.append("stop")
        was, self.now = self.state(), MISSING
        return Stopped(was, 0.1, False, self.left)

    def describe(self) -> str:
        return "a server of the tests"


@pytest.fixture
def hands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Hands on one stand-in server; `opened` holds what it was opened with."""
    monkeypatch.setattr(facts, "GPU_QUERY_S", 0.0)

    def make(server: Server) -> Any:
        opened: list[tuple[Any, ...]] = []

        def open_server(envelope, engine, port, overrides, to_start=False):
            opened.append((envelope.name, engine, port, overrides, to_start))
            return server

        made = LadderHands("docker", 8731, 1, None, tmp_path, open_server)
        return SimpleNamespace(hands=made, opened=opened, results=tmp_path)

    return make


def booted(monkeypatch: pytest.MonkeyPatch, server: Server, failure: Failure | None, manifest=None) -> None:
    from sm86.host import watch

    def boot(engine, envelope, show):
        server.now = EXITED if failure else RUNNING
        return BootResult((), 1.0, datetime.now(UTC), "", server.state(), failure, manifest=manifest)

    monkeypatch.setattr(watch, "boot_and_wait", boot)


def test_a_server_that_runs_already_is_not_taken_over(hands) -> None:
    server = Server(RUNNING)
    made = hands(server)
    for step in (made.hands.check, made.hands.boot):
        with pytest.raises(CouldNotRun, match="starts its own server") as fault:
            step(CPU)
        assert "invoke down --envelope cpu-smoke" in fault.value.mend
    assert server.did == []


def test_the_overrides_of_a_rung_reach_its_server(hands) -> None:
    tree = next(rung for rung in rungs(COMM) if rung.key == "tree-simple")
    made = hands(Server())
    assert made.hands.check(tree) == "sha256:1"
    assert made.opened[0] == ("sm86-64k", "docker", 8731, ("NCCL_ALGO=Tree", "NCCL_PROTO=Simple"), True)


def test_lengths_that_cannot_work_are_told_before_anything_is_started(tmp_path: Path) -> None:
    made = LadderHands("docker", None, 1, 5000, tmp_path, lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(CouldNotRun, match="do not fit the context"):
        made.check(CPU)


def test_a_failed_boot_is_a_record_and_a_refused_one_is_none(hands, monkeypatch) -> None:
    server = Server()
    made = hands(server)
    booted(monkeypatch, server, Failure("capture OOM", "memory ran out", "free it", ((7, "CUDA out of memory"),)))
    record = made.hands.boot(CPU)
    cause = judge.of_boot(record, CPU)
    assert cause is not None and cause.kind == MEMORY and cause.evidence == ("7: CUDA out of memory",)
    server = Server()
    made = hands(server)
    booted(monkeypatch, server, Failure("refused by the launcher", "no model", "fetch it", (), could_not_run=True))
    with pytest.raises(CouldNotRun, match="was not started: no model"):
        made.hands.boot(CPU)
    made.hands.down(CPU)
    assert server.did == ["stop"]


def test_a_boot_on_the_cpu_says_that_there_is_no_gpu(hands, monkeypatch) -> None:
    server = Server()
    booted(monkeypatch, server, None)
    record = hands(server).hands.boot(CPU)
    assert record.details["failure"] is None and record.details["telemetry"]["state"] == "not applicable"
    assert record.conditions.mark == "CPU"


def test_a_boot_on_gpus_keeps_what_they_did(hands, monkeypatch) -> None:
    nvml = Path(__file__).parents[1] / "measure" / "nvml"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(nvml), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("FAKE_NVML", json.dumps({"kind": "no driver"}))
    server = Server()
    booted(monkeypatch, server, None, {"gpus": ["GPU-0"]})
    record = hands(server).hands.boot(RIG)
    assert record.details["telemetry"]["state"] == "not seen", "a driver that cannot be asked stops no boot"


def test_the_log_is_judged_and_kept_when_the_server_goes(hands) -> None:
    server = Server(RUNNING)
    made = hands(server)
    record = made.hands.verify(CPU)
    assert record.kind == "verify" and record.verdicts
    made.hands.down(CPU)
    (kept,) = (made.results / "cpu-smoke").glob("*-server.log")
    assert kept.read_bytes() == LOG and server.did == ["stop"]
    made.hands.down(CPU)
    assert server.did == ["stop"], "nothing runs, so nothing is stopped"


def test_a_server_that_does_not_wholly_go_is_told(hands) -> None:
    made = hands(Server(RUNNING, leftovers=("4711 (VLLM::Worker_TP3)",)))
    with pytest.raises(CheckFailed, match="4711"):
        made.hands.down(CPU)


def test_a_log_that_cannot_be_kept_does_not_keep_the_server(hands, tmp_path: Path, capsys) -> None:
    (tmp_path / "cpu-smoke").write_text("a file where a folder should be")
    server = Server(RUNNING)
    hands(server).hands.down(CPU)
    assert server.did == ["stop"] and "cannot be kept" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["log", "stop"])
def test_a_second_interrupt_does_not_leave_the_server(hands, moment: str) -> None:
    class Impatient(Server):
        def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False) -> Iterator[bytes]:
            if moment == "log":
                raise KeyboardInterrupt
            yield self.log

        def stop(self) -> Stopped:
            if moment == "stop" and not self.did:
                self.did.append("interrupted")
                raise KeyboardInterrupt
            return super().stop()

    server = Impatient(RUNNING)
    with pytest.raises(KeyboardInterrupt):
        hands(server).hands.down(RIG)
    assert server.did[-1] == "stop" and server.state().kind == MISSING
