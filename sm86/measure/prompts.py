"""Prompts of a wanted length in tokens, with facts to ask for, and the reading of the answers. Pure, seeded.

A prompt is a short heading with the run's salt, prose with one fact at each of five depths, and the beginning of
a list of the facts. The model goes on with the list, so the measured text itself shows whether the long prompt
was understood. Names and codes differ between the sequences: an answer that is another sequence's code is a leak.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sm86.errors import CouldNotRun
from sm86.measure import prose

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where in the prose the facts stand, as shares of its words."""

REACHED = 0.95
"""A prompt shorter than this share of the wanted length did not measure what was asked for."""

_FIT_ROUNDS = 10
_FIRST = (
    "Ald",
    "Bren",
    "Car",
    "Dun",
    "Esk",
    "Fal",
    "Gil",
    "Hax",
    "Ing",
    "Kel",
    "Lor",
    "Mor",
    "Nor",
    "Pen",
    "Rav",
    "Sel",
    "Thor",
    "Wes",
)
_SECOND = (
    "moor",
    "wick",
    "dale",
    "holt",
    "mere",
    "ford",
    "stow",
    "by",
    "combe",
    "ridge",
    "haven",
    "field",
    "gate",
    "burn",
    "ness",
    "worth",
)
_ANSWER_REACH = 60


@dataclass(frozen=True, slots=True)
class Fact:
    """The depot of `name` has the code `code` (digits)."""

    name: str
    code: str

    @property
    def sentence(self) -> str:
        return f"The code of {self.name} is {self.code}."


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one sequence is asked. tokens: its length by the server's tokenizer, or estimated; wanted: the aim."""

    text: str
    facts: tuple[Fact, ...]
    tokens: int
    wanted: int


Count = Callable[[str], int]
"""Text -> its length in tokens, special tokens included."""


def facts(salt: str, sequences: int) -> tuple[tuple[Fact, ...], ...]:
    """One fact per depth for every sequence. All codes of a run differ; names differ as far as they reach."""
    rng = random.Random(f"{salt}/facts")
    names = [first + second for first in _FIRST for second in _SECOND]
    rng.shuffle(names)
    codes = rng.sample(range(1000, 10000), sequences * len(DEPTHS))
    numbered = iter(codes)
    rows = []
    for sequence in range(sequences):
        start = sequence * len(DEPTHS)
        own = [names[(start + index) % len(names)] for index in range(len(DEPTHS))]
        rows.append(tuple(Fact(name, str(next(numbered))) for name in own))
    return tuple(rows)


def compose(salt: str, sequence: int, own: Sequence[Fact], body_words: int) -> str:
    """The prompt's text with `body_words` words of prose. The salt comes first, so that no earlier run's cache fits."""
    body = prose.words(f"{salt}/{sequence}", body_words)
    parts: list[str] = []
    start = 0
    for depth, fact in zip(DEPTHS, own, strict=True):
        cut = max(start, int(depth * len(body)))
        while 0 < cut < len(body) and not body[cut - 1].rstrip().endswith("."):
            cut += 1
        parts += [*body[start:cut], fact.sentence]
        start = cut
    parts += body[start:]
    text = " ".join(parts).replace("\n\n ", "\n\n")
    heading = f"Chronicle {salt}-{sequence + 1}, with five codes."
    return f"{heading}\n\n{text.rstrip()}\n\nThe codes named above, in order:\n- {own[0].name}:"


def fit(salt: str, sequence: int, own: Sequence[Fact], wanted: int, count: Count) -> Prompt:
    """The longest prompt found of at most `wanted` tokens; `count` is asked a handful of times.

    Raises CouldNotRun when even the frame without prose is longer than that.
    """
    frame = count(compose(salt, sequence, own, 0))
    if frame > wanted:
        raise CouldNotRun(
            f"a prompt of {wanted} tokens has no room for the questions, which alone take {frame}",
            f"ask for at least {2 * frame} prompt tokens, or fewer decode tokens",
        )
    low, low_tokens, high = 0, frame, None
    best = Prompt(compose(salt, sequence, own, 0), tuple(own), frame, wanted)
    per_word = 1.4
    for _ in range(_FIT_ROUNDS):
        # aim a little low: a prompt above the wanted length is useless, one just below is as good
        guess = low + max(1, int((wanted - low_tokens) / per_word * 0.999))
        if high is not None:
            guess = min(guess, high - 1)
        if guess <= low:
            break
        text = compose(salt, sequence, own, guess)
        tokens = count(text)
        per_word = max((tokens - frame) / guess, 0.05)
        if tokens > wanted:
            high = guess
            if high - low > 1 and int((wanted - low_tokens) / per_word * 0.999) < 1:
                break
        else:
            low, low_tokens = guess, tokens
            best = Prompt(text, tuple(own), tokens, wanted)
            if wanted - tokens <= max(2, wanted // 500):
                break
    return best


def continuation(prompt: Prompt) -> str:
    """The prompt with its answers filled in and the beginning of a text: what a model then writes is prose.

    The whole prompt is its prefix, so that a server with the prompt in its prefix cache prefills only the rest.
    """
    first, *others = prompt.facts
    rest = "".join(f"\n- {fact.name}: {fact.code}" for fact in others)
    return f"{prompt.text} {first.code}{rest}\n\nWhat the chronicle tells, in plain prose:\n\nThe"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a text says for a fact: whether it is right, the digits given ("" for none), whose code they are
    if they are another sequence's (0-based), and the answer's place in the text: characters from behind the name
    to behind the digits (0, 0 where there are none)."""

    fact: Fact
    right: bool
    given: str
    leaked_from: int | None
    start: int
    end: int


def read_answers(text: str, sequence: int, rows: Sequence[Sequence[Fact]]) -> tuple[Answer, ...]:
    """The answers in the text that follows a prompt of `sequence` (0-based); every code must match exactly."""
    own = rows[sequence]
    full = f"{own[0].name}:{text}"
    owners = {fact.code: number for number, row in enumerate(rows) for fact in row}
    answers = []
    for fact in own:
        match = re.search(rf"\b{re.escape(fact.name)}\b([^\n]{{0,{_ANSWER_REACH}}})", full)
        digits = re.search(r"\d+", match[1]) if match else None
        given = digits[0] if digits else ""
        owner = owners.get(given)
        leaked = owner if owner is not None and owner != sequence else None
        start, end = 0, 0
        if match and digits:
            # the first name is the prompt's last word and so stands before the text
            begin = match.start(1) - (len(full) - len(text))
            start, end = max(begin, 0), begin + digits.end()
        answers.append(Answer(fact, given == fact.code, given, leaked, start, end))
    return tuple(answers)
