"""Chunks of a log -> events, as they come: for whole files and for a boot that is being watched.

Most of a long log says nothing to a verifier, and its lines differ in numbers only. So a line is first reduced to its
shape, the line without its digits; the shapes in which no wording's needle occurs are remembered and passed over
without decoding anything. Three more short cuts keep long logs cheap, and none of them changes a result: a bar that
stands where it stood, messages at level INFO by how they begin, and shapes that were seen only once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from sm86.verify import events as ev
from sm86.verify.lines import SEGMENT_LIMIT, Blocks, Message, Source, decode, last_source, messages
from sm86.verify.wordings import LAUNCHER, WORDINGS, At

_VARIABLE = b"0123456789.,"
"""Taken out of a line to get its shape. A needle loses them too, so a line with a needle always has it in its shape."""

_SHAPES = 8192
_SHAPE_BYTES = 512
_TEXT_LIMIT = 1000
_HEAD_BYTES = 6
_WHOLE_TEXT = (ev.EngineInitialised, ev.NonDefaultArgs, ev.ManifestEntry)
_BARS = (ev.GraphProgress, ev.WeightsProgress)
_BAR_KINDS = 64

_CALM = re.compile(rb"(?:\(\w+ pid=\d+\) )?(?:INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\[]{1,160}\] ")
"""The start of a line that holds a message at level INFO or DEBUG, where no wording of trouble is looked for."""

_HEADER_END = b"] "
_LEVELS = (b"INFO ", b"DEBUG ", b"WARNING ", b"ERROR ", b"CRITICAL ")

_TIMING = re.compile(rb" \[\d+:\d\d(?::\d\d)?<[\d:?]+, {1,3}[\d.?]+(?:it/s|s/it)\]\s*")


class LogReader:
    """Feed bytes of any size and get the events they complete; `close` gives those of an unfinished last line.

    Chunk boundaries never change the result. Memory is bounded whatever the log holds. `traffic` adds the events of
    a serving engine (health requests, statistics), which are many; without it their lines are passed over.
    A bar gives an event only when it moved.
    """

    def __init__(self, traffic: bool = False) -> None:
        self._wordings = [w for w in WORDINGS if traffic or not w.traffic]
        self._needles = tuple(sorted({w.needle.encode() for w in self._wordings}))
        self._shape_needles = tuple(sorted({needle.translate(None, _VARIABLE) for needle in self._needles}))
        calm = [w for w in self._wordings if not w.trouble]
        self._heads = {head.encode()[:_HEAD_BYTES] for w in calm for head in w.heads}
        self._floating = tuple(sorted({w.needle.encode() for w in calm if not w.heads}))
        self._boring: set[bytes] = set()
        self._once: set[bytes] = set()
        self._blocks = Blocks()
        self._line = 1
        self._source: Source | None = None
        self._bars: dict[tuple[type, str], tuple[int, int]] = {}
        self._still = self._still_shape = b""

    @property
    def lines(self) -> int:
        """Physical lines read so far, the unfinished one included."""
        return self._line

    def feed(self, data: bytes) -> list[ev.Event]:
        """Events of the lines (and bar updates) that `data` completes, in the log's order."""
        return self._read(self._blocks.feed(data), finished=True)

    def close(self) -> list[ev.Event]:
        """Events of the last line where the log ends in the middle of it.

        A value that reaches to the end of such a line may be cut, and gives no event.
        """
        return self._read(self._blocks.close(), finished=False)

    def _read(self, block: bytes, finished: bool) -> list[ev.Event]:
        if not block:
            return []
        # one way to end a line; a pair that chunks have parted gives an empty segment, which says nothing
        block = block.replace(b"\r\n", b"\n")
        shapes = block.translate(None, _VARIABLE).split(b"\n")
        boring = self._boring
        unknown = [index for index, shape in enumerate(shapes) if shape not in boring]
        found: list[ev.Event] = []
        if unknown:
            lines = block.split(b"\n")
            for index in unknown:
                inherited = self._source if index == 0 else None
                found += self._read_line(self._line + index, lines[index], shapes[index], inherited, finished)
        ended = len(shapes) - 1
        self._line += ended
        rest = block[block.rfind(b"\n") + 1 :]
        source = None if ended else self._source
        for segment in rest.split(b"\r") if b" pid=" in rest else ():
            source = last_source(segment[:SEGMENT_LIMIT], source)
        self._source = source
        return found

    def _read_line(
        self, number: int, line: bytes, shape: bytes, source: Source | None, finished: bool
    ) -> list[ev.Event]:
        if b"\r" not in shape:
            return self._read_segment(number, line, shape, source, finished)
        found: list[ev.Event] = []
        segments = line.split(b"\r")
        last = len(segments) - 1
        has_prefix = b" pid=" in line
        for index, (segment, its_shape) in enumerate(zip(segments, shape.split(b"\r"), strict=True)):
            if its_shape in self._boring and not has_prefix:
                continue
            found += self._read_segment(number, segment, its_shape, source, finished or index < last)
            if has_prefix:
                source = last_source(segment[:SEGMENT_LIMIT], source)
        return found

    def _read_segment(
        self, number: int, segment: bytes, shape: bytes, source: Source | None, finished: bool
    ) -> list[ev.Event]:
        if shape in self._boring or self._stands_still(segment, shape) or not self._is_worth_reading(segment, shape):
            return []
        found: list[ev.Event] = []
        every: list[ev.Event] = []
        parts = messages(decode(segment), source)
        for index, message in enumerate(parts):
            every += self._events(number, message, finished or index < len(parts) - 1)
        for event in every:
            if self._is_new(event):
                found.append(event)
        # of two bars glued together each undoes the other's step, so the same line again is news again
        self._keep_bar(segment, shape, len(every) <= 1 and all(isinstance(event, _BARS) for event in every))
        return found

    def _keep_bar(self, segment: bytes, shape: bytes, one_bar: bool) -> None:
        cut = segment.rfind(b" [")
        if one_bar and cut > 0 and _TIMING.fullmatch(segment, cut):
            self._still, self._still_shape = segment[:cut], shape
        else:
            self._still = self._still_shape = b""

    def _stands_still(self, segment: bytes, shape: bytes) -> bool:
        """Whether this is the bar that was read last, at the same step: only the digits of its times differ."""
        return shape == self._still_shape and shape != b"" and segment.startswith(self._still)

    def _is_worth_reading(self, segment: bytes, shape: bytes) -> bool:
        if shape not in self._once and self._is_calm(segment):
            # whether its shape is boring costs more to find out, and pays only if it comes again
            if len(shape) <= _SHAPE_BYTES:
                _remember(self._once, shape)
            return False
        if any(needle in shape for needle in self._shape_needles):
            return any(needle in segment for needle in self._needles)
        if len(shape) <= _SHAPE_BYTES:
            _remember(self._boring, shape)
        return False

    def _is_calm(self, segment: bytes) -> bool:
        """Whether this is one message at level INFO or DEBUG that begins like no wording."""
        start = _CALM.match(segment)
        if start is None:
            return False
        rest = segment[start.end() : SEGMENT_LIMIT]
        if rest[:_HEAD_BYTES] in self._heads:
            return False
        if b" pid=" in rest or b"\x1b" in rest:
            return False
        if _HEADER_END in rest and any(level in rest for level in _LEVELS):
            # perhaps a second message, glued to the first
            return False
        return not any(needle in rest for needle in self._floating)

    def _events(self, number: int, message: Message, finished: bool) -> Iterable[ev.Event]:
        at = At(number, message.text, message.source)
        if message.text.startswith(LAUNCHER.needle):
            event = LAUNCHER.read(at) if finished else None
            if event is not None:
                yield event
                return
        quoted = message.level in ("INFO", "DEBUG")
        for wording in self._wordings:
            if wording.needle not in message.text or (wording.trouble and quoted):
                continue
            if wording.open_end and not finished:
                continue
            event = wording.read(at)
            if event is not None:
                yield event if isinstance(event, _WHOLE_TEXT) else _shortened(event)

    def _is_new(self, event: ev.Event) -> bool:
        if isinstance(event, ev.EngineInitialised | ev.ManifestMark):
            self._bars.clear()
        if not isinstance(event, _BARS):
            return True
        key = (type(event), event.family if isinstance(event, ev.GraphProgress) else "")
        state = (event.done, event.total)
        if self._bars.get(key) == state:
            return False
        if key in self._bars or len(self._bars) < _BAR_KINDS:
            self._bars[key] = state
        return True


def _remember(shapes: set[bytes], shape: bytes) -> None:
    if len(shapes) >= _SHAPES:
        shapes.clear()
    shapes.add(shape)


def _shortened(event: ev.Event) -> ev.Event:
    # only a few texts are needed whole; any other could be a megabyte of somebody's prompt
    return event if len(event.text) <= _TEXT_LIMIT else replace(event, text=event.text[:_TEXT_LIMIT])


def read_events(chunks: Iterable[bytes], traffic: bool = False) -> Iterable[ev.Event]:
    """All events of a log given in chunks."""
    reader = LogReader(traffic)
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.close()
