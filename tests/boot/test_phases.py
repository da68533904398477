"""Phases of real boots, and of logs that leave things out, come twice or out of order."""

from pathlib import Path

import pytest

from sm86.boot import phases as p
from sm86.boot.phases import ALL, BootPhases, Progress, applicable
from sm86.spec import load_envelope
from sm86.verify import events as e
from sm86.verify.reader import LogReader

LOGS = Path(__file__).parent / "logs"


def follow(log: bytes, applies=ALL, chunk=1000) -> tuple[BootPhases, list[str]]:
    """Feed a log; the clock is the number of bytes so far. Gives the machine and the phases in the order they began."""
    boot, reader, order = BootPhases(applies), LogReader(), []
    boot.enter(p.START, 0.0)
    for start in range(0, len(log), chunk):
        for event in reader.feed(log[start : start + chunk]):
            if boot.observe(event, float(start)):
                order.append(boot.current)
    return boot, order


def states(boot: BootPhases) -> dict[str, str]:
    return {phase.name: phase.state for phase in boot.list()}


@pytest.mark.parametrize("chunk", [37, 1000, 1 << 20])
def test_a_real_boot_on_a_gpu_passes_every_phase(chunk):
    boot, order = follow((LOGS / "graph_boot.log").read_bytes(), chunk=chunk)
    boot.passed(1e9)
    assert set(states(boot).values()) == {p.PASSED}
    assert order[-1] == p.READY
    if chunk == 37:
        assert order == [p.LOAD, p.PROFILE, p.CAPTURE, p.READY]
    load, capture = boot.list()[2], boot.list()[4]
    assert load.progress == Progress(5, 5, "shards") or load.progress == Progress(2, 2, "shards")
    assert capture.progress == Progress(2, 2, "graphs (decode, FULL)")


def test_a_real_boot_on_the_cpu_has_no_capture():
    envelope = load_envelope("cpu-smoke")
    boot, order = follow((LOGS / "cpu_boot.log").read_bytes(), applicable(envelope, True), chunk=40)
    boot.passed(1e9)
    assert order == [p.LOAD, p.PROFILE, p.READY]
    assert states(boot)[p.CAPTURE] == p.NOT_APPLICABLE
    assert {state for name, state in states(boot).items() if name != p.CAPTURE} == {p.PASSED}


def test_the_times_add_up_to_the_boot():
    boot, _ = follow((LOGS / "graph_boot.log").read_bytes(), chunk=100)
    boot.passed(50_000.0)
    assert (
        sum(phase.seconds for phase in boot.list()) == pytest.approx(boot.seconds(99_999.0)) == pytest.approx(50_000.0)
    )
    begins = [phase.began for phase in boot.list()]
    assert begins == sorted(begins)


def test_a_failing_boot_fails_in_its_phase():
    boot, _ = follow((LOGS / "kv_too_small.log").read_bytes())
    boot.failed(50_000.0)
    assert states(boot) == {
        p.IMAGE: p.PASSED,
        p.START: p.PASSED,
        p.LOAD: p.PASSED,
        p.PROFILE: p.FAILED,
        p.CAPTURE: p.WAITING,
        p.READY: p.WAITING,
    }


def test_the_phase_of_a_line():
    boot, _ = follow((LOGS / "graph_boot.log").read_bytes(), chunk=1 << 20)
    text = (LOGS / "graph_boot.log").read_bytes().decode().split("\n")
    line = {
        what: next(number for number, words in enumerate(text, 1) if what in words)
        for what in ("version 0.26.0", "50% Completed", "Available KV cache", "Capturing CUDA graphs", "Route: /health")
    }
    found = [boot.at_line(number) for number in line.values()]
    assert found == [p.START, p.LOAD, p.PROFILE, p.CAPTURE, p.READY]


def loaded(line):
    return e.ModelLoaded(line, "", None, 1.0, 1.0)


def test_profiling_begins_when_the_last_rank_has_loaded():
    boot = BootPhases(ALL)
    boot.observe(e.LoadStarted(1, "", None), 1.0)
    for line, at in ((2, 5.0), (3, 6.0), (4, 9.0)):
        boot.observe(loaded(line), at)
    boot.observe(e.AvailableKv(5, "", None, 6.0), 12.0)
    boot.observe(loaded(6), 13.0)
    load, profile = boot.list()[2:4]
    assert (load.began, load.seconds, profile.began) == (1.0, 8.0, 9.0)


def test_a_phase_that_the_log_leaves_out_is_not_seen_and_never_passed():
    boot = BootPhases(ALL)
    boot.enter(p.START, 1.0)
    boot.observe(e.EngineInitTook(9, "", None, 3.0), 10.0)
    boot.passed(11.0)
    assert states(boot)[p.LOAD] == states(boot)[p.PROFILE] == states(boot)[p.CAPTURE] == p.NOT_SEEN
    assert states(boot)[p.START] == p.PASSED
    assert boot.list()[2].seconds is None


def test_a_log_that_says_nothing_known_only_has_a_start():
    boot, order = follow(b"hello\n" * 100)
    assert order == []
    boot.passed(1e6)
    assert states(boot)[p.READY] == p.PASSED
    assert states(boot)[p.LOAD] == p.NOT_SEEN


def test_nothing_goes_back():
    boot = BootPhases(ALL)
    boot.observe(e.GraphCaptureFinished(5, "", None, 1.0, 0.1), 5.0)
    assert boot.current == p.READY
    assert not boot.observe(e.LoadStarted(6, "", None), 6.0)
    assert not boot.observe(e.GraphProgress(7, "", None, "decode, FULL", 1, 2, 50), 7.0)
    assert boot.current == p.READY
    boot.passed(8.0)
    assert not boot.observe(e.StartupComplete(8, "", None), 9.0)
    assert boot.seconds(100.0) == 8.0


def test_what_applies():
    assert applicable(load_envelope("sm86-262k"), True) == ALL
    assert applicable(load_envelope("sm86-262k"), False) == ALL[1:]
    assert applicable(load_envelope("cpu-smoke"), False) == (p.START, p.LOAD, p.PROFILE, p.READY)
    boot = BootPhases(applicable(load_envelope("cpu-smoke"), False))
    assert states(boot)[p.IMAGE] == p.NOT_APPLICABLE
    assert boot.current == p.START
    # a bar of a phase that does not apply (another engine's log) changes nothing
    assert not boot.observe(e.GraphProgress(1, "", None, "", 1, 2, 50), 1.0)
