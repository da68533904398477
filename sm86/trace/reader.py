"""A trace file as a stream of typed events in bounded memory, with its metadata.

The list of events is cut into blocks at what looks like the start of an event. A wrong cut never
decodes, so cuts are checked and not trusted; a block that does not decode is read event by event.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun, printable
from sm86.trace.events import BOUNDARY, BlockDecoder, Event
from sm86.trace.source import NEED, Truncation, pieces, refuse_foreign

HEAD_LIMIT = 64 << 20
TAIL_LIMIT = 8 << 20
EVENT_LIMIT = 32 << 20

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_DECODER = json.JSONDecoder(strict=False)
_WANTED = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "displayTimeUnit")


@dataclass(slots=True)
class Trace:
    """What was read beside the events; complete once `read` is used up.

    metadata: the trace's own fields of _WANTED; truncated: why the file ended early, or "".
    """

    path: Path
    decoder: BlockDecoder
    metadata: dict[str, Any] = field(default_factory=dict)
    truncated: str = ""
    bytes_read: int = 0

    @property
    def rank(self) -> int | None:
        rank = _mapping(self.metadata.get("distributedInfo")).get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def world_size(self) -> int | None:
        size = _mapping(self.metadata.get("distributedInfo")).get("world_size")
        return size if isinstance(size, int) else None

    @property
    def base_ns(self) -> int:
        """What a time of this trace counts from, in ns since 1970 (0: its times are absolute)."""
        base = self.metadata.get("baseTimeNanoseconds")
        return base if isinstance(base, int) else 0

    def device(self, number: int | None = None) -> str:
        """The name of GPU `number` (else of the first); "" when the trace does not say."""
        devices = self.metadata.get("deviceProperties")
        every = [_mapping(d) for d in devices] if isinstance(devices, list) else []
        chosen = next((d for d in every if d.get("id") == number), every[0] if every else {})
        return printable(str(chosen.get("name") or ""))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read(trace: Trace, progress: Callable[[int], None] | None = None) -> Iterator[list[Event]]:
    """The events of `trace.path` in lists, in file order; fills `trace` on the way.

    Memory is bounded by the block and by the largest single event (EVENT_LIMIT), not by the file.
    Raises CouldNotRun when the file is no JSON trace or cannot be read.
    """
    cut = Truncation()
    source = pieces(trace.path, cut, progress)
    buffer = _after_head(trace, source)
    decoder = trace.decoder
    tail: bytes | None = None
    retry_from = 0
    for piece in source:
        trace.bytes_read += len(piece)
        if tail is not None:
            tail += piece
            if len(tail) > TAIL_LIMIT:
                break
            continue
        buffer += piece
        end = _last_boundary(buffer, retry_from)
        if end is None:
            retry_from = max(0, len(buffer) - 256)
            if len(buffer) > EVENT_LIMIT:
                decoder.dropped += 1
                buffer, retry_from = b"", 0
            continue
        block, buffer, retry_from = buffer[: end[0]], buffer[end[1] :], 0
        events, again, tail = decoder.decode_parts(block, last=False)
        if tail is not None:
            # the cut fell behind the list: what it took away belongs to the metadata
            tail += b"," + buffer
        elif again:
            buffer = again + b"," + buffer
        yield events
        events = []
    if tail is None:
        events, _, tail = decoder.decode_parts(buffer, last=True)
        yield events
    if tail is None:
        trace.truncated = cut.why or "the file ends inside its list of events"
        tail = b""
    elif cut.why:
        trace.truncated = cut.why
    _read_metadata(trace, tail.decode("utf-8", "replace"))


def _after_head(trace: Trace, source: Iterator[bytes]) -> bytes:
    head = b""
    searched = 0
    first = True
    for piece in source:
        trace.bytes_read += len(piece)
        head += piece
        if first and head.lstrip(b"\xef\xbb\xbf \t\r\n"):
            refuse_foreign(trace.path, head[:4096])
            first = False
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text[:1] == b"[":
            return text[1:]
        match = _LIST.search(head, searched)
        if match:
            _read_metadata(trace, head[: match.start()].decode("utf-8", "replace"))
            return head[match.end() :]
        searched = max(0, len(head) - 64)
        if len(head) > HEAD_LIMIT:
            break
    if first:
        refuse_foreign(trace.path, head)
    raise CouldNotRun(f"{trace.path} is JSON, but not a trace: it has no list of traceEvents", NEED)


def _last_boundary(buffer: bytes, start: int) -> tuple[int, int] | None:
    """Where the last whole event ends and the next begins, searched from the end backwards."""
    size = len(buffer)
    window = 16 << 10
    while True:
        low = max(start, size - window)
        last = next(iter(deque(BOUNDARY.finditer(buffer, low), maxlen=1)), None)
        if last is not None:
            return last.start() + 1, last.end()
        if low == start:
            return None
        window *= 8


def _read_metadata(trace: Trace, text: str) -> None:
    """Each wanted field on its own: one broken line elsewhere in the metadata must not hide the others."""
    for key in _WANTED:
        for match in re.finditer(rf'"{key}"\s*:\s*', text):
            try:
                value, _ = _DECODER.raw_decode(text, match.end())
            except (ValueError, RecursionError):
                continue
            trace.metadata[key] = value
            break
