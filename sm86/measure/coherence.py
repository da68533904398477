"""Is it text? Statistics that catch loops, mixed scripts, broken characters and token soup. Pure.

Thresholds: measured on windows of 2,000 characters, they flagged none of 1,234 windows of coherent text (prose,
tables, Chinese, Python, YAML, long strings out of JSON) and all of the loops and the soup. They cannot see
fluent nonsense (none of the windows of shuffled words was flagged), which is why known answers are asked as well.
They hold only for text before the model's natural stop: what follows a suppressed end is normally a loop.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

WINDOW_CHARACTERS = 2000
MIN_CHARACTERS = 200
"""Shorter text says nothing: ratios of a few dozen characters are noise. It counts as not seen."""

LOOP_MAX_PERIOD = 700
LOOP_MIN_PERIODS = 3
LOOP_MIN_SHARE = 0.25
MAX_SCRIPT_SWITCHES = 0.15
MAX_REPLACEMENT = 0.005
MAX_ZLIB_RATIO = 10.0

# first code point of each range, and its script; a letter belongs to the last range that starts at or before it.
# Chinese characters, Kana, Hangul and Bopomofo are one class: Japanese text changes between them at every word
_SCRIPTS = (
    (0x0000, "Latin"),
    (0x0370, "Greek"),
    (0x0400, "Cyrillic"),
    (0x0530, "Armenian"),
    (0x0590, "Hebrew"),
    (0x0600, "Arabic"),
    (0x0700, "other"),
    (0x0900, "Indic"),
    (0x0E00, "Thai"),
    (0x0F00, "other"),
    (0x10A0, "Georgian"),
    (0x1100, "East Asian"),
    (0x1200, "Ethiopic"),
    (0x13A0, "other"),
    (0x1E00, "Latin"),
    (0x1F00, "Greek"),
    (0x2000, "other"),
    (0x2C60, "Latin"),
    (0x2C80, "other"),
    (0x2E80, "East Asian"),
    (0xA4D0, "other"),
    (0xA720, "Latin"),
    (0xA800, "other"),
    (0xAC00, "East Asian"),
    (0xD7B0, "other"),
    (0xF900, "East Asian"),
    (0xFB00, "Latin"),
    (0xFB1D, "Hebrew"),
    (0xFB50, "Arabic"),
    (0xFF00, "East Asian"),
    (0x10000, "other"),
    (0x20000, "East Asian"),
)


_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something beyond its threshold; `repeats` tells a loop, which some models write by themselves, from garbage."""

    text: str
    repeats: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """The four numbers of one window of text; loop_period in characters, 0 where the tail does not loop."""

    characters: int
    loop_period: int
    loop_share: float
    script_switches: float
    replacement_share: float
    zlib_ratio: float

    def faults(self) -> tuple[Fault, ...]:
        """What is beyond its threshold, in words; empty for text that looks like text."""
        found = []
        if self.loop_period:
            share = 100 * self.loop_share
            found.append(Fault(f"the last {share:.0f} % repeat every {self.loop_period} characters", True))
        if self.script_switches > MAX_SCRIPT_SWITCHES:
            found.append(Fault(f"the script changes {self.script_switches:.2f} times per letter", False))
        if self.replacement_share > MAX_REPLACEMENT:
            found.append(Fault(f"{100 * self.replacement_share:.1f} % are replacement characters", False))
        if self.zlib_ratio > MAX_ZLIB_RATIO:
            found.append(Fault(f"it compresses {self.zlib_ratio:.1f}-fold", True))
        return tuple(found)


def windows(text: str) -> Iterator[str]:
    """Windows of WINDOW_CHARACTERS that cover the text; the last one ends with it, as loops live in the tail."""
    for start in range(0, max(len(text) - WINDOW_CHARACTERS, 0), WINDOW_CHARACTERS):
        yield text[start : start + WINDOW_CHARACTERS]
    yield text[-WINDOW_CHARACTERS:]


def faults(text: str) -> tuple[Fault, ...] | None:
    """What is wrong with a text by its statistics: empty where nothing is, None where it is too short to tell."""
    if len(text) < MIN_CHARACTERS:
        return None
    return tuple(fault for window in windows(text) for fault in statistics(window).faults())


def statistics(text: str) -> Statistics:
    """The statistics of one window of text, which is not empty."""
    period, share = tail_loop(text)
    raw = text.encode("utf-8", "surrogatepass")
    return Statistics(
        characters=len(text),
        loop_period=period,
        loop_share=share,
        script_switches=script_switches(text),
        replacement_share=text.count("�") / len(text),
        zlib_ratio=len(raw) / len(zlib.compress(raw, 6)),
    )


def tail_loop(text: str, min_periods: int = LOOP_MIN_PERIODS) -> tuple[int, float]:
    """(period, share of the text) of the loop in which a text ends; (0, 0.0) where it does not.

    A loop is at least `min_periods` repetitions with a period of at most LOOP_MAX_PERIOD characters that
    fill at least LOOP_MIN_SHARE of the text; it may be cut anywhere in its last period.
    """
    length = len(text)
    for period in range(1, min(LOOP_MAX_PERIOD, length // min_periods) + 1):
        position = length - 1
        while position >= period and text[position] == text[position - period]:
            position -= 1
        extent = length - 1 - position + period
        if extent >= min_periods * period and extent >= LOOP_MIN_SHARE * length:
            return period, extent / length
    return 0, 0.0


def begins_to_loop(text: str) -> bool:
    """Whether a text ends in two repetitions of something: not yet a loop, but the way into one. Digits count as equal:
    a list that repeats one line and only counts on is such a text."""
    return tail_loop(_DIGIT.sub("0", text[-WINDOW_CHARACTERS:]), 2)[0] > 0


def script_switches(text: str) -> float:
    """Changes of script between neighbouring letters, per letter; 0 for text without letters."""
    letters = [_script(character) for character in text if character.isalpha()]
    if not letters:
        return 0.0
    return sum(a != b for a, b in pairwise(letters)) / len(letters)


def _script(letter: str) -> str:
    point = ord(letter)
    name = "other"
    for start, script in _SCRIPTS:
        if point < start:
            break
        name = script
    return name


def agreement(token_ids: list[tuple[int, ...] | None], count: int = 16) -> int | None:
    """How many first tokens (at most `count`) the same prompt gave in every slot; None where ids are missing."""
    rows = [ids[:count] for ids in token_ids if ids]
    if len(rows) < len(token_ids) or not rows:
        return None
    agreed = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        agreed += 1
    return agreed
