"""Text statistics: what they flag, what they must not flag."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

from sm86.measure import coherence, prose

PROSE = " ".join(prose.words("text", 700))
CODE = Path(coherence.__file__).read_text(encoding="utf-8")
TABLE = "\n".join(f"| row {n} | {n * 37 % 101} | {n * n} tok/s | {'yes' if n % 3 else 'no'} |" for n in range(80))
YAML = "\n".join(f"service_{n}:\n  image: repo/name:{n}\n  ports:\n    - {8000 + n}" for n in range(60))
HAN = "山水石木火土金日月星云雨风雪花草鱼鸟马牛羊人家门车船路桥城市书画笔墨纸春夏秋冬，。"
CHINESE = "".join(random.Random(1).choices(HAN, k=900))
JAPANESE = "".join(random.Random(2).choices("日本語の文章はかなと漢字がまじるカタカナもある。", k=900))
RUSSIAN_WORDS = ("река", "дом", "старый", "человек", "взял", "ключ", "и", "пошёл", "домой", "после", "дождя", "вечером")
RUSSIAN = " ".join(random.Random(3).choices(RUSSIAN_WORDS, k=300))


@pytest.mark.parametrize("text", [PROSE, CODE, TABLE, YAML, CHINESE, JAPANESE, RUSSIAN, PROSE[:250]])
def test_text_is_not_flagged(text):
    assert coherence.faults(text) == ()


SOUP_LETTERS = "abcdefghij" + "абвгдежзик" + "天地玄黄宇宙" + "αβγδε" + "اأبت" + "कखग"
SOUP = "".join(random.Random(4).choices(SOUP_LETTERS + " ", k=1200))
SPRINKLED = "".join("ж" if n % 8 == 0 and c.isalpha() else c for n, c in enumerate(PROSE[:1500]))
BROKEN = "".join("�" if n % 50 == 0 else c for n, c in enumerate(PROSE[:2000]))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("!" * 500, "repeat every 1 char"),
        ("duct" * 200, "repeat every 4 "),
        (PROSE[:1000] + "and then " * 120, "repeat every 9 "),
        (PROSE[:1200] + PROSE[:300] * 3, "repeat every 300 "),
        (PROSE[:900] + (PROSE[:650] + "\n") * 4, "repeat every 651 "),
        (SOUP, "script changes"),
        (SPRINKLED, "script changes"),
        (BROKEN, "replacement"),
        (PROSE[:7000] + "x" * 600, "repeat every 1 "),
    ],
)
def test_garbage_is_flagged(text, word):
    assert any(word in fault.text for fault in coherence.faults(text) or ())


def test_fluent_nonsense_is_not_seen_by_statistics():
    words = PROSE.split(" ")
    random.Random(5).shuffle(words)
    assert coherence.faults(" ".join(words)) == ()


@pytest.mark.parametrize("text", ["", "a", "!" * 199])
def test_too_short_says_nothing(text):
    assert coherence.faults(text) is None


def test_a_loop_may_be_cut_anywhere_and_needs_three_periods_and_a_quarter():
    unit = "one two three "
    for cut in range(len(unit)):
        assert coherence.tail_loop(PROSE[:100] + unit * 12 + unit[:cut])[0] == len(unit)
    assert coherence.tail_loop(PROSE[:20] + unit * 2) == (0, 0.0)
    assert coherence.tail_loop(PROSE[:1000] + unit * 20) == (0, 0.0)
    assert coherence.tail_loop(PROSE[:780] + unit * 20)[0] == len(unit)


def test_two_repetitions_are_the_way_into_a_loop():
    unit = "".join(random.Random(7).choices(string.ascii_letters, k=200))
    assert coherence.begins_to_loop(PROSE[:300] + unit * 2)
    assert not coherence.begins_to_loop(PROSE[:300] + unit + unit[:150])
    assert not coherence.begins_to_loop(PROSE)
    assert not coherence.begins_to_loop("")


def test_period_limit():
    unit = "".join(random.Random(6).choices(string.ascii_letters, k=701))
    assert coherence.tail_loop(unit * 4) == (0, 0.0)
    assert coherence.tail_loop(unit[:700] * 4) == (700, 1.0)


def test_compression():
    text = "".join(f"{'ab' * 40}{n} " for n in range(1000, 1025))
    assert coherence.statistics(text).zlib_ratio > 10
    assert any("compresses" in fault.text for fault in coherence.faults(text) or ())


def test_windows_cover_the_text_and_end_with_it():
    for length in (1, 1999, 2000, 2001, 3999, 4000, 4001, 9001):
        text = "".join(chr(33 + n % 90) for n in range(length))
        parts = list(coherence.windows(text))
        assert text.endswith(parts[-1])
        assert sum(len(part) for part in parts) >= length
        assert all(len(part) <= 2000 for part in parts)


def test_agreement():
    assert coherence.agreement([(1, 2, 3, 4), (1, 2, 9, 4)], 16) == 2
    assert coherence.agreement([tuple(range(30)), tuple(range(30))], 16) == 16
    assert coherence.agreement([(1,), None], 16) is None
    assert coherence.agreement([], 16) is None


def test_a_list_that_only_counts_on_begins_to_loop():
    counting = "The codes:\n" + "".join(f"- Ingholm: {number}\n" for number in range(3200, 3240))
    names = "".join(
        f"- {name}: {7 * len(name)}\n" for name in ("Kelburn", "Ravholt", "Ingholt", "Eskfleet", "Carfield")
    )
    assert coherence.begins_to_loop(counting) and not coherence.begins_to_loop("The codes:\n" + names)
