"""The probes' commands: a boot with diagnostics, its log read, and nothing left running, whatever happens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm86.boot.state import EXITED, MISSING, RUNNING, EngineState
from sm86.cli import ending
from sm86.cli import probe as cli
from sm86.errors import CheckFailed, CouldNotRun
from sm86.record import Conditions, Number, Record, load, save
from sm86.spec import load_envelope
from tests.measure import replay
from tests.probe.test_probe_dispatch import batch, lines_of
from tests.probe.test_probe_spec import log


class Server:
    kind = "local"

    def __init__(self, envelope, url: str, text: str, up: bool) -> None:
        self.envelope, self.base_url, self._text, self.up, self.stops = envelope, url, text, up, 0
        self.before = MISSING

    def start(self) -> None:
        self.up = True

    def state(self) -> EngineState:
        return EngineState(RUNNING if self.up else self.before)

    def describe(self) -> str:
        return "process 1"

    def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False):
        yield self._text.encode()

    def plan(self) -> tuple[str, ...]:
        return ("the launcher's command",)

    def stop(self) -> None:
        self.stops += 1
        self.up = False


@pytest.fixture
def booted(monkeypatch):
    """A boot that succeeds at once, with a server on loopback and a log of our choosing."""
    base = load_envelope("sm86-64k")
    envelope = replace(
        base,
        serve=replace(base.serve, served_model_name=replay.MODEL, context=replay.CONTEXT, block_size=16),
        bench=replace(base.bench, prompt_tokens=400),
    )
    monkeypatch.setattr(cli, "load_envelope", lambda name: envelope if name == "e" else load_envelope(name))
    monkeypatch.setattr(cli, "LOG_WAIT_S", 0.0)
    from sm86.host import watch

    opened: list[tuple] = []
    result = SimpleNamespace(failure=None, manifest=None)

    def boot_and_wait(server: Server, *_: object) -> SimpleNamespace:
        server.start()
        return result

    monkeypatch.setattr(watch, "boot_and_wait", boot_and_wait)
    behaviour = replay.Behaviour()
    with replay.serving(behaviour) as found:

        def use(text: list[str], up: bool = False) -> Server:
            server = Server(envelope, found.url, "\n".join(text), up)

            def open_engine(*args, **kwargs):
                opened.append((args, kwargs))
                return server

            monkeypatch.setattr(cli, "open_engine", open_engine)
            return server

        use.envelope, use.opened, use.result, use.behaviour = envelope, opened, result, behaviour  # type: ignore[attr-defined]
        yield use


HIT = lines_of(batch(), batch(), batch())
LOST = lines_of(batch(), batch(mode="NONE"))


def test_a_captured_boot_passes_and_is_brought_down(booted, tmp_path, capsys) -> None:
    server = booted(HIT)
    assert cli.dispatch("e", "local", tokens=64, results_dir=tmp_path) == 0
    assert server.stops == 1
    assert ("CUDAGRAPH_DISPATCH_DEBUG=1",) in booted.opened[-1][0]
    record = load(next((tmp_path / booted.envelope.name).glob("*-probe.json")))
    assert (record.kind, record.verdicts[0].state) == ("probe", "pass")
    assert {n.name: n.value for n in record.numbers} == {"batches hit": 3.0}
    assert "3 x hit   cg_mode=FULL" in capsys.readouterr().out


def test_a_missed_batch_is_a_finding_with_its_line(booted, tmp_path, capsys) -> None:
    server = booted(LOST)
    assert cli.dispatch("e", "local", results_dir=tmp_path, json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "sm86.probe" and told["state"] == "fail"
    assert "the next root cause, at line 2" in told["text"] and told["mend"]
    assert server.stops == 1


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), CheckFailed("a", "b"), RuntimeError("a fault")])
def test_nothing_is_left_running_whatever_happens(booted, tmp_path, monkeypatch, fault) -> None:
    server = booted(HIT)

    def fail(*_):
        raise fault

    monkeypatch.setattr(cli, "_decode", fail)
    with pytest.raises(type(fault)):
        cli.dispatch("e", "local", results_dir=tmp_path)
    assert server.stops == 1
    assert list(tmp_path.rglob("*.json")) == []


def test_a_second_interrupt_does_not_leave_the_server(booted, tmp_path, monkeypatch) -> None:
    server = booted(HIT)
    right = server.stop

    def impatient() -> None:
        right()
        if server.stops == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(server, "stop", impatient)
    with pytest.raises(KeyboardInterrupt):
        cli.dispatch("e", "local", results_dir=tmp_path)
    assert server.stops == 2


def test_the_key_is_sent_and_a_wrong_file_is_told_before_a_boot(booted, tmp_path) -> None:
    booted(HIT)
    with pytest.raises(CouldNotRun, match="cannot read the API key file"):
        cli.dispatch("e", "local", api_key_file=str(tmp_path / "none"))
    assert booted.opened == []
    booted.behaviour.key = "open-sesame"
    file = tmp_path / "key"
    file.write_text("open-sesame\n")
    assert cli.dispatch("e", "local", api_key_file=str(file), results_dir=tmp_path) == 0


def test_a_boot_that_fails_is_told_with_its_reason_and_brought_down(booted, tmp_path) -> None:
    server = booted(HIT)
    booted.result.failure = SimpleNamespace(what="out of memory", mend="fewer blocks", lines=((7, "CUDA OOM"),))
    with pytest.raises(CheckFailed, match="the probe's boot failed: out of memory") as caught:
        cli.spec("e", "local", results_dir=tmp_path)
    assert caught.value.evidence == ("CUDA OOM",) and server.stops == 1
    assert kept_log(tmp_path, booted.envelope.name) == "\n".join(HIT)


def kept_log(results: Path, name: str) -> str:
    (log,) = (results / name).glob("*-server.log")
    return log.read_text()


def test_the_server_s_log_is_kept_beside_the_record(booted, tmp_path, capsys) -> None:
    """The record holds the first lines alone, and a container that is removed takes its log with it."""
    booted(LOST)
    assert cli.dispatch("e", "local", results_dir=tmp_path) == 1
    assert kept_log(tmp_path, booted.envelope.name) == "\n".join(LOST)
    (log,) = (tmp_path / booted.envelope.name).glob("*-server.log")
    record = load(next((tmp_path / booted.envelope.name).glob("*-probe.json")))
    assert record.details["server_log"] == log.name
    told = capsys.readouterr()
    assert f"log: {log}" in told.out and told.err.index(f"log is kept: {log}") < told.err.index("stopping process 1")


def test_a_log_that_cannot_be_kept_costs_neither_record_nor_stop(booted, tmp_path, monkeypatch, capsys) -> None:
    server = booted(HIT)

    def full(*_: object) -> None:
        raise CouldNotRun("no space", "make room")

    monkeypatch.setattr(ending, "write_atomic", full)
    assert cli.dispatch("e", "local", results_dir=tmp_path, json=True) == 0
    told = capsys.readouterr()
    assert "the server's log cannot be kept: no space" in told.err and json.loads(told.out)["server_log"] is None
    assert server.stops == 1


@pytest.mark.parametrize("before", [MISSING, EXITED])
def test_a_start_that_came_to_nothing_is_not_stopped(booted, tmp_path, monkeypatch, before, capsys) -> None:
    """No driver, no image, a taken port: what an earlier start left is neither stopped nor told as this one's."""
    server = booted(HIT)
    server.before = before

    def refused() -> None:
        raise CouldNotRun("no NVIDIA driver", "install it")

    monkeypatch.setattr(server, "start", refused)
    with pytest.raises(CouldNotRun, match="no NVIDIA driver"):
        cli.dispatch("e", "docker", results_dir=tmp_path)
    assert server.stops == 0 and "stopping" not in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_asked_is_stopped(booted, tmp_path, monkeypatch) -> None:
    server = booted(HIT)
    right = server.state
    began = []

    def state() -> EngineState:
        if began:
            raise CouldNotRun("the engine does not answer", "start it")
        return right()

    def start() -> None:
        began.append(True)
        raise CouldNotRun("the engine went away", "start it")

    monkeypatch.setattr(server, "state", state)
    monkeypatch.setattr(server, "start", start)
    with pytest.raises(CouldNotRun, match="went away"):
        cli.dispatch("e", "local", results_dir=tmp_path)
    assert server.stops == 1


def test_a_server_that_runs_already_is_not_touched(booted, tmp_path) -> None:
    server = booted(HIT, up=True)
    with pytest.raises(CouldNotRun, match="runs already"):
        cli.dispatch("e", "local", results_dir=tmp_path)
    assert server.stops == 0


def test_drafts_are_read_out_beside_the_benchmark_without_them(booted, tmp_path, capsys) -> None:
    booted(log("NONE", "NONE"))
    from datetime import UTC, datetime

    plain = Record(
        kind="bench",
        envelope=booted.envelope.name,
        envelope_digest=booted.envelope.digest(),
        started=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=1.0,
        conditions=Conditions(engine="cuda", mark=""),
        numbers=(Number("decode aggregate", 1e6, "tok/s", (1e6,)),),
    )
    save(plain, tmp_path)
    assert cli.spec("e", "local", results_dir=tmp_path) == 1
    said = capsys.readouterr().out
    assert "not captured" not in said.splitlines()[0]
    assert "by design of vLLM 0.26.0" in said and "without: 1000000.0 tok/s" in said
    settings = booted.opened[-1][0][3]
    assert settings[0].startswith("SPECULATIVE_CONFIG={") and "CUDAGRAPH_DISPATCH_DEBUG=1" in settings


def test_a_damaged_benchmark_does_not_cost_the_probe(booted, tmp_path, capsys) -> None:
    booted(log("NONE", "NONE"))
    folder = tmp_path / booted.envelope.name
    folder.mkdir()
    (folder / "20260101T000000Z-bench.json").write_text("{")
    assert cli.spec("e", "local", results_dir=tmp_path) == 1
    assert list(folder.glob("*-probe*.json")) and "by design" in capsys.readouterr().out


@pytest.mark.parametrize("config", ["none", "{}", "nonsense", '{"method":"mtp"}'])
def test_a_wrong_config_is_told_before_a_boot(booted, config: str) -> None:
    booted(HIT)
    with pytest.raises(CouldNotRun):
        cli.spec("e", "local", config=config)
    assert booted.opened == []


@pytest.mark.parametrize("command", [cli.dispatch, cli.spec])
def test_on_the_cpu_engine_there_is_nothing_to_probe(command, capsys) -> None:
    assert command("cpu-smoke") == 0
    assert "not applicable: no CUDA graphs on this engine; nothing was started" in capsys.readouterr().out
    assert command("cpu-smoke", json=True) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "not applicable"


def test_a_dry_run_starts_nothing(booted, capsys) -> None:
    server = booted(HIT)
    assert cli.dispatch("e", "local", dry_run=True) == 0
    assert "nothing was started" in capsys.readouterr().out and server.stops == 0
    for command, task in ((cli.dispatch, "probe.dispatch"), (cli.spec, "probe.spec")):
        assert command("e", "local", dry_run=True, json=True) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["schema"], told["task"]) == ("sm86.dry-run", task) and "nothing was started" in told["lines"][0]
