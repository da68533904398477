"""Samples of the GPUs -> what they say of a result. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sm86.measure import telemetry as t
from sm86.measure.telemetry import summarise

STILL = {
    "name": "NVIDIA GeForce RTX 3090",
    "max_sm_clock_mhz": 2100,
    "power_limit_w": 350.0,
    "default_power_limit_w": 350.0,
    "memory_mib": 24576,
    "max_link_gen": 4,
    "max_link_width": 16,
}
MOVING = {
    "sm_clock_mhz": 1800,
    "mem_clock_mhz": 9751,
    "power_w": 280.0,
    "temperature_c": 64,
    "memory_mib": 23000,
    "busy_percent": 99,
    "link_gen": 4,
    "link_width": 16,
    "tx_mb_s": 5000,
    "rx_mb_s": 5000,
    "reasons": 0,
}


class Seen:
    """A source that has stopped."""

    def __init__(self, samples: list[list[dict[str, Any]]], still: dict[str, Any] | None = None) -> None:
        self.gpus = [{"index": index, **(STILL if still is None else still)} for index in range(len(samples[0]))]
        self.taken = [{"at": float(second), "gpus": gpus} for second, gpus in enumerate(samples)]
        self.problem = ""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def seconds(count: int, gpus: int = 8, **more: Any) -> list[list[dict[str, Any]]]:
    return [[{**MOVING, **more} for _ in range(gpus)] for _ in range(count)]


def test_only_what_was_measured_counts() -> None:
    """Idle before, power cap only while the prompts were prefilled: the decode window was free."""
    samples = seconds(10, reasons=0x1, sm_clock_mhz=210, link_gen=1) + seconds(10, reasons=0x4) + seconds(10)
    found = summarise(Seen(samples), [(20.0, 29.0)], 0.0)
    assert found.limits == () and found.in_window == 10 and found.samples == 30
    assert summarise(Seen(samples), [(10.0, 19.0)], 0.0).limits[0].kind == t.POWER


@pytest.mark.parametrize(
    ("share", "counts"), [(0, False), (1, False), (2, True), (10, True)], ids=["never", "10 %", "20 %", "always"]
)
def test_a_reason_counts_from_a_share_on(share: int, counts: bool) -> None:
    samples = seconds(10 - share) + seconds(share, reasons=0x20)
    found = summarise(Seen(samples), [(0.0, 9.0)], 0.0)
    assert bool(found.limits) is counts
    assert found.gpus[0]["reasons"].get("heat (driver)", 0) == share / 10


@pytest.mark.parametrize("bit", [bit for bit, _, _ in t.REASONS])
def test_every_reason_has_its_words(bit: int) -> None:
    kind, words = next((kind, words) for one, kind, words in t.REASONS if one == bit)
    found = summarise(Seen(seconds(4, reasons=bit)), [(0.0, 3.0)], 0.0)
    assert [one.kind for one in found.limits] == [kind] and words in found.text


@pytest.mark.parametrize("bit", [0x1, 0x100])
def test_idle_and_display_hold_nothing_back(bit: int) -> None:
    assert summarise(Seen(seconds(4, reasons=bit)), [(0.0, 3.0)], 0.0).limits == ()


def test_a_lowered_limit_that_is_not_reached_holds_nothing_back() -> None:
    still = {**STILL, "power_limit_w": 200.0}
    samples = [[{k: v for k, v in gpu.items() if k != "reasons"} for gpu in one] for one in seconds(4, power_w=120.0)]
    found = summarise(Seen(samples, still), [(0.0, 3.0)], 0.0)
    assert found.limits == () and "does not say what keeps clocks down" in found.text


def test_an_idle_link_that_wakes_under_load_is_no_narrow_one() -> None:
    samples = seconds(3, link_gen=1, link_width=16) + seconds(3)
    assert summarise(Seen(samples), [(0.0, 5.0)], 0.0).limits == ()


def test_four_lanes_are_few_also_where_the_slot_has_no_more() -> None:
    still = {**STILL, "max_link_width": 4}
    found = summarise(Seen(seconds(3, link_width=4), still), [(0.0, 2.0)], 0.0)
    assert {one.kind for one in found.limits} == {t.LINK} and "few for tensor parallel" in found.text


def test_gpus_that_wait_more_than_they_compute_are_told_without_blame() -> None:
    found = summarise(Seen(seconds(4, power_w=120.0)), [(0.0, 3.0)], 0.0)
    assert found.limits == () and "it waited, as in a collective" in found.text and found.verdict().state == "pass"


def test_a_window_between_two_samples_is_told_by_the_whole_run() -> None:
    found = summarise(Seen(seconds(4)), [(1.2, 1.8)], 0.0)
    assert found.state == t.SEEN and found.in_window == 0 and "the whole run is told" in found.text


@pytest.mark.parametrize(
    "samples",
    [
        [[{}, {}]],
        [[]],
        [[{"sm_clock_mhz": None}, {"sm_clock_mhz": "fast"}]],
        [[{"error": "Unknown Error"}, {"error": "Unknown Error"}]],
    ],
)
def test_samples_without_a_fact_are_not_seen(samples) -> None:
    source = Seen(samples)
    source.gpus = [{"index": 0}, {"index": 1}]
    assert summarise(source, [(0.0, 1.0)], 0.0).state == t.NOT_SEEN


def test_one_fact_alone_is_enough_to_say_something() -> None:
    found = summarise(Seen([[{"temperature_c": 70}]] * 3, {}), [(0.0, 2.0)], 0.0)
    assert found.state == t.SEEN and "70 °C" in found.text


def test_a_record_stays_small_however_long_the_run() -> None:
    hour = summarise(Seen(seconds(3600)), [(0.0, 3599.0)], 0.0).to_json()
    assert len(hour["series"]["at_s"]) == t.MOST_POINTS
    assert hour["series"]["at_s"][0] == 0.0 and hour["series"]["at_s"][-1] == 3599.0
    assert len(json.dumps(hour, indent=2)) < 80_000 and len(json.dumps(hour)) < 40_000
    assert json.loads(json.dumps(hour)) == hour


def test_a_peak_between_the_kept_points_stays_in_the_statistics() -> None:
    samples = seconds(1000)
    samples[501][3]["temperature_c"] = 97
    found = summarise(Seen(samples), [(0.0, 999.0)], 0.0)
    assert found.gpus[3]["statistics"]["temperature_c"] == [64, 64, 97]
