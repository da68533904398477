"""The decode rate: what every sequence does while all of them decode. Pure.

The window reaches from the moment the last sequence got its first token to the moment the first one got its
last. Outside it some sequence is still prefilling or already done, and a rate taken there is not the rate of
N sequences decoding together; common definitions that divide by whole requests are off by a factor of 10 and
more when N long prompts start together. Tokens are the server's counts, never chunks: a chunk may hold several.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sm86.measure.timeline import Timeline

MIN_TOKENS = 128
"""Tokens each sequence must decode inside the window. The time of a token is uncertain by about one step at each
end of the window: 2 steps in 128 are 1.6 %, just inside the 2 % to which client and server are held."""

DEFINITION = (
    "steady window: from the last sequence's first token to the first sequence's last, while all decode; "
    "per sequence tokens / time between its first chunk in the window, itself excluded, and its last chunk there; "
    "together their sum; tokens as the server counts them"
)


@dataclass(frozen=True, slots=True)
class SequenceRate:
    """One sequence inside the window: tokens, seconds between its first and last event there, tok/s, and the
    longest pause between two of its events in seconds beside the usual one."""

    tokens: int
    seconds: float
    tok_s: float
    longest_gap_s: float
    usual_gap_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """start and end in seconds of the client's clock; aggregate_tok_s is the sum of the sequences' rates."""

    start: float
    end: float
    sequences: tuple[SequenceRate, ...]

    @property
    def aggregate_tok_s(self) -> float:
        return sum(sequence.tok_s for sequence in self.sequences)

    @property
    def tokens(self) -> int:
        return sum(sequence.tokens for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class Refusal:
    """There is no such window, and so there is no number; `reason` is a sentence that names the sequences."""

    reason: str


def steady_window(timelines: Sequence[Timeline], min_tokens: int = MIN_TOKENS) -> Window | Refusal:
    """The steady window of sequences that were sent together, or why there is none."""
    if not timelines:
        return Refusal("no sequence was run")
    for number, timeline in enumerate(timelines, 1):
        if not timeline.points:
            return Refusal(
                f"sequence {number} has no token counts: the server sent no usage while it streamed "
                f"(stream_options.continuous_usage_stats), and chunks are not tokens"
            )
    first = [timeline.points[0].at for timeline in timelines]
    last = [timeline.points[-1].at for timeline in timelines]
    start, end = max(first), min(last)
    sent = min(timeline.sent_at for timeline in timelines)
    late, early = first.index(start) + 1, last.index(end) + 1
    if end <= start:
        if len(timelines) == 1:
            return Refusal(f"the sequence came in one piece at {start - sent:.1f} s; a rate needs time between tokens")
        return Refusal(
            f"the sequences never all decoded together: sequence {late} got its first token at {start - sent:.1f} s, "
            f"and sequence {early} had ended at {end - sent:.1f} s"
        )
    rates = [_rate(timeline, start, end) for timeline in timelines]
    for number, rate in enumerate(rates, 1):
        if rate is None or rate.tokens < min_tokens:
            found = rate.tokens if rate is not None else 0
            return Refusal(_too_short(number, found, min_tokens, late, early, start - sent, end - sent, len(timelines)))
    return Window(start, end, tuple(rate for rate in rates if rate is not None))


def _rate(timeline: Timeline, start: float, end: float) -> SequenceRate | None:
    times = [point.at for point in timeline.points]
    a, b = bisect_left(times, start), bisect_right(times, end) - 1
    if b <= a:
        return None
    # the first event in the window only starts the clock: the tokens it holds were made before it
    begin, finish = timeline.points[a], timeline.points[b]
    tokens, seconds = finish.tokens - begin.tokens, finish.at - begin.at
    gaps = [times[index + 1] - times[index] for index in range(a, b)]
    return SequenceRate(tokens, seconds, tokens / seconds, max(gaps), median(gaps))


def _too_short(
    number: int, found: int, wanted: int, late: int, early: int, start: float, end: float, sequences: int
) -> str:
    if sequences == 1:
        return f"the sequence decoded {found} tokens after its first chunk; {wanted} are needed"
    return (
        f"sequence {number} decoded {found} tokens while all {sequences} were decoding; {wanted} are needed "
        f"(sequence {late} started last, at {start:.1f} s; sequence {early} ended first, at {end:.1f} s)"
    )
