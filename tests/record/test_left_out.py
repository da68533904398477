"""Rounds that were measured again: told from a record of any form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sm86.record.left_out import NO_REASON, SHORTER, in_words, reasons_left_out
from tests.record.test_record import RECORD


@pytest.mark.parametrize(
    ("left_out", "reasons"),
    [
        ([], ()),
        ([{"window": {"refused": "late"}}, {"window": {"refused": "early"}}], ("late", "early")),
        (
            [{"window": {"aggregate_tok_s": 3.0}}, {}, 5, {"window": None}, {"window": {"refused": ""}}],
            (SHORTER, *(NO_REASON,) * 4),
        ),
        ("many", ()),
        (3, ()),
        (None, ()),
    ],
)
def test_every_round_has_its_reason(left_out: Any, reasons: tuple[str, ...]) -> None:
    assert reasons_left_out(replace(RECORD, details={"left_out": left_out})) == reasons


def test_a_record_that_knows_none() -> None:
    assert reasons_left_out(RECORD) == () and in_words(()) == ""


def test_the_words_count_rounds_and_name_each_reason_once() -> None:
    assert in_words(("late",)) == "1 round was left out and measured again: late"
    told = in_words(("late", "early", "late"))
    assert told == "3 rounds were left out and measured again: late; early"
