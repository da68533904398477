"""The lines of a boot's log that may show why it failed, kept as they come; everything else is passed over. Pure.

Bounded, whatever the log holds: the last lines, and for each kind of failure the first and the last few that show it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sm86.verify.lines import Blocks, Message, Source, decode, last_source, messages

TAIL_LINES = 200
KEPT_FIRST = 6
KEPT_LAST = 3
TEXT_LIMIT = 400

_FRAME = re.compile(r'\s*File "[^"]*", line \d+, in (\w+)')
_TRACEBACK = "Traceback (most recent call last)"
_TOLD_LEVELS = ("", "ERROR", "CRITICAL", "FATAL")
_WAITING = ("No available shared memory broadcast block found", '"GET /health ', '"GET /metrics ', '"GET /v1/models ')
"""Lines that a server writes without doing any work: ranks that wait for others, and our own questions."""


@dataclass(frozen=True, slots=True)
class Line:
    """One message of the log. number: physical line, from 1; frame: the innermost function of interest in the
    traceback that the message belongs to, "" outside of one."""

    number: int
    text: str
    level: str = ""
    source: Source | None = None
    frame: str = ""

    @property
    def is_life(self) -> bool:
        """Does it tell of work, and not only of waiting."""
        return not any(words in self.text for words in _WAITING)


class Scanner:
    """Feed the log's bytes; ask afterwards which lines match a pattern, and for the last ones."""

    def __init__(
        self, patterns: Mapping[str, Iterable[str]], notices: Mapping[str, Iterable[str]], frames: Iterable[str]
    ) -> None:
        """patterns: name -> regular expressions, any of which shows it, in errors and unlevelled lines; notices: the
        same, in lines of any level; frames: functions to remember in tracebacks."""
        self._patterns = {name: _joined(each) for name, each in patterns.items()}
        self._notices = {name: _joined(each) for name, each in notices.items()}
        both = (*self._patterns.values(), *self._notices.values())
        self._any = _joined(pattern.pattern for pattern in both)
        self._frames = frozenset(frames)
        self._frame: dict[Source | None, str] = {}
        self._blocks = Blocks()
        self._line = 1
        self._source: Source | None = None
        self._first: dict[str, list[Line]] = {}
        self._last: dict[str, deque[Line]] = {}
        self._tail: deque[Line] = deque(maxlen=TAIL_LINES)

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` completes."""
        return self._read(self._blocks.feed(data))

    def close(self) -> list[Line]:
        """The unfinished last line."""
        return self._read(self._blocks.close())

    def matches(self, name: str) -> tuple[Line, ...]:
        """Lines that show that name's patterns, first to last, the same words once."""
        both = [*self._first.get(name, ()), *self._last.get(name, ())]
        unique: dict[str, Line] = {}
        for line in both:
            unique.setdefault(line.text, line)
        return tuple(unique.values())

    def tail(self, count: int) -> tuple[Line, ...]:
        """The last lines of the log, bars and blank lines left out."""
        told = [line for line in self._tail if line.text.strip() and "it/s]" not in line.text]
        return tuple(told[-count:])

    def _read(self, block: bytes) -> list[Line]:
        found: list[Line] = []
        for part in re.split(rb"(?<=[\n\r])", block):
            if not part:
                continue
            for message in messages(decode(part.rstrip(b"\r\n")), self._source):
                found.append(self._take(message))
            if part.endswith(b"\n"):
                self._line += 1
                self._source = None
            else:
                self._source = last_source(part, self._source)
        return found

    def _take(self, message: Message) -> Line:
        self._note_frame(message)
        line = Line(
            self._line, message.text[:TEXT_LIMIT], message.level, message.source, self._frame.get(message.source, "")
        )
        self._tail.append(line)
        if self._any.search(line.text):
            told = self._patterns.items() if message.level in _TOLD_LEVELS else ()
            for name, pattern in (*told, *self._notices.items()):
                if pattern.search(line.text):
                    self._keep(name, line)
        return line

    def _keep(self, name: str, line: Line) -> None:
        first = self._first.setdefault(name, [])
        if len(first) < KEPT_FIRST:
            first.append(line)
        else:
            self._last.setdefault(name, deque(maxlen=KEPT_LAST)).append(line)

    def _note_frame(self, message: Message) -> None:
        if message.text.startswith(_TRACEBACK):
            self._frame.pop(message.source, None)
            return
        frame = _FRAME.match(message.text)
        if frame and frame[1] in self._frames and len(self._frame) < 256:
            self._frame[message.source] = frame[1]


def _joined(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{one})" for one in patterns))
