"""The GPUs watched through a stand-in NVML: what limits them is named, and nothing that NVML does stops a run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.errors import CheckFailed
from sm86.host.telemetry import Watcher
from sm86.measure import bench
from sm86.measure import telemetry as t
from sm86.measure.client import Client, parse_address
from sm86.measure.plan import plan
from sm86.measure.result import to_record
from sm86.measure.telemetry import Telemetry, summarise
from tests.measure.conftest import PATIENT, envelope_of
from tests.measure.replay import Behaviour, serving

NVML = Path(__file__).parent / "nvml"
PATIENCE_S = 60.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch):
    """Watches GPUs of one kind until so many samples were taken; gives the watcher, stopped."""

    def call(kind: str, samples: int = 8, gpus: int = 2, during=None) -> Watcher:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(NVML), os.environ.get("PYTHONPATH", ""))))
        monkeypatch.setenv("FAKE_NVML", json.dumps({"kind": kind, "gpus": gpus}))
        watcher = Watcher(interval_s=0.02)
        watcher.start()
        until = time.monotonic() + PATIENCE_S
        while len(watcher.taken) < samples and not watcher.problem and time.monotonic() < until:
            time.sleep(0.01)
            if during is not None and during(watcher):
                break
        watcher.stop()
        return watcher

    return call


def seen(watcher: Watcher, spans: Sequence[tuple[float, float]] | None = None) -> Telemetry:
    first = watcher.taken[0]["at"] if watcher.taken else 0.0
    last = watcher.taken[-1]["at"] if watcher.taken else 0.0
    return summarise(watcher, spans or [(first, last)], first)


def test_steady_gpus(watch) -> None:
    found = seen(watch("steady"))
    assert found.state == t.SEEN and found.limits == () and found.verdict().state == "pass"
    assert "nothing held the 2 GPUs back" in found.text and "1800 MHz of 2100" in found.text
    gpu = found.gpus[0]
    assert gpu["statistics"]["power_w"] == [290.0, 290.0, 290.0]
    assert gpu["statistics"]["rx_mb_s"][1] == pytest.approx(6144, abs=1)
    assert gpu["statistics"]["memory_mib"][2] == 23 * 1024 and gpu["memory_mib"] == 24 * 1024
    assert "uuid" not in gpu


@pytest.mark.parametrize(
    ("kind", "limit", "gpus", "words"),
    [
        ("power", t.POWER, (0, 1), ("limit 200 W, lowered from 350 W", "1100 MHz of 2100", "100 % of the time")),
        ("lowered", t.POWER, (0, 1), ("at its power limit", "lowered from 350 W")),
        ("thermal", t.THERMAL, (0, 1), ("93 °C", "1100 MHz")),
        ("narrow", t.LINK, (1,), ("GPU 1 ran x4 of x16 under load",)),
        ("gen1", t.LINK, (0,), ("PCIe generation 1 of 4",)),
        ("vanishes", t.LOST, (1,), ("GPU 1 from", "GPU is lost")),
    ],
)
def test_what_holds_gpus_back_is_named(watch, kind: str, limit: str, gpus, words) -> None:
    found = seen(watch(kind))
    assert found.limits[0].kind == limit and found.limits[0].gpus == gpus
    assert all(word in found.text for word in words), found.text
    assert found.verdict().state == "fail"


def test_a_slower_gpu_is_the_one_that_the_others_wait_for(watch) -> None:
    found = seen(watch("uneven", gpus=4))
    assert [(one.kind, one.gpus) for one in found.limits] == [(t.CLOCKS, (1,))]
    assert "the others wait for it" in found.text


def test_a_gpu_that_serves_nothing_is_left_out(watch) -> None:
    watcher = watch("uneven", gpus=4)
    watcher.only(("GPU-0", "GPU-2", "GPU-3"))
    found = seen(watcher)
    assert found.limits == () and [gpu["index"] for gpu in found.gpus] == [0, 2, 3]
    assert len(found.series["gpus"]) == 3
    watcher = watch("narrow")
    watcher.only(("GPU-1",))
    assert seen(watcher).limits[0].gpus == (1,) and "GPU 1 ran x4" in seen(watcher).text
    watcher.only(("MIG-unknown",))
    assert len(watcher.gpus) == 1, "a name that no GPU has forgets nothing"


def test_a_gpu_that_vanishes_leaves_the_others_and_one_that_returns_says_so(watch) -> None:
    watcher = watch("vanishes", samples=12)
    assert all("error" not in sample["gpus"][0] for sample in watcher.taken)
    assert "error" in watcher.taken[-1]["gpus"][1]
    assert "came back" not in seen(watcher).text
    assert "came back" in seen(watch("returns", samples=12)).text


def test_what_the_driver_does_not_support_is_not_seen_and_not_asked_again(watch) -> None:
    watcher = watch("unsupported")
    found = seen(watcher)
    assert len(watcher.taken) >= 8 and watcher.gpus == [{"index": 0}, {"index": 1}]
    assert found.state == t.NOT_SEEN and "the driver gives no clocks" in found.text
    assert found.verdict().state == "not seen"


def test_no_driver_and_no_module(watch, monkeypatch) -> None:
    found = seen(watch("no driver"))
    assert found.state == t.NOT_SEEN and "Driver Not Loaded" in found.text
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    watcher = Watcher()
    watcher.start()
    watcher.stop()
    assert "cannot be started" in seen(watcher).text


@pytest.mark.parametrize("kind", ["hangs", "hangs later", "dies"])
def test_nvml_that_hangs_or_dies_is_left_behind(watch, kind: str) -> None:
    """stop() returns although the child never will, and what was seen before stays."""
    since: list[float] = []

    def enough(watcher: Watcher) -> bool:
        # the child says nothing any more: it hangs, or it is dead
        count = len(watcher.taken)
        if not since or since[0] != count:
            since[:] = [count, time.monotonic()]
        return (kind == "hangs" or count >= 3) and time.monotonic() - since[1] > 1.0

    began = time.monotonic()
    watcher = watch(kind, samples=10_000, during=enough)
    assert time.monotonic() - began < PATIENCE_S
    if kind == "hangs":
        assert "did not answer" in watcher.problem and seen(watcher).state == t.NOT_SEEN
        return
    first, last = watcher.taken[0]["at"], watcher.taken[-1]["at"]
    found = summarise(watcher, [(first, last + 30)], first)
    assert found.state == t.SEEN and "NVML said nothing from" in found.text


def test_stopping_twice_or_before_the_start_is_nothing() -> None:
    watcher = Watcher()
    watcher.stop()
    watcher.stop()


def test_the_child_ends_with_its_parent(watch) -> None:
    watcher = watch("steady", samples=2)
    assert watcher._thread is not None
    watcher._thread.join(PATIENCE_S)
    assert not watcher._thread.is_alive(), "the pipe has ended, so the child has"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm86.host.telemetry.MOST_SAMPLES", 64)
    watcher = Watcher()
    watcher._take({"gpus": [{"index": 0}]})
    for second in range(10_000):
        watcher._take({"at": float(second), "gpus": [{"sm_clock_mhz": 1800}]})
    times = [sample["at"] for sample in watcher.taken]
    assert len(times) <= 64 and times == sorted(times)
    assert times[0] < 500 and times[-1] > 9_500, "thinned over the whole run, not cut at one end"


@pytest.mark.timing
@pytest.mark.parametrize(("kind", "state"), [("power", "fail"), ("hangs", "not seen"), ("steady", "pass")])
def test_a_benchmark_keeps_it_whatever_nvml_does(monkeypatch: pytest.MonkeyPatch, kind: str, state: str) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(NVML), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("FAKE_NVML", json.dumps({"kind": kind, "gpus": 2}))
    envelope = replace(envelope_of(), engine="cuda")
    with serving(Behaviour(rate=500)) as replay:
        client = Client(parse_address(replay.url), None, PATIENT)
        result = bench.run(envelope, plan(envelope), client, telemetry=Watcher(interval_s=0.05))
    verdict = next(one for one in result.verdicts if one.name == t.NAME)
    assert verdict.state == state, verdict.text
    assert result.aggregates, "the number is measured all the same"
    details = to_record(result).details["telemetry"]
    assert details["state"] == (t.NOT_SEEN if kind == "hangs" else t.SEEN)
    if kind == "power":
        assert details["in_window"] > 0 and details["limits"][0]["kind"] == t.POWER


@pytest.mark.timing
def test_a_server_that_fails_with_its_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(NVML), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("FAKE_NVML", json.dumps({"kind": "vanishes", "gpus": 2}))
    envelope = replace(envelope_of(), engine="cuda")
    watcher = Watcher(interval_s=0.02)
    with serving(Behaviour(rate=300, fault="reset")) as replay:
        client = Client(parse_address(replay.url), None, PATIENT)
        with pytest.raises(CheckFailed) as fault:
            bench.run(envelope, plan(envelope), client, telemetry=watcher)
    assert any("GPU lost: GPU 1 from" in line for line in fault.value.evidence), fault.value.evidence
    assert watcher._child is None, "it was stopped"


def test_without_a_gpu_it_is_said(envelope) -> None:
    assert summarise(None, [], 0.0) is t.NO_GPU and t.NO_GPU.verdict().state == "not applicable"
    assert "no GPU" in t.NO_GPU.text
