"""NVML asked in a child: whole, half broken, missing, dying, hanging. What it told before is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm86.host.rig import nvml
from sm86.host.rig.child import Ended, json_lines
from tests.conftest import ROOT

FAKE = Path(__file__).parent / "fake_nvml"
PATIENT_S = 60.0
SHORT_S = 2.5
"""For what never comes after something came. A child needs a fraction of it to start, also on a busy machine."""

NEVER_S = 0.5
"""For what never comes at all."""


@pytest.fixture
def ask(monkeypatch):
    def asked(mode: str, silence_s: float = PATIENT_S) -> nvml.Told:
        monkeypatch.setenv("FAKE_NVML", mode)
        monkeypatch.setenv("PYTHONPATH", str(FAKE))
        return nvml.ask(silence_s=silence_s)

    return asked


@pytest.mark.parametrize("mode", ["ok", "bytes", "odd"])
def test_eight_cards_in_bus_order(ask, mode: str) -> None:
    told = ask(mode)
    assert (told.state, told.version, told.cuda) == ("ok", "580.126.09", (13, 0))
    assert told.gpus is not None
    assert [gpu.index for gpu in told.gpus] == list(range(8))
    assert [gpu.uuid for gpu in told.gpus] == [f"GPU-{7 - at}" for at in range(8)]
    gpu = told.gpus[0]
    assert (gpu.capability, gpu.memory_total, gpu.bar1_total) == ((8, 6), 24 << 30, 256 << 20)
    assert (gpu.pcie.width, gpu.pcie.max_width, gpu.pcie.busy) == (4, 16, True)
    assert gpu.throttle == ("gpu_idle", "hw_thermal_slowdown")
    assert (gpu.ecc, gpu.serial, gpu.mig, gpu.pcie.replays) == (None, None, None, None)
    assert gpu.processes is not None and (gpu.processes[0].pid, gpu.processes[0].memory) == (4711, None)
    assert gpu.power == (None if mode == "odd" else 24.6)


def test_links_and_peers_follow_the_cards_into_bus_order(ask) -> None:
    told = ask("ok")
    assert told.links is not None and told.peers is not None
    assert told.links[0] == ("X", "PHB", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS")
    # NVML's cards 0 and 1 are the last two on the bus
    assert told.peers[7][6] == "CNS" and told.peers[0][1] == "OK"
    assert ask("nvlink").links[7][6] == "NV2"  # type: ignore[index]


@pytest.mark.parametrize(
    ("mode", "state"),
    [("no library", "missing"), ("no driver", "no driver"), ("mismatch", "mismatch"), ("unknown", "error")],
)
def test_nvml_that_does_not_start(ask, mode: str, state: str) -> None:
    told = ask(mode)
    assert (told.state, told.gpus, told.links) == (state, None, None)
    assert told.problem


def test_no_cards_are_not_an_unknown_number(ask) -> None:
    assert ask("none").gpus == ()
    assert len(ask("three").gpus) == 3


def test_half_broken_nvml_tells_what_it_knows(ask) -> None:
    told = ask("half")
    assert told.state == "ok" and told.gpus is not None
    assert [gpu.name for gpu in told.gpus] == ["NVIDIA GeForce RTX 3090"] * 8
    assert {(gpu.memory_total, gpu.power, gpu.processes) for gpu in told.gpus} == {(None, None, None)}


def test_a_lost_card_does_not_hide_the_others(ask) -> None:
    told = ask("lost")
    assert told.gpus is not None and len(told.gpus) == 8
    assert [gpu.problem for gpu in told.gpus if gpu.problem] == ["GPU is lost"]


def test_a_hang_at_the_start_is_a_hang(ask) -> None:
    told = ask("hang at start", NEVER_S)
    assert (told.state, told.gpus) == ("hang", None)


def test_a_hang_in_the_middle_keeps_what_came_before(ask) -> None:
    told = ask("hang at 3", SHORT_S)
    assert told.state == "hang" and told.version == "580.126.09"
    assert told.gpus is not None and len(told.gpus) == 8
    assert sum(gpu.name is not None for gpu in told.gpus) == 3
    assert "went silent" in (told.gpus[-1].problem or "")


def test_a_driver_that_kills_who_asks(ask) -> None:
    told = ask("dies at 3")
    assert told.state == "error" and "code 3" in (told.problem or "")
    assert told.gpus is not None and len(told.gpus) == 8


def test_one_who_cannot_ask_says_nothing_of_the_driver(tmp_path) -> None:
    told = nvml.ask((str(tmp_path / "no-python"),))
    assert told.state == "missing" and "could not be started" in (told.problem or "")
    assert nvml.ask((sys.executable, "-c", "")).state == "error"


def child(code: str, silence_s: float = PATIENT_S, total_s: float = PATIENT_S, stdin: bytes = b"") -> list:
    return list(json_lines((sys.executable, "-c", code), silence_s, total_s, stdin))


def test_lines_that_are_no_json_are_passed_over() -> None:
    told = child("print('warning'); print('{\"a\": 1}'); print('[1]'); print('{\"b\":'); print('{\"c\": 2}', end='')")
    assert told == [{"a": 1}, {"c": 2}, Ended("done", 0)]


def test_how_it_ends_is_told() -> None:
    assert child("raise SystemExit(7)") == [Ended("done", 7)]
    assert list(json_lines(("/nowhere/at-all",), 1, 1)) == [Ended("missing")]
    assert child("import time; time.sleep(600)", NEVER_S) == [Ended("silent")]


def test_the_last_words_on_stderr_are_kept() -> None:
    code = (
        "import sys; print('docker: no GPU driver.\\n\\nRun \\'docker run --help\\'', file=sys.stderr); sys.exit(125)"
    )
    (ended,) = child(code)
    assert (ended.code, ended.words) == (125, "docker: no GPU driver.")


def test_one_that_talks_for_ever_is_ended_in_all() -> None:
    told = child("while True: print('{}', flush=True)", PATIENT_S, 1.0)
    assert told[-1] == Ended("silent") and len(told) > 1


def test_one_that_closes_its_mouth_and_stays_is_left() -> None:
    code = "import os, time; print('{}', flush=True); os.close(1); time.sleep(600)"
    assert child(code, SHORT_S) == [{}, Ended("silent")]


def test_the_program_may_come_through_standard_input() -> None:
    text = b"import json\nprint(json.dumps({'here': 1}))\n"
    assert list(json_lines((sys.executable, "-"), PATIENT_S, PATIENT_S, text)) == [{"here": 1}, Ended("done", 0)]


def test_a_child_left_behind_is_killed(tmp_path) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    child(code, SHORT_S)
    number = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + PATIENT_S
    while _alive(number):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)


def _alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("stdin", [b"", b"x" * (1 << 20)])
def test_the_ends_of_its_pipes_are_closed_by_those_who_used_them(stdin: bytes) -> None:
    asked = f"list(json_lines([sys.executable, '-c', 'print(1)'], {PATIENT_S}, {PATIENT_S}, b'x' * {len(stdin)}))"
    words = f"import gc, sys; from sm86.host.rig.child import json_lines; print({asked}); gc.collect()"
    # Python warns of a pipe that nobody closed, and a warning made an error is told on stderr
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
