"""The slots' rule, searched through every interleaving of two ranks, and through three for fewer calls."""

from __future__ import annotations

import pytest

from tests.backend.collectives.model import Rules, search


def test_two_ranks_have_no_fault_in_twelve_calls() -> None:
    fault, states = search(2, 12, Rules())
    assert fault is None and states > 2_000


def test_three_ranks_have_no_fault() -> None:
    fault, states = search(3, 5, Rules())
    assert fault is None and states > 2_000


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(rearm=0), "took call 0's message"),
        (Rules(slots=2), "took call"),
        (Rules(slots=3), "took call"),
        (Rules(rearm=1), "nothing goes on"),
        (Rules(fence=False), "took call"),
    ],
    ids=["never re-armed", "two slots", "three slots", "re-armed too early", "no fence"],
)
def test_each_fault_is_found(rules: Rules, words: str) -> None:
    fault, _ = search(2, 7, rules)
    assert fault is not None and words in fault
