"""Chance and what is beyond it, on plain numbers."""

from __future__ import annotations

import random
from math import inf, nan, sqrt
from statistics import stdev

import pytest

from sm86.backend.testing.noise import sample, together


def test_the_error_is_that_of_a_mean() -> None:
    values = [0.3, -0.2, 0.5, 0.1, 0.0]
    made = sample(values)
    assert made.count == 5 and made.mean == pytest.approx(0.14)
    assert made.error == pytest.approx(stdev(values) / sqrt(5))


def test_parts_are_as_good_as_the_whole() -> None:
    values = [random.Random(1).uniform(-1, 1) for _ in range(50)]
    whole, parts = sample(values), together([sample(values[:7]), sample([]), sample(values[7:])])
    assert (parts.count, parts.mean, parts.error) == (50, pytest.approx(whole.mean), pytest.approx(whole.error))


def test_few_noisy_values_are_chance_and_many_are_none() -> None:
    noise = random.Random(86)
    drawn = [noise.gauss(0.05, 0.2) for _ in range(4000)]
    assert not sample(drawn[:7]).is_above_zero and not sample(drawn[:39]).is_above_zero
    assert sample(drawn).is_above_zero
    assert not sample([value - 0.1 for value in drawn]).is_above_zero


@pytest.mark.parametrize("values", [[0.01] * 2, [0.01], [nan, 0.0, 0.0], [inf, 0.0, 0.0]])
def test_what_does_not_vary_or_is_no_number_is_no_chance(values: list[float]) -> None:
    assert sample(values).is_above_zero


def test_nothing_is_not_above_zero() -> None:
    assert not sample([]).is_above_zero and not together([]).is_above_zero
