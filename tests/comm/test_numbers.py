"""Medians, spread, the winner only beyond it, and what a step would gain."""

from __future__ import annotations

import pytest

from sm86.comm.answer import TIMEOUT, UNAVAILABLE
from sm86.comm.numbers import Timing, gain_of, rows_of, verdict_at
from tests.comm.made import lost, repeated, run, some


def rows(*runs, names=("nccl", "nccl-ring-ll", "sm86-host"), repeats: int = 3):
    return rows_of(some(*names), [one for group in runs for one in group], repeats)


def test_a_winner_is_named_only_beyond_the_spread() -> None:
    clear = rows(
        repeated("nccl", {8192: (10.0, 10.4, 10.1)}),
        repeated("nccl-ring-ll", {8192: (9.9, 10.2, 10.0)}),
        repeated("sm86-host", {8192: (3.6, 3.5, 3.7)}),
    )
    verdict = verdict_at(8192, clear)
    assert verdict.winner == "sm86-host"
    assert verdict.gain == pytest.approx(10.1 / 3.6)


def test_overlapping_settings_have_no_winner() -> None:
    close = rows(
        repeated("nccl", {8192: (10.0, 10.4, 10.1)}),
        repeated("nccl-ring-ll", {8192: (9.7, 10.2, 9.8)}),
        names=("nccl", "nccl-ring-ll"),
    )
    verdict = verdict_at(8192, close)
    assert verdict.winner is None and verdict.gain is None
    assert verdict.leaders == ("nccl-ring-ll", "nccl")
    assert "spread" in verdict.why


def test_equal_values_do_not_beat_each_other() -> None:
    assert not Timing((1.0, 2.0)).beats(Timing((2.0, 3.0)))
    assert Timing((1.0, 1.9)).beats(Timing((2.0, 3.0)))


@pytest.mark.parametrize(("repeats", "mark"), [(2, ""), (3, "CPU, emulated")])
def test_too_few_repeats_and_emulated_numbers_have_no_winner(repeats: int, mark: str) -> None:
    made = rows(
        repeated("nccl", {8192: (10.0,) * repeats}),
        repeated("sm86-host", {8192: (3.0,) * repeats}),
        names=("nccl", "sm86-host"),
        repeats=repeats,
    )
    verdict = verdict_at(8192, made, mark)
    assert verdict.winner is None
    assert mark in verdict.why or "too few" in verdict.why


def test_a_setting_that_failed_once_is_no_candidate_and_says_so() -> None:
    made = rows(
        repeated("nccl", {8192: (10.0, 10.0, 10.0)}),
        [
            run("sm86-host", 0, {8192: 3.0}),
            run("sm86-host", 1, {8192: 3.0}),
            lost("sm86-host", 2, TIMEOUT, "no answer"),
        ],
        names=("nccl", "sm86-host"),
    )
    assert made[1].state == TIMEOUT
    assert made[1].why == "in 1 of 3 repeats: no answer"
    assert verdict_at(8192, made).leaders == ("nccl",)


def test_a_repeat_that_is_missing_is_not_taken_for_measured() -> None:
    made = rows(repeated("nccl", {8192: (10.0, 10.0)}), names=("nccl",))
    assert not made[0].measured and "only 2 of 3" in made[0].why


def test_a_refused_setting_is_a_row_with_its_reason() -> None:
    made = rows(
        [lost("nccl-ring-ll", at, UNAVAILABLE, "no algorithm/protocol available") for at in range(3)],
        names=("nccl-ring-ll",),
    )
    assert (made[0].state, made[0].why) == (UNAVAILABLE, "no algorithm/protocol available")


def test_what_ran_otherwise_than_asked_is_said() -> None:
    made = rows(
        repeated("nccl-ring-ll", {8192: (1.0, 1.0, 1.0), 32768: (2.0, 2.0, 2.0)}, ran="Tree Simple, 2 channels"),
        names=("nccl-ring-ll",),
    )
    assert made[0].differs == "asked Ring LL; Tree Simple, 2 channels ran at 8192, 32768 bytes"
    longer = rows(repeated("nccl-ring-ll", {8192: (1.0,) * 3}, ran="Ring LL128, 1 channel"), names=("nccl-ring-ll",))
    assert longer[0].differs, "LL128 is not LL"
    right = rows(repeated("nccl-ring-ll", {8192: (1.0,) * 3}), names=("nccl-ring-ll",))
    assert right[0].differs == "" and not right[0].unseen
    unseen = rows(repeated("nccl-ring-ll", {8192: (1.0,) * 3}, ran=""), names=("nccl-ring-ll",))
    assert unseen[0].unseen


def test_a_step_gains_the_difference_of_all_its_calls() -> None:
    base, own = rows(
        repeated("nccl", {8192: (10.0, 11.0, 12.0)}),
        repeated("sm86-host", {8192: (3.0, 4.0, 5.0)}),
        names=("nccl", "sm86-host"),
    )
    gain = gain_of(own, base, 8192, 87)
    assert gain is not None
    assert gain.ms == pytest.approx(87 * 7 / 1000)
    assert (gain.least_ms, gain.most_ms) == (pytest.approx(87 * 5 / 1000), pytest.approx(87 * 9 / 1000))
    assert gain.baseline_ms == pytest.approx(0.957)
    assert gain_of(own, base, 4096, 87) is None
