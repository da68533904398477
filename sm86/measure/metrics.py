"""The server's own counters beside the client's: Prometheus text -> counters -> cross-check. Pure.

Names as vLLM 0.26.0 registers them (`v1/metrics/loggers.py`); the Prometheus client adds `_total` to counters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from sm86.record import Verdict

TOLERANCE = 0.02
"""How far client and server may differ before it is said (relative)."""

GENERATION_TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: name, labels sorted by name, value."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server says of itself at `at`, summed over its engines; None for what it does not say.

    uncertain_s: the reading may be that much older or newer (half the time its request took).
    """

    at: float
    generation_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    preemptions: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    uncertain_s: float = 0.0


def parse(text: str) -> tuple[Sample, ...]:
    """All samples of an exposition; comments and lines that are none are skipped. Timestamps are ignored."""
    samples = []
    for line in text.splitlines():
        sample = _sample(line.strip())
        if sample is not None:
            samples.append(sample)
    return tuple(samples)


def _sample(line: str) -> Sample | None:
    name = _NAME.match(line)
    if name is None:
        return None
    rest = line[name.end() :]
    labels: list[tuple[str, str]] = []
    if rest.startswith("{"):
        position = 1
        while not rest[position:].lstrip().startswith("}"):
            label = _LABEL.match(rest, position)
            if label is None:
                return None
            value = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), label[2])
            labels.append((label[1], value))
            position = label.end()
            if not label[3] and not rest[position:].lstrip().startswith("}"):
                return None
        rest = rest[rest.index("}", position) + 1 :]
    elif not rest[:1].isspace():
        return None
    words = rest.split()
    try:
        return Sample(name[0], tuple(sorted(labels)), float(words[0]))
    except (IndexError, ValueError):
        return None


def counters(text: str, at: float, uncertain_s: float = 0.0) -> Counters:
    """The counters of interest in an exposition read at `at` +- `uncertain_s` (seconds of the client's clock)."""
    totals: dict[str, float] = {}
    for sample in parse(text):
        if not isfinite(sample.value):
            continue
        totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return Counters(
        at,
        totals.get(GENERATION_TOKENS),
        totals.get(RUNNING),
        totals.get(WAITING),
        totals.get(PREEMPTIONS),
        totals.get(PREFIX_HITS),
        totals.get(PREFIX_QUERIES),
        uncertain_s,
    )


@dataclass(frozen=True, slots=True)
class Observed:
    """One repeat as both sides saw it: the server's counters before, after and during it, and the client's tokens.

    window: the steady window in the client's clock; aggregate_tok_s: its rate. None where there is none.
    """

    before: Counters | None
    after: Counters | None
    during: tuple[Counters, ...]
    client_tokens: int
    window: tuple[float, float] | None
    aggregate_tok_s: float | None


def server_rate(observed: Observed) -> float | None:
    """tok/s by the server's own counter inside the window; None where its readings span less than half of it."""
    if observed.window is None:
        return None
    inside = [c for c in _inside(observed) if c.generation_tokens is not None]
    if len(inside) < 2 or inside[-1].at - inside[0].at < 0.5 * (observed.window[1] - observed.window[0]):
        return None
    grown = (inside[-1].generation_tokens or 0.0) - (inside[0].generation_tokens or 0.0)
    return grown / (inside[-1].at - inside[0].at)


def rate_tolerance(observed: Observed, sequences: int) -> float:
    """How far the server's rate may be off (relative): TOLERANCE, and what its two readings cannot resolve.

    The counter moves by one token of every sequence at a step, and a reading's time is known to its uncertainty.
    """
    inside = _inside(observed)
    if len(inside) < 2 or not observed.aggregate_tok_s:
        return TOLERANCE
    span = inside[-1].at - inside[0].at
    steps = 2 * sequences / observed.aggregate_tok_s
    return TOLERANCE + (steps + inside[0].uncertain_s + inside[-1].uncertain_s) / span


def _inside(observed: Observed) -> list[Counters]:
    if observed.window is None:
        return []
    start, end = observed.window
    return [c for c in observed.during if start < c.at - c.uncertain_s and c.at + c.uncertain_s < end]


def cross_check(repeats: Sequence[Observed], sequences: int) -> Verdict:
    """Whether the server's counters tell the same story as the client's stream.

    fail: tokens or the rate differ by more than TOLERANCE, a sequence was preempted, or the number of running
    requests in the window was not `sequences`. not seen: the server shows no counters.
    """
    name = "cross-check"
    problems: list[str] = []
    unseen: set[str] = set()
    said: list[str] = []
    rates: list[float] = []
    for number, one in enumerate(repeats, 1):
        before, after = one.before, one.after
        made = _grown(before, after, "generation_tokens")
        if made is None:
            unseen.add(GENERATION_TOKENS)
        elif abs(made - one.client_tokens) > TOLERANCE * max(one.client_tokens, 1):
            problems.append(f"repeat {number}: the server made {made:.0f} tokens, the client got {one.client_tokens}")
        preempted = _grown(before, after, "preemptions")
        if preempted is None:
            unseen.add(PREEMPTIONS)
        elif preempted:
            problems.append(f"repeat {number}: {preempted:.0f} preemptions, so the sequences did not all stay resident")
        problems += _running(one, sequences, number, unseen)
        rate = server_rate(one)
        if rate is not None and one.aggregate_tok_s:
            difference = rate / one.aggregate_tok_s - 1
            rates.append(difference)
            if abs(difference) > rate_tolerance(one, sequences):
                problems.append(
                    f"repeat {number}: the server's counter says {rate:.1f} tok/s, the client {one.aggregate_tok_s:.1f}"
                )
    if problems:
        return Verdict(name, "fail", "; ".join(problems))
    if GENERATION_TOKENS in unseen or not repeats:
        return Verdict(
            name, "not seen", "the server's /metrics does not show " + ", ".join(sorted(unseen or {GENERATION_TOKENS}))
        )
    if unseen:
        return Verdict(
            name, "not seen", "token counts agree, but the server's /metrics did not show " + ", ".join(sorted(unseen))
        )
    said.append(f"client and server agree on the tokens of {len(repeats)} repeats")
    if rates:
        said.append(f"the server's own rate differs by {100 * median(rates):+.1f} %")
    said.append(f"{sequences} requests were running, none was preempted")
    return Verdict(name, "pass", "; ".join(said))


def _running(one: Observed, sequences: int, number: int, unseen: set[str]) -> list[str]:
    if one.window is None:
        return []
    seen = [c.running for c in _inside(one) if c.running is not None]
    if not seen:
        unseen.add(f"{RUNNING} inside the window")
        return []
    wrong = [value for value in seen if value != sequences]
    if not wrong:
        return []
    return [f"repeat {number}: {wrong[0]:.0f} requests were running inside the window, not {sequences}"]


def prefix_hit_tokens(before: Counters | None, after: Counters | None) -> float | None:
    """Prompt tokens that came from the prefix cache between two readings; None where not shown."""
    return _grown(before, after, "prefix_hits")


def _grown(before: Counters | None, after: Counters | None, field: str) -> float | None:
    if before is None or after is None:
        return None
    old, new = getattr(before, field), getattr(after, field)
    if old is None or new is None:
        return None
    # a counter that went back belongs to a server that was started anew in between
    return new - old if new >= old else None
