"""Prompts: length, determinism, facts, and the reading of answers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.errors import CouldNotRun
from sm86.measure import prompts
from sm86.measure.prompts import DEPTHS, Fact, compose, continuation, facts, fit, read_answers


def count(text: str) -> int:
    """A tokenizer of a kind: words and marks, long words in pieces."""
    return sum(1 + len(part) // 5 for part in re.findall(r"\w+|[^\w\s]", text)) + 1


@pytest.mark.parametrize("wanted", [170, 256, 1000, 4096, 81_344])
def test_the_wanted_length_is_reached_and_not_exceeded(wanted):
    asked = []

    def counted(text: str) -> int:
        asked.append(len(text))
        return count(text)

    made = fit("salt", 0, facts("salt", 1)[0], wanted, counted)
    assert made.tokens == count(made.text)
    assert 0.97 * wanted <= made.tokens <= wanted
    assert len(asked) <= 11


@settings(deadline=None)
@given(st.integers(250, 3000), st.floats(0.3, 4.0))
def test_any_tokenizer_is_fitted(wanted, scale):
    def coarse(text: str) -> int:
        return int(len(text.split()) * scale) + 3

    made = fit("s", 1, facts("s", 2)[1], wanted, coarse)
    assert prompts.REACHED * wanted <= made.tokens <= wanted


def test_too_short_for_the_questions_is_refused():
    with pytest.raises(CouldNotRun, match="no room for the questions"):
        fit("salt", 0, facts("salt", 1)[0], 20, count)


def test_the_same_seed_gives_the_same_prompt_and_another_another():
    def text(salt: str, sequence: int) -> str:
        return fit(salt, sequence, facts(salt, 3)[sequence], 600, count).text

    assert text("a", 0) == text("a", 0)
    different = {text("a", 0), text("a", 1), text("a", 2), text("b", 0)}
    assert len(different) == 4
    # no two share a prefix of more than the heading, so no prefix cache takes one for another
    starts = {one[:16] for one in different}
    assert len(starts) == 4


def test_facts_stand_at_their_depths_between_whole_sentences():
    own = facts("s", 1)[0]
    text = compose("s", 0, own, 4000)
    body = text[: text.index("\n\nThe codes named above")]
    for depth, fact in zip(DEPTHS, own, strict=True):
        place = body.index(fact.sentence)
        assert place / len(body) == pytest.approx(depth, abs=0.02)
        assert body[:place].rstrip().endswith(".")
        assert text.count(fact.code) == 1


def test_names_and_codes_differ_between_sequences():
    for sequences in (1, 4, 8, 256):
        rows = facts("x", sequences)
        codes = [fact.code for row in rows for fact in row]
        assert len(set(codes)) == 5 * sequences
        assert all(len({fact.name for fact in row}) == 5 for row in rows)
    names = [fact.name for row in facts("x", 8) for fact in row]
    assert len(set(names)) == 40


def test_prose_is_varied():
    words = compose("s", 0, facts("s", 1)[0], 3000).split()
    assert len({word.strip(".,;\n").lower() for word in words}) > 200


def test_the_continuation_begins_with_the_whole_prompt():
    made = fit("s", 0, facts("s", 1)[0], 400, count)
    text = continuation(made)
    assert text.startswith(made.text)
    assert read_answers(text[len(made.text) :], 0, [made.facts])[-1].right


ROWS = (
    (Fact("Aldmoor", "1111"), Fact("Carwick", "2222"), Fact("Penby", "3333")),
    (Fact("Norgate", "4444"), Fact("Selness", "5555"), Fact("Keldale", "6666")),
)


def test_right_answers_in_several_forms():
    for text in (
        " 1111\n- Carwick: 2222\n- Penby: 3333\n",
        " 1111, Carwick 2222 and Penby is **3333**.",
        " 1111\n- Carwick: the code is 2222\n- Penby:3333 and more 99",
    ):
        assert [a.right for a in read_answers(text, 0, ROWS)] == [True, True, True]


def test_wrong_missing_and_leaked_answers():
    answers = read_answers(" 11112\n- Carwick: 5555\n- Penb: 3333", 0, ROWS)
    assert [(a.right, a.given, a.leaked_from, a.start, a.end) for a in answers] == [
        (False, "11112", None, 0, len(" 11112")),
        (False, "5555", 1, len(" 11112\n- Carwick"), len(" 11112\n- Carwick: 5555")),
        (False, "", None, 0, 0),
    ]


def test_a_code_on_another_line_is_not_the_answer():
    assert not read_answers(" unknown\n1111", 0, ROWS)[0].right


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_read(text):
    assert len(read_answers(text, 1, ROWS)) == 3
