"""Events of one stream -> tokens over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sm86.measure.stream import Chunk, Done, Event, Fault, ServerError


@dataclass(frozen=True, slots=True)
class Point:
    """By `at` (seconds of the client's clock) the client had `tokens` completion tokens, as the server counts them."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One finished sequence.

    sent_at: when the request was sent. points: strictly rising in time and tokens; empty where the server gave
    no counts while streaming, which is never mended by counting chunks. total_tokens: the final usage, None
    where there was none. text_marks: (tokens, characters of text) after each event, to cut the text at a token count.
    logprob_marks: (characters of text before an event, lowest log probability of its tokens), where sent.
    complete: the server said [DONE].
    """

    sent_at: float
    points: tuple[Point, ...]
    text: str
    reasoning: str
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    total_tokens: int | None
    token_ids: tuple[int, ...] | None
    text_marks: tuple[tuple[int, int], ...]
    logprob_marks: tuple[tuple[int, float], ...]
    bad_logprob: bool | None
    chunks: int
    complete: bool

    @property
    def first_at(self) -> float | None:
        return self.points[0].at if self.points else None

    @property
    def tokens(self) -> int:
        """Completion tokens: the final usage, else the last count seen while streaming."""
        return self.total_tokens if self.total_tokens is not None else (self.points[-1].tokens if self.points else 0)

    def text_up_to(self, tokens: int) -> str:
        """The text of the first `tokens` tokens (up to the end of the last event that does not exceed them)."""
        characters = 0
        for count, mark in self.text_marks:
            if count > tokens:
                break
            characters = mark
        return self.text[:characters]

    def lowest_logprob(self, start: int, end: int) -> float | None:
        """The lowest log probability of the tokens that begin in these characters of the text; None where not sent."""
        return min((lowest for place, lowest in self.logprob_marks if start <= place < end), default=None)


class StreamBroken(Exception):
    """The stream is not a whole completion. server_said: the server's own words, empty if it gave none;
    reported: the server itself reported an error, with `code` if it gave one."""

    def __init__(self, problem: str, server_said: str = "", code: int | None = None, reported: bool = False) -> None:
        super().__init__(problem)
        self.reported = reported
        self.problem = problem
        self.server_said = server_said
        self.code = code


def check_event(event: Event) -> None:
    """Raise StreamBroken for an event that ends a stream badly."""
    if isinstance(event, ServerError):
        code = f" ({event.code})" if event.code is not None else ""
        raise StreamBroken(f"the server reported an error inside the stream{code}", event.message, event.code, True)
    if isinstance(event, Fault):
        raise StreamBroken(f"the stream holds {event.problem}", event.excerpt)


def check_count(before: int, now: int) -> None:
    """Raise StreamBroken where a server's count of tokens goes back."""
    if now < before:
        raise StreamBroken(f"the server's token count fell from {before} to {now}")


def build(sent_at: float, events: Iterable[Event]) -> Timeline:
    """The timeline of a whole stream. Raises StreamBroken: error event, nonsense, a count that falls, no [DONE]."""
    chunks: list[Chunk] = []
    complete = False
    for event in events:
        check_event(event)
        if isinstance(event, Chunk):
            chunks.append(event)
        elif isinstance(event, Done):
            complete = True
    if not complete:
        raise StreamBroken("the stream ended before [DONE]")
    own = [chunk for chunk in chunks if chunk.choice]
    final = next((c.completion_tokens for c in reversed(chunks) if not c.choice), None)
    ids = [chunk.token_ids for chunk in own if chunk.token_ids is not None]
    points = _points(own)
    if final is not None and points and final < points[-1].tokens:
        raise StreamBroken(f"the server's final count is {final} tokens, after it had counted {points[-1].tokens}")
    return Timeline(
        sent_at=sent_at,
        points=points,
        text="".join(chunk.text for chunk in own),
        reasoning="".join(chunk.reasoning for chunk in own),
        finish_reason=next((c.finish_reason for c in reversed(own) if c.finish_reason), None),
        prompt_tokens=_last(chunk.prompt_tokens for chunk in chunks),
        cached_tokens=_last(chunk.cached_tokens for chunk in chunks),
        total_tokens=final,
        token_ids=tuple(token for part in ids for token in part) if ids else None,
        text_marks=_marks(own),
        logprob_marks=_logprob_marks(own),
        bad_logprob=any(marks) if (marks := [c.bad_logprob for c in own if c.bad_logprob is not None]) else None,
        chunks=len(own),
        complete=complete,
    )


def _points(chunks: Sequence[Chunk]) -> tuple[Point, ...]:
    """Where the count rose. Events of one read share their time and become one point with the last count."""
    points: list[Point] = []
    for chunk in chunks:
        count = chunk.completion_tokens
        if not count:
            continue
        check_count(points[-1].tokens if points else 0, count)
        if points and count == points[-1].tokens:
            continue
        if points and chunk.at <= points[-1].at:
            points[-1] = Point(points[-1].at, count)
        else:
            points.append(Point(chunk.at, count))
    return tuple(points)


def _marks(chunks: Sequence[Chunk]) -> tuple[tuple[int, int], ...]:
    marks: list[tuple[int, int]] = []
    characters = 0
    for chunk in chunks:
        characters += len(chunk.text)
        if chunk.completion_tokens is not None:
            marks.append((chunk.completion_tokens, characters))
    return tuple(marks)


def _logprob_marks(chunks: Sequence[Chunk]) -> tuple[tuple[int, float], ...]:
    marks: list[tuple[int, float]] = []
    characters = 0
    for chunk in chunks:
        if chunk.lowest_logprob is not None:
            marks.append((characters, chunk.lowest_logprob))
        characters += len(chunk.text)
    return tuple(marks)


def _last(values: Iterable[int | None]) -> int | None:
    found: int | None = None
    for value in values:
        found = value if value is not None else found
    return found


def thinned(points: Sequence[Point], origin: float, limit: int = 64) -> list[list[float]]:
    """At most `limit` points as [seconds since `origin`, tokens], first and last kept: for a record."""
    if len(points) <= limit:
        kept: Sequence[Point] = points
    else:
        kept = [points[round(index * (len(points) - 1) / (limit - 1))] for index in range(limit)]
    return [[round(point.at - origin, 4), point.tokens] for point in kept]
