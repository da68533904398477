"""What a wording is, and the small helpers that the tables are written with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sm86.verify import events as ev
from sm86.verify.lines import Source

FIRST, LAST = (0, 20), (0, 33)
"""The vLLM releases whose sources were read."""


@dataclass(frozen=True, slots=True)
class At:
    """Where a message stands: what every event starts with."""

    line: int
    text: str
    source: Source | None


Build = Callable[[At, "re.Match[str]"], ev.Event | None]


@dataclass(frozen=True, slots=True)
class Wording:
    """One wording: what it looks like, in which releases, and which event it makes.

    needle: a literal that every match contains; lets the reader pass over lines cheaply.
    since, until: releases whose sources have it, inclusive. They say where the wording was read, not where it is
    accepted: another version that uses a known wording is read all the same.
    anywhere: may stand inside a message (errors that others quote), else only at its start.
    open_end: its value reaches to the end of the line, so a line that the log cuts off may hold a part of it.
    trouble: never said at level INFO or DEBUG; there the same words are a quotation, such as a logged prompt.
    heads: how messages with it begin (any of these); empty where that is not fixed.
    traffic: read only on demand; a serving engine writes many.
    """

    needle: str
    pattern: re.Pattern[str]
    build: Build
    since: tuple[int, int] = FIRST
    until: tuple[int, int] = LAST
    anywhere: bool = False
    open_end: bool = False
    trouble: bool = False
    traffic: bool = False
    heads: tuple[str, ...] = ()

    def read(self, at: At) -> ev.Event | None:
        """The event in this message, or None: not this wording, or one whose numbers are none."""
        found = self.pattern.search(at.text) if self.anywhere else self.pattern.match(at.text)
        try:
            return self.build(at, found) if found else None
        except ValueError:
            # a number that is none ("1.2.3", thousands of digits) stands in no line of vLLM's
            return None


def wording(
    needle: str,
    pattern: str,
    build: Build,
    *,
    since: tuple[int, int] = FIRST,
    until: tuple[int, int] = LAST,
    anywhere: bool = False,
    open_end: bool = False,
    trouble: bool = False,
    traffic: bool = False,
    heads: tuple[str, ...] = (),
) -> Wording:
    """A wording from its pattern's text. Without `heads`, a pattern that begins with the needle gives them."""
    if not heads and not anywhere and pattern.replace("\\", "").startswith(needle):
        heads = (needle,)
    return Wording(needle, re.compile(pattern), build, since, until, anywhere, open_end, trouble, traffic, heads)


def values(kind: Callable[..., ev.Event], *converters: Callable[[str], object]) -> Build:
    """An event whose own fields are the pattern's groups, in order, each through its converter."""

    def build(at: At, found: re.Match[str]) -> ev.Event:
        return kind(at.line, at.text, at.source, *(convert(found[n]) for n, convert in enumerate(converters, 1)))

    return build


def fixed(kind: Callable[..., ev.Event], *own: object) -> Build:
    """An event whose own fields do not depend on the message."""
    return lambda at, found: kind(at.line, at.text, at.source, *own)


def count(text: str) -> int:
    """`17,359,567` -> 17359567."""
    return int(text.replace(",", ""))


GIB = r"(-?\d{1,9}(?:\.\d+)?) GiB"
