"""Chunks of a log -> events, as they come: for whole files and for a boot that is being watched.

Most of a long log is traffic. So whole blocks are first reduced to the shapes of their lines (digits taken out), and
a shape in which no wording's needle occurs is remembered and passed over from then on, without decoding anything.
"""

from __future__ import annotations

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
_WHOLE_TEXT = (ev.EngineInitialised, ev.NonDefaultArgs, ev.ManifestEntry)
_BARS = (ev.GraphProgress, ev.WeightsProgress)


class LogReader:
    """Feed bytes of any size and get the events they complete; `close` gives those of an unfinished last line.

    Chunk boundaries never change the result. Memory is bounded whatever the log holds. `traffic` adds the events of
    a serving engine (health requests, statistics), which are many; without it their lines are passed over.
    A bar gives an event only when it moved.
    """

    def __init__(self, traffic: bool = False) -> None:
        self._wordings = [w for w in WORDINGS if traffic or not w.traffic]
        needles = {w.needle.encode() for w in self._wordings}
        self._needles = tuple(sorted(needles))
        self._shape_needles = tuple(sorted({needle.translate(None, _VARIABLE) for needle in needles}))
        self._boring: set[bytes] = set()
        self._blocks = Blocks()
        self._line = 1
        self._source: Source | None = None
        self._bars: dict[tuple[type, str], tuple[int, int]] = {}

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
        shapes = block.translate(None, _VARIABLE).split(b"\n")
        boring = self._boring
        if not finished:
            boring = set()
        unknown = [index for index, shape in enumerate(shapes) if shape not in boring]
        found: list[ev.Event] = []
        if unknown:
            lines = block.split(b"\n")
            for index in unknown:
                if self._has_needle(shapes[index]):
                    inherited = self._source if index == 0 else None
                    found += self._read_line(self._line + index, lines[index], inherited, finished)
        ended = len(shapes) - 1
        self._line += ended
        rest = block[block.rfind(b"\n") + 1 :]
        source = None if ended else self._source
        for segment in rest.split(b"\r") if rest else ():
            source = last_source(segment[:SEGMENT_LIMIT], source)
        self._source = source
        return found

    def _has_needle(self, shape: bytes) -> bool:
        if any(needle in shape for needle in self._shape_needles):
            return True
        if len(shape) <= _SHAPE_BYTES:
            if len(self._boring) >= _SHAPES:
                self._boring.clear()
            self._boring.add(shape)
        return False

    def _read_line(self, number: int, line: bytes, source: Source | None, finished: bool) -> list[ev.Event]:
        if b"\r" not in line:
            return self._read_segment(number, line, source, finished)
        found: list[ev.Event] = []
        segments = line.split(b"\r")
        for index, segment in enumerate(segments):
            segment = segment[:SEGMENT_LIMIT]
            if any(needle in segment for needle in self._needles):
                found += self._read_segment(number, segment, source, finished or index < len(segments) - 1)
            source = last_source(segment, source)
        return found

    def _read_segment(self, number: int, segment: bytes, source: Source | None, finished: bool) -> list[ev.Event]:
        found: list[ev.Event] = []
        parts = messages(decode(segment), source)
        for index, message in enumerate(parts):
            found += self._read_message(number, message, finished or index < len(parts) - 1)
        return found

    def _read_message(self, number: int, message: Message, finished: bool) -> Iterable[ev.Event]:
        whole = At(number, message.text, message.source)
        if message.text.startswith(LAUNCHER.needle):
            event = LAUNCHER.read(whole) if finished else None
            if event is not None:
                self._forget_bars(event)
                yield event
                return
        quoted = message.level in ("INFO", "DEBUG")
        for wording in self._wordings:
            if wording.needle not in message.text or (wording.trouble and quoted):
                continue
            if not finished and wording.open_end:
                continue
            event = wording.read(whole)
            if event is not None and self._is_new(event):
                yield event if isinstance(event, _WHOLE_TEXT) else _shortened(event)

    def _forget_bars(self, event: ev.Event) -> None:
        if isinstance(event, (ev.EngineInitialised, ev.ManifestMark)):
            self._bars.clear()

    def _is_new(self, event: ev.Event) -> bool:
        self._forget_bars(event)
        if not isinstance(event, _BARS):
            return True
        key = (type(event), event.family if isinstance(event, ev.GraphProgress) else "")
        state = (event.done, event.total)
        if self._bars.get(key) == state:
            return False
        if len(self._bars) < 64:
            self._bars[key] = state
        return True


def _shortened(event: ev.Event) -> ev.Event:
    # only a few texts are needed whole; any other could be a megabyte of somebody's prompt
    return event if len(event.text) <= _TEXT_LIMIT else replace(event, text=event.text[:_TEXT_LIMIT])


def read_events(chunks: Iterable[bytes], traffic: bool = False) -> Iterable[ev.Event]:
    """All events of a log given in chunks."""
    reader = LogReader(traffic)
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.close()
