"""Server-sent events of an OpenAI-style completion: bytes -> typed events. Pure.

Format as vLLM 0.26.0 writes it (`entrypoints/openai/completion/serving.py`): `data: {json}` and an empty
line for each chunk; with `include_usage` and `continuous_usage_stats` every chunk carries `usage` with the
completion tokens so far; a last chunk without choices carries the final usage and, where the server was
started with --enable-prompt-tokens-details, the cached prompt tokens; then `data: [DONE]`. A fault in the
middle is a `data: {"error": {...}}` event followed by `[DONE]`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from sm86.json_text import parse as parse_json

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""No completion chunk is larger; without a bound a server that never ends a line would fill the memory."""

EXCERPT_CHARACTERS = 160

_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of the completion. `at` is the time its last byte was read, in seconds of the caller's clock.

    completion_tokens: generated so far, as the server counts; None where the event has no usage.
    text and reasoning are what this event adds; `choice` tells an event of the completion from the final usage event.
    bad_logprob: whether a log probability is not a number (the logits held NaN); None where none was sent.
    lowest_logprob: the least likely of the tokens this event adds, natural logarithm; None where not sent.
    """

    at: float
    text: str = ""
    reasoning: str = ""
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    choice: bool = True
    bad_logprob: bool | None = None
    lowest_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """`data: [DONE]`: the server says that the stream is complete."""

    at: float


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error the server reported inside the stream."""

    at: float
    message: str
    code: int | None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not a completion stream: what it was, and the beginning of it."""

    at: float
    problem: str
    excerpt: str


Event = Chunk | Done | ServerError | Fault


class StreamParser:
    """Feeds on bytes as they come, in any split, and gives the events that became complete.

    The result does not depend on where the bytes were split. Line ends are LF, CRLF or CR; comment lines
    (keep-alives) and fields other than `data` are skipped, as the format demands.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False
        self._first_line = True
        self._broken = False

    def feed(self, data: bytes, at: float) -> list[Event]:
        """The events that `data` completes; `at` is when the read that gave it returned."""
        events: list[Event] = []
        start = 0
        for match in _LINE_END.finditer(data):
            index = match.start()
            carriage_return = data[index] == 13
            if not carriage_return and self._after_cr and index == start:
                # the second half of CR LF, which may come with the next read
                self._after_cr, start = False, index + 1
                continue
            self._after_cr = carriage_return
            self._append(data[start:index], events, at)
            self._end_line(events, at)
            start = index + 1
        if start < len(data):
            self._after_cr = False
            self._append(data[start:], events, at)
        return events

    def end(self, at: float) -> list[Event]:
        """The connection has ended: what is left is a fault, as an event ends with an empty line."""
        events: list[Event] = []
        rest = bytes(self._line) or b"\n".join(self._data)
        if rest.strip():
            self._break(events, at, "the stream ends inside an event", rest)
        return events

    def _append(self, part: bytes, events: list[Event], at: float) -> None:
        if self._broken:
            return
        self._line += part
        if len(self._line) + self._data_bytes > MAX_EVENT_BYTES:
            self._break(events, at, f"an event of more than {MAX_EVENT_BYTES} bytes", bytes(self._line))

    def _end_line(self, events: list[Event], at: float) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._first_line:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first_line = False
        if self._broken:
            return
        if line:
            self._field(line, events, at)
        elif self._data:
            payload = b"\n".join(self._data)
            self._data.clear()
            self._data_bytes = 0
            events.append(event_of(payload, at))

    def _field(self, line: bytes, events: list[Event], at: float) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value)
        elif name not in (b"", b"event", b"id", b"retry"):
            self._break(events, at, "a line that is no server-sent event", line)

    def _break(self, events: list[Event], at: float, problem: str, what: bytes) -> None:
        # one fault tells it; whatever follows in a stream that is none would only repeat it
        if not self._broken:
            events.append(Fault(at, problem, _excerpt(what)))
        self._broken = True
        self._line.clear()
        self._data.clear()
        self._data_bytes = 0


def event_of(payload: bytes, at: float) -> Event:
    """The event of one `data` payload."""
    if payload.strip() == b"[DONE]":
        return Done(at)
    try:
        values = parse_json(payload)
    except ValueError:
        return Fault(at, "an event that is not JSON", _excerpt(payload))
    if not isinstance(values, dict):
        return Fault(at, "an event that is no JSON object", _excerpt(payload))
    if values.get("error") is not None:
        return _error(values["error"], at)
    try:
        return _chunk(values, at)
    except _Unexpected as problem:
        return Fault(at, str(problem), _excerpt(payload))


class _Unexpected(Exception):
    pass


def _error(error: Any, at: float) -> ServerError:
    if not isinstance(error, dict):
        return ServerError(at, str(error)[:EXCERPT_CHARACTERS], None)
    code = error.get("code")
    return ServerError(at, str(error.get("message", error)), code if isinstance(code, int) else None)


def _chunk(values: dict[str, Any], at: float) -> Chunk:
    choices = values.get("choices")
    if not isinstance(choices, list):
        raise _Unexpected("an event without choices")
    usage = values.get("usage")
    if usage is not None and not isinstance(usage, dict):
        raise _Unexpected("an event whose usage is no object")
    usage = usage or {}
    details = usage.get("prompt_tokens_details")
    counted = Chunk(
        at,
        completion_tokens=_count(usage, "completion_tokens"),
        prompt_tokens=_count(usage, "prompt_tokens"),
        cached_tokens=_count(details, "cached_tokens") if isinstance(details, dict) else None,
        choice=False,
    )
    if not choices:
        return counted
    choice = choices[0]
    if len(choices) > 1 or not isinstance(choice, dict):
        raise _Unexpected("an event that does not hold exactly one choice")
    body = choice.get("delta") if "delta" in choice else choice
    if not isinstance(body, dict):
        raise _Unexpected("a choice whose delta is no object")
    logprobs = _logprobs(choice.get("logprobs"))
    return replace(
        counted,
        choice=True,
        # chat says `content`, completions say `text`; servers differ in the name of the reasoning
        text=_text(body, "content" if "delta" in choice else "text"),
        reasoning=_text(body, "reasoning") or _text(body, "reasoning_content"),
        finish_reason=_text(choice, "finish_reason") or None,
        token_ids=_ids(choice.get("token_ids")),
        bad_logprob=None if logprobs is None else any(value is None for value in logprobs),
        lowest_logprob=min((value for value in logprobs or () if value is not None), default=None),
    )


def _count(table: dict[str, Any], key: str) -> int | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Unexpected(f"{key} is not a count")
    return value


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Unexpected(f"{key} is not a text")
    return value


def _ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise _Unexpected("token_ids is no list of token ids")
    return tuple(value)


def _logprobs(logprobs: Any) -> tuple[float | None, ...] | None:
    """The log probabilities of the event's tokens, None for one that is not a number; None where there are none."""
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(values, list) or not values:
        return None
    # pydantic writes NaN as null in a stream; other JSON writers write NaN, which Python reads as a float
    numbers = [float(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else None for v in values]
    return tuple(None if number is None or math.isnan(number) else number for number in numbers)


def _excerpt(data: bytes) -> str:
    text = data[: EXCERPT_CHARACTERS * 4].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "·" for c in text)[:EXCERPT_CHARACTERS]
