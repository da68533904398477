"""The boot's loop on real processes: they print recorded logs, die, hang, answer 503, or never answer."""

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.boot import deadline, phases
from sm86.boot.state import EXITED, RUNNING, EngineState
from sm86.host import watch
from sm86.host.local import Launch, LocalEngine
from sm86.host.watch import boot_and_wait
from sm86.spec import Boot, load_envelope

TESTS = Path(__file__).parents[1]
STANDIN = TESTS / "boot" / "standin_server.py"
LOG = TESTS / "boot" / "logs" / "cpu_boot.log"
ENVELOPE = load_envelope("cpu-smoke")

BEGUN = "INFO 11-30 17:12:57 [cpu_model_runner.py:131] Starting to load model /models/m..."
UP = "INFO:     Application startup complete."


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(watch, "ASK_EVERY_S", 0.1)
    monkeypatch.setattr(watch, "TICK_S", 0.02)


@pytest.fixture
def make(tmp_path):
    made = []

    def build(*steps, limit_s=60, port=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        envelope = replace(ENVELOPE, boot=Boot(1, limit_s))
        launch = Launch(STANDIN, Path("/models/m"), {"STANDIN_STEPS": json.dumps(steps)})
        engine = LocalEngine(envelope, port or free, launch, 2.0, tmp_path / "run")
        made.append(engine)
        return engine, envelope

    yield build
    for engine in made:
        engine._grace_s = 0
        engine.stop()


def states(result):
    return {phase.name: phase.state for phase in result.phases}


def test_a_boot_that_passes_every_phase(make):
    told = []
    engine, envelope = make(["file", str(LOG)], ["health", 200], ["hang"])
    result = boot_and_wait(engine, envelope, lambda found, seconds: told.append((found, seconds)))
    assert result.ok and result.state.kind == RUNNING
    assert set(states(result).values()) == {phases.PASSED, phases.NOT_APPLICABLE}
    assert result.base_url == engine.base_url
    assert told[0][0][1].state == phases.RUNNING, "the first view comes before anything has happened"
    assert told[-1][0] == result.phases
    assert [seconds for _, seconds in told] == sorted(seconds for _, seconds in told)


def test_phases_come_as_they_pass_with_their_times(make):
    engine, envelope = make(
        ["sleep", 0.6], ["print", BEGUN], ["sleep", 0.6], ["print", UP], ["health", 200], ["hang"]
    )  # fmt: skip
    result = boot_and_wait(engine, envelope)
    times = {phase.name: phase.seconds for phase in result.phases}
    assert times[phases.START] >= 0.5
    assert times[phases.LOAD] >= 0.5
    assert states(result)[phases.PROFILE] == phases.NOT_SEEN


def test_a_server_that_answers_without_a_word_serves(make):
    engine, envelope = make(["health", 200], ["hang"])
    result = boot_and_wait(engine, envelope)
    assert result.ok
    assert states(result)[phases.LOAD] == phases.NOT_SEEN


def test_a_death_is_believed_and_its_last_words_are_read(make):
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."
    engine, envelope = make(["print", BEGUN], ["child", 60], ["print", oom], ["exit", 1])
    result = boot_and_wait(engine, envelope)
    assert not result.ok
    assert result.failure.kind == "weights OOM"
    assert result.failure.lines == ((2, oom),)
    assert result.state.kind == EXITED and result.state.exit_code == 1
    assert not result.left_running
    assert not engine.leftovers(), "workers of a dead server do not keep the GPUs"
    assert engine.state().exit_code == 1, "its state stays for inspection"


def test_a_refusal_of_the_launcher_is_no_failure_of_the_server(make):
    engine, envelope = make(["print", "sm86: there is no model at /models/m\nmend: download it"], ["exit", 2])
    failure = boot_and_wait(engine, envelope).failure
    assert (failure.kind, failure.what, failure.mend) == (
        "refused by the launcher",
        "there is no model at /models/m",
        "download it",
    )
    assert failure.could_not_run


def test_a_kill_from_outside(make):
    engine, envelope = make(["print", BEGUN], ["signal", 9])
    result = boot_and_wait(engine, envelope)
    assert result.failure.kind == "host OOM"
    assert result.state.exit_code == 137


def test_a_server_that_ends_without_an_error(make):
    engine, envelope = make(["print", BEGUN], ["exit", 0])
    assert boot_and_wait(engine, envelope).failure.kind == "ended early"


def test_a_boot_that_takes_too_long_is_given_up_and_left_running(make):
    engine, envelope = make(["print", BEGUN], ["hang"], limit_s=2)
    began = time.monotonic()
    result = boot_and_wait(engine, envelope)
    assert 2 <= time.monotonic() - began < 15
    assert result.failure.kind == "gave up"
    assert result.left_running and engine.state().kind == RUNNING


def test_a_silent_hang_is_noticed_long_before_the_limit(make, monkeypatch):
    monkeypatch.setitem(deadline.SILENCE_S, phases.LOAD, 1.0)
    engine, envelope = make(["print", BEGUN], ["hang"])
    result = boot_and_wait(engine, envelope)
    assert result.failure.kind == "silent hang"
    assert "phase load" in result.failure.what
    assert result.left_running


def test_waiting_for_other_ranks_is_silence(make, monkeypatch):
    monkeypatch.setitem(deadline.SILENCE_S, phases.LOAD, 1.5)
    waits = "INFO 11-30 17:14:00 [shm_broadcast.py:698] No available shared memory broadcast block found in 60 seconds."
    steps = [step for _ in range(100) for step in (["print", waits], ["sleep", 0.2])]
    engine, envelope = make(["print", BEGUN], *steps, limit_s=8)
    assert boot_and_wait(engine, envelope).failure.kind == "silent hang"


@pytest.mark.parametrize(("status", "told"), [(503, "HTTP 503"), (500, "HTTP 500"), (None, "nothing")])
def test_a_server_that_says_it_is_up_and_is_not(make, monkeypatch, status, told):
    monkeypatch.setattr(deadline, "UNREADY_S", 1.0)
    answers = [] if status is None else [["health", status]]
    engine, envelope = make(["print", BEGUN], *answers, ["print", UP], ["hang"])
    result = boot_and_wait(engine, envelope)
    assert result.failure.kind == "bad health"
    assert told in result.failure.what


def test_a_second_command_watches_a_boot_that_goes_on(make, tmp_path):
    engine, envelope = make(["print", BEGUN], ["sleep", 1.0], ["file", str(LOG)], ["health", 200], ["hang"])
    engine.start()
    later = LocalEngine(envelope, 1, None, 2, tmp_path / "run")
    result = boot_and_wait(later, envelope, attach=True)
    assert result.ok and result.attached
    assert result.base_url == engine.base_url


def test_stopped_by_another_command_meanwhile(make, tmp_path):
    engine, envelope = make(["print", BEGUN], ["hang"])

    def stop():
        while "Starting" not in b"".join(engine.log_chunks(False)).decode():
            time.sleep(0.05)
        LocalEngine(envelope, 1, None, 2, tmp_path / "run").stop()

    other = threading.Thread(target=stop, daemon=True)
    other.start()
    result = boot_and_wait(engine, envelope)
    other.join()
    assert result.failure.kind in ("removed", "stopped from outside", "killed by a signal")


def test_the_manifest_of_the_log_is_handed_on(make):
    lines = '[sm86] manifest begin v1\n[sm86] git_rev=abc\n[sm86] argv=["serve"]\n[sm86] manifest end'
    engine, envelope = make(["print", lines], ["health", 200], ["hang"])
    assert boot_and_wait(engine, envelope).manifest == {"git_rev": "abc", "argv": ["serve"]}


def test_an_interrupt_passes_through_and_the_server_goes_on(make):
    engine, envelope = make(["print", BEGUN], ["hang"])

    def interrupt(found, seconds):
        if engine.state().is_up:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        boot_and_wait(engine, envelope, interrupt)
    assert engine.state().kind == RUNNING


def test_the_log_is_not_read_on_after_the_boot(make):
    engine, envelope = make(["health", 200], ["hang"])
    boot_and_wait(engine, envelope)
    deadline_s = time.monotonic() + 10
    while any(thread.name == "log" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "the reader goes on"
        with engine.log_path.open("a") as log:
            log.write("and another\n")
        time.sleep(0.05)


class DeadEngine:
    """Died before anyone looked; its log still comes."""

    kind, base_url = "local", "http://127.0.0.1:9"

    def __init__(self):
        self.halted = False

    def start(self): ...

    def state(self):
        return EngineState(EXITED, 1)

    def halt(self):
        self.halted = True

    def log_chunks(self, follow, tail=None, this_run=False):
        time.sleep(0.4)
        yield f"{BEGUN}\n".encode()
        time.sleep(0.4)
        yield b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."


def test_the_rest_of_the_log_is_waited_for_after_a_death():
    engine = DeadEngine()
    result = boot_and_wait(engine, ENVELOPE)
    assert result.failure.kind == "weights OOM"
    assert engine.halted
