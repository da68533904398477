"""What comes back -> verdicts in four states."""

from __future__ import annotations

import pytest

from sm86.measure import judge, prose
from sm86.measure.judge import Prose
from sm86.measure.prompts import Fact
from sm86.measure.timeline import Timeline
from sm86.record import Verdict

SOUND = " ".join(prose.words("judge", 120))
LOOP = SOUND[:100] + "over and over " * 40


def said(text: str, tokens: int | None = None, **more) -> Timeline:
    count = len(text) if tokens is None else tokens
    values = {
        "sent_at": 0.0,
        "points": (),
        "text": text,
        "reasoning": "",
        "finish_reason": "length",
        "prompt_tokens": 100,
        "cached_tokens": 96,
        "total_tokens": count,
        "token_ids": None,
        # one token per character
        "text_marks": tuple((n + 1, n + 1) for n in range(len(text))),
        "logprob_marks": (),
        "bad_logprob": False,
        "chunks": count,
        "complete": True,
    }
    return Timeline(**{**values, **more})


def prose_of(*texts: str | Timeline, alone: dict[int, str] | None = None, refused: str = "") -> Prose:
    lines = tuple(text if isinstance(text, Timeline) else said(text) for text in texts)
    return Prose(lines, {index: said(text) for index, text in (alone or {}).items()}, refused)


def test_sound_text_passes():
    verdict = judge.text([said(SOUND)], [[said(SOUND)]], prose_of(SOUND))
    assert verdict.state == "pass"


def test_a_fault_at_n_fails_and_is_named():
    verdict = judge.text([said(SOUND), said(SOUND)], [[said(SOUND), said(LOOP)]], prose_of(SOUND, SOUND))
    assert verdict.state == "fail" and "repeat 1, sequence 2" in verdict.text
    assert judge.text([said(SOUND)], [[said(SOUND)]], prose_of(LOOP)).state == "fail"
    # sound alone, faulty together
    verdict = judge.text([said(SOUND)] * 2, [[said(SOUND)] * 2], prose_of(SOUND, LOOP, alone={1: SOUND}))
    assert verdict.state == "fail" and "prose of sequence 2" in verdict.text


def test_text_behind_the_natural_end_is_not_judged():
    forced = SOUND[:300] + "again " * 200
    assert judge.text([said(SOUND[:300])], [[said(forced)]], prose_of(SOUND)).state == "pass"
    assert judge.text([said(SOUND)], [[said(forced)]], prose_of(SOUND)).state == "fail"


def test_what_the_model_writes_alone_as_well_is_its_habit():
    verdict = judge.text([said(LOOP)], [[said(LOOP)]], prose_of(SOUND))
    assert verdict.state == "pass" and "left out (sequence 1)" in verdict.text
    both = [said(LOOP), said(SOUND)]
    verdict = judge.text(both, [both], prose_of(LOOP, SOUND, alone={0: LOOP}))
    assert verdict.state == "pass" and "left out (sequence 1)" in verdict.text
    # arithmetic differs a little at N, so another sequence may be the one that loops
    crossed = judge.text([said(LOOP), said(SOUND)], [[said(SOUND), said(LOOP)]], prose_of(SOUND, SOUND))
    assert crossed.state == "pass"
    begun = said(SOUND[:200] + (SOUND[300:400] + "\n") * 2)
    assert judge.text([begun], [[said(LOOP[: begun.tokens])]], prose_of(SOUND)).state == "pass"
    # but garbage is no habit, and greedy loops count where the sequence has no sound prose
    assert judge.text([said(LOOP)], [[said(LOOP)]], prose_of(LOOP)).state == "fail"
    assert judge.text([said(LOOP)], [[said(LOOP)]], prose_of("short")).state == "fail"
    broken = SOUND[:500].replace("e", "�")
    assert judge.text([said(LOOP)], [[said(broken)]], prose_of(SOUND)).state == "fail"


def test_where_nothing_is_sound_the_check_does_not_pass():
    lines = [said(LOOP)] * 2
    verdict = judge.text(lines, [lines], prose_of(LOOP, LOOP, alone={0: LOOP, 1: LOOP}))
    assert verdict.state == "not applicable"


def test_too_little_prose_is_not_seen():
    verdict = judge.text([said(SOUND)] * 2, [[said(SOUND)] * 2], prose_of(SOUND, "The end."))
    assert verdict.state == "not seen" and "sequence 2" in verdict.text
    assert judge.text([said(SOUND)], [[said(SOUND)]], prose_of()).state == "not seen"


@pytest.mark.parametrize("empty", ["", "  \n"])
def test_tokens_without_text_fail(empty):
    assert judge.text([said(SOUND)], [[said(empty, 512)]], prose_of(SOUND)).state == "fail"
    assert judge.text([said(SOUND)], [[said(SOUND)]], prose_of(said(empty, 64))).state == "fail"


def test_log_probabilities():
    assert judge.log_probabilities([], prose_of("a", "b")).state == "pass"
    bad = judge.log_probabilities([], prose_of("a", said("b", bad_logprob=True)))
    assert bad.state == "fail" and "sequence 2" in bad.text
    bad = judge.log_probabilities([said("a", bad_logprob=True)], prose_of("a"))
    assert bad.state == "fail" and "1 alone" in bad.text
    assert judge.log_probabilities([], prose_of(said("a", bad_logprob=None))).state == "not seen"
    assert judge.log_probabilities([], prose_of()).state == "not seen"
    assert judge.log_probabilities([], prose_of(refused="Out of range float values: nan")).state == "fail"


@pytest.mark.parametrize(
    ("message", "nan"),
    [
        ("Out of range float values are not JSON compliant: nan", True),
        ("logits contain NaN", True),
        ("the finance model", False),
        ("", False),
    ],
)
def test_the_servers_words_for_nan(message, nan):
    assert judge.says_nan(message) is nan


ROWS = (
    (Fact("Aldmoor", "1111"), Fact("Carwick", "2222")),
    (Fact("Norgate", "4444"), Fact("Selness", "5555")),
)
RIGHT = (" 1111\n- Carwick: 2222\n", " 4444\n- Selness: 5555\n")


def answers(alone: tuple[str, ...], *repeats: tuple[str, ...]) -> Verdict:
    return judge.known_answers(ROWS, [said(t) for t in alone], [[said(t) for t in r] for r in repeats])


def test_known_alone_and_known_together_passes():
    verdict = answers(RIGHT, RIGHT, RIGHT)
    assert verdict.state == "pass" and "4 of 4" in verdict.text


def test_known_alone_and_lost_together_fails():
    verdict = answers(RIGHT, RIGHT, (RIGHT[0], " 4444\n- Selness: 5050\n"))
    assert verdict.state == "fail"
    assert "repeat 2, sequence 2: Selness is 5555, known alone; together it said 5050" in verdict.text


def test_what_fails_alone_does_not_count():
    partly = (" 1111\n- Carwick: 0\n", " 0\n- Selness: 0\n")
    assert answers(partly, partly).state == "pass"
    assert "1 of 4" in answers(partly, partly).text


def sure(text: str, *ties: int) -> Timeline:
    """A text in which every character is a firm token, except those at `ties`."""
    return said(text, logprob_marks=tuple((n, -0.9 if n in ties else -0.05) for n in range(len(text))))


def judged(alone: tuple[Timeline, ...], *together: str) -> Verdict:
    return judge.known_answers(ROWS, alone, [[said(text) for text in together]])


NAME = RIGHT[0].index("Carwick")
CODE = RIGHT[0].index("2222")


def test_a_near_tie_in_the_answer_does_not_count():
    alone = (sure(RIGHT[0], 2, CODE + 1), sure(RIGHT[1]))
    assert judged(alone, " 9\n- Carwick: 9\n", RIGHT[1]).state == "pass"
    assert "2 of 4" in judged(alone, *RIGHT).text
    assert judged((sure(RIGHT[0]), sure(RIGHT[1])), " 9\n- Carwick: 9\n", RIGHT[1]).state == "fail"


def test_a_near_tie_on_the_way_counts_only_where_the_same_words_lead_there():
    alone = (sure(RIGHT[0], NAME), sure(RIGHT[1]))
    elsewhere = " 1111. That is all."
    assert judged(alone, elsewhere, RIGHT[1]).state == "pass"
    assert judged(alone, RIGHT[0].replace("2222", "2223"), RIGHT[1]).state == "fail"
    # a firm way must be gone
    assert judged((sure(RIGHT[0]), sure(RIGHT[1])), elsewhere, RIGHT[1]).state == "fail"


def test_where_nothing_known_is_led_to_the_check_does_not_apply():
    late = " unknown\n- Carwick: 2222"
    alone = (sure(late, late.index("Carwick")), sure(" unknown"))
    assert judged(alone, " none", " none").state == "not applicable"
    assert judged(alone, late, " none").state == "pass"


def test_a_model_that_knows_nothing_alone_never_passes():
    nothing = (" I do not know.", " Nor do I.")
    assert answers(nothing, nothing).state == "not applicable"
    assert answers(nothing, RIGHT).state == "not applicable"


def test_another_sequences_code_is_a_leak_even_if_nothing_is_known():
    verdict = answers((" 0", " 0"), (" 5555\n", " 0"))
    assert verdict.state == "fail" and "which only sequence 2 was told" in verdict.text


def test_same_prompt():
    ids = tuple(range(16))
    assert judge.same_prompt([], 1).state == "not applicable"
    assert judge.same_prompt([said("", token_ids=ids)] * 2, 2).state == "pass"
    assert judge.same_prompt([said("", token_ids=ids[:3])] * 2, 2).state == "pass"
    differs = judge.same_prompt([said("", token_ids=ids), said("", token_ids=(0, 1, 2, 9))], 2)
    assert differs.state == "fail" and "first 3 tokens" in differs.text
    assert judge.same_prompt([said(""), said("")], 2).state == "not seen"


def test_prompt_length():
    assert judge.prompt_length([960, 1000], 1000).state == "pass"
    assert judge.prompt_length([949, 1000], 1000).state == "fail"
    assert judge.prompt_length([None, 1000], 1000).state == "not seen"
    assert judge.prompt_length([], 1000).state == "not seen"


def test_gates():
    good = [Verdict(name, "pass", "") for name in judge.GATES]
    assert judge.is_good(good)
    assert judge.is_good([*good, Verdict("cross-check", "fail", ""), Verdict("comparison", "fail", "")])
    for name in judge.GATES:
        for state, fine in (("fail", False), ("not seen", False), ("not applicable", True)):
            changed = [Verdict(v.name, state if v.name == name else v.state, "") for v in good]
            assert judge.is_good(changed) is fine
    assert not judge.is_good(good[1:])
    nothing_shown = [
        Verdict(v.name, "not applicable" if v.name in (judge.TEXT, judge.ANSWERS) else "pass", "") for v in good
    ]
    assert not judge.is_good(nothing_shown)


def test_a_random_checkpoint_is_good_by_its_log_probabilities():
    noise = judge.text([said(LOOP)], [[said(LOOP)]], prose_of(LOOP), writes_text=False)
    assert (noise.state, noise.text) == ("not applicable", judge.RANDOM)
    others = [Verdict(judge.WINDOW, "pass", ""), Verdict(judge.ANSWERS, "not applicable", "")]
    for state, fine in (("pass", True), ("fail", False), ("not seen", False), ("not applicable", False)):
        assert judge.is_good([noise, *others, Verdict(judge.LOGITS, state, "")]) is fine
