"""JSON text of trace events -> typed events, with the broken ones mended or dropped and counted. Pure.

Traces of torch 2.11 are not always JSON: quotes in names are not escaped, occupancies can be `nan` or
`inf`, a file can end anywhere. A block that does not decode is read event by event; what can be
mended is (`repaired`), the rest is dropped and counted (`dropped`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

# An event starts with one of these keys. "id" is left out: lists in a trace's metadata start with it.
KEYS = rb'"(?:ph|cat|name|pid|tid|ts|dur|args|bp|s|cname|tts)"\s*:'
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*" + KEYS + rb")")
_START = re.compile(r"\{\s*" + KEYS.decode())
_BOUNDARY_TEXT = re.compile(BOUNDARY.pattern.decode())

# Kineto's order of fields: the name ends where the next field starts, whatever stands inside it.
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:pid|ph|cat|ts|tid)"\s*:|"\s*\}|"\s*$)', re.DOTALL)
_INNER_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)"')
_ESCAPE = re.compile(r'\\((?:["\\/bfnrt]|u[0-9a-fA-F]{4})?)')
_BAD_NUMBER = re.compile(r"(:\s*|[\[,]\s*)([-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?))(?=\s*[,}\]])", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f]")

SALVAGED_AT_ONCE = 8 << 10

_STANDARD = json.JSONDecoder(strict=False)

if TYPE_CHECKING:
    msgspec: Any

    class Args:
        correlation: int | str
        graph_id: int | str
        device: object

        def __init__(self, correlation: int | str = -1, graph_id: int | str = -1, device: object = None) -> None: ...

    class Event:
        name: str | None
        cat: str | None
        ts: float
        dur: float
        tid: object
        args: Args

        def __init__(
            self,
            name: str | None = None,
            cat: str | None = None,
            ts: float = -1.0,
            dur: float = -1.0,
            tid: object = None,
            args: Args = ...,
        ) -> None: ...

else:
    try:
        import msgspec

        class Args(msgspec.Struct, gc=False, frozen=True):
            """The arguments of an event that the analysis reads; -1 where there is none."""

            correlation: int | str = -1
            graph_id: int | str = msgspec.field(default=-1, name="graph id")
            device: int | str | None = None

        class Event(msgspec.Struct, gc=False):
            """One event. Times in microseconds, as the trace has them; -1 where there is none."""

            name: str | None = None
            cat: str | None = None
            ts: float = -1.0
            dur: float = -1.0
            tid: int | str | float | None = None
            args: Args = Args()

    except ImportError:
        msgspec = None

        class Args:
            """The arguments of an event that the analysis reads; -1 where there is none."""

            __slots__ = ("correlation", "device", "graph_id")

            def __init__(self, correlation=-1, graph_id=-1, device=None):
                self.correlation, self.graph_id, self.device = correlation, graph_id, device

        class Event:
            """One event. Times in microseconds, as the trace has them; -1 where there is none."""

            __slots__ = ("args", "cat", "dur", "name", "tid", "ts")

            def __init__(self, name=None, cat=None, ts=-1.0, dur=-1.0, tid=None, args=None):
                self.name, self.cat, self.ts, self.dur, self.tid, self.args = name, cat, ts, dur, tid, args


NO_ARGS = Args()


def _typed_decoder() -> Callable[[bytes], list[Event]] | None:
    if msgspec is None:
        return None
    decoder: Callable[[bytes], list[Event]] = msgspec.json.Decoder(list[Event]).decode
    return decoder


def _standard_decode(block: bytes) -> list[Event]:
    return [event for event in map(from_mapping, _STANDARD.decode(block.decode("utf-8"))) if event is not None]


class BlockDecoder:
    """Decodes blocks of whole events and counts what was wrong. One per file; not shared.

    events: decoded so far; repaired, dropped: mended and lost ones (dropped are not among `events`).
    """

    __slots__ = ("_decode", "dropped", "events", "repaired")

    def __init__(self, standard: bool = False) -> None:
        """standard: use the standard library's json even where msgspec is installed."""
        self._decode = (None if standard else _typed_decoder()) or _standard_decode
        self.events = self.repaired = self.dropped = 0

    def decode(self, block: bytes) -> list[Event] | None:
        """The events of `block` (comma-separated objects), or None when it is not what it should be."""
        try:
            events = self._decode(b"[" + block + b"]")
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors too
            return None
        self.events += len(events)
        return events

    def decode_parts(self, block: bytes, last: bool) -> tuple[list[Event], bytes, bytes | None]:
        """As `salvage`, but halved until only the parts around broken events are read one by one.

        A trace with one bad kernel name has it in every step, so in every block.
        """
        events = self.decode(block)
        if events is not None:
            return events, b"", None
        middle = BOUNDARY.search(block, len(block) // 2) if len(block) > SALVAGED_AT_ONCE else None
        if middle is None:
            return self.salvage(block, last)
        low, high = block[: middle.start() + 1], block[middle.end() :]
        events, again, behind = self.decode_parts(low, last=False)
        if behind is not None:
            return events, b"", behind + b"," + high
        if again:
            # the middle was no boundary after all
            more, again, behind = self.salvage(again + b"," + high, last)
        else:
            more, again, behind = self.decode_parts(high, last)
        return events + more, again, behind

    def salvage(self, block: bytes, last: bool) -> tuple[list[Event], bytes, bytes | None]:
        """Event by event: (events, bytes to try again with more behind them, bytes after the list or None).

        last: nothing follows `block`, so an unfinished event at its end is dropped, not kept.
        """
        text = block.decode("utf-8", "replace")
        events: list[Event] = []
        position, size = 0, len(text)
        while True:
            while position < size and text[position] in " \t\r\n,":
                position += 1
            if position >= size:
                return self._counted(events), b"", None
            if text[position] == "]":
                return self._counted(events), b"", text[position + 1 :].encode()
            if text[position] != "{":
                following = _START.search(text, position)
                self.dropped += 1
                if following is None:
                    return self._counted(events), b"", None
                position = following.start()
                continue
            try:
                value, position = _STANDARD.raw_decode(text, position)
                event = from_mapping(value)
            except (ValueError, RecursionError):
                boundary = _BOUNDARY_TEXT.search(text, position)
                if boundary is None:
                    end = _end_of_last(text, position)
                    if end is None and not last:
                        return self._counted(events), text[position:].encode(), None
                    stop = size if end is None else end
                else:
                    stop = boundary.start() + 1
                event = repair(text[position:stop])
                self.repaired += event is not None
                position = stop
            if event is None:
                self.dropped += 1
            else:
                events.append(event)

    def _counted(self, events: list[Event]) -> list[Event]:
        self.events += len(events)
        return events


_LIST_END = re.compile(r'\}\s*(?=\](?:\s*\}\s*$|\s*$|\s*,\s*"[A-Za-z_]+"\s*:))')


def _end_of_last(text: str, position: int) -> int | None:
    end = _LIST_END.search(text, position)
    return end.start() + 1 if end else None


def repair(text: str) -> Event | None:
    """The event of one broken object's text, or None when no known fault explains it."""
    mended = _BAD_NUMBER.sub(r"\1null", text)
    mended = _NAME.sub(_escaped_name, mended, count=1)
    mended = _CONTROL.sub(" ", _ESCAPE.sub(_whole_escape, mended))
    try:
        return from_mapping(_STANDARD.decode(mended))
    except (ValueError, RecursionError):
        return None


def _whole_escape(match: re.Match[str]) -> str:
    return match[0] if match[1] else r"\\"


def _escaped_name(match: re.Match[str]) -> str:
    return match[1] + _INNER_QUOTE.sub(r'\1\\"', match[2]) + match[3]


def from_mapping(value: Any) -> Event | None:
    """An event from plain JSON values of whatever types; None when it is no object."""
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    typed = NO_ARGS
    if isinstance(args, dict) and ("correlation" in args or "graph id" in args):
        typed = Args(_id(args.get("correlation", -1)), _id(args.get("graph id", -1)), _plain(args.get("device")))
    return Event(
        name=_text(value.get("name")),
        cat=_text(value.get("cat")),
        ts=_number(value.get("ts")),
        dur=_number(value.get("dur")),
        tid=_plain(value.get("tid")),
        args=typed,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return -1.0


def _plain(value: Any) -> int | str | float | None:
    return value if isinstance(value, int | str | float) else None


def _id(value: Any) -> int | str:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else -1
