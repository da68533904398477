"""What a benchmark gives, and its record. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Any

from sm86.measure.compare import Comparison
from sm86.measure.judge import Prose, is_good
from sm86.measure.plan import BenchPlan
from sm86.measure.preflight import ServerFacts
from sm86.measure.prompts import Fact, Prompt
from sm86.measure.telemetry import NOT_TAKEN, Telemetry
from sm86.measure.timeline import Timeline, thinned
from sm86.measure.window import DEFINITION, Refusal, Window
from sm86.record import Conditions, Number, Record, Verdict
from sm86.spec.envelope import Envelope

CPU_MARK = "CPU"
UNKNOWN_MARK = "conditions unknown"


@dataclass(frozen=True, slots=True)
class Repeat:
    """One measured round: a timeline per sequence, the window or why there is none, whether the prompts came cached."""

    timelines: tuple[Timeline, ...]
    window: Window | Refusal
    warm: bool | None
    server_tok_s: float | None

    @property
    def aggregate_tok_s(self) -> float | None:
        return self.window.aggregate_tok_s if isinstance(self.window, Window) else None

    @property
    def first_token_s(self) -> tuple[float | None, ...]:
        return tuple(None if t.first_at is None else t.first_at - t.sent_at for t in self.timelines)


def aggregates(repeats: Sequence[Repeat]) -> tuple[float, ...]:
    """tok/s of every repeat; empty where one of them had no window, as then there is no number."""
    found = tuple(repeat.aggregate_tok_s for repeat in repeats)
    return tuple(value for value in found if value is not None) if None not in found else ()


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A finished benchmark. The number exists only if every repeat had a window; left_out are rounds without one that
    were measured again."""

    envelope: Envelope
    plan: BenchPlan
    salt: str
    started: datetime
    seconds: float
    server: ServerFacts
    conditions: Conditions
    prompts: tuple[Prompt, ...]
    repeats: tuple[Repeat, ...]
    left_out: tuple[Repeat, ...]
    alone: tuple[Timeline, ...]
    prose: Prose
    verdicts: tuple[Verdict, ...]
    comparison: Comparison
    telemetry: Telemetry = NOT_TAKEN

    @property
    def good(self) -> bool:
        return is_good(self.verdicts)

    @property
    def aggregates(self) -> tuple[float, ...]:
        return aggregates(self.repeats)

    def per_sequence(self) -> tuple[tuple[float, ...], ...]:
        """For every sequence its tok/s in every repeat; empty where there is no number."""
        if not self.aggregates:
            return ()
        windows = [repeat.window for repeat in self.repeats if isinstance(repeat.window, Window)]
        return tuple(tuple(w.sequences[index].tok_s for w in windows) for index in range(self.plan.sequences))


def conditions_for(envelope: Envelope, server: ServerFacts, given: Conditions | None) -> Conditions:
    """The conditions with what the server itself tells. A CPU engine is marked whatever else is known.

    Where no conditions were given, only the engine and the version are known, and the number is marked so.
    """
    base = given or Conditions(engine=envelope.engine, mark=UNKNOWN_MARK)
    version = base.vllm_version or server.version
    if envelope.engine == "cpu" or base.engine == "cpu" or "+cpu" in (server.version or ""):
        return replace(base, engine="cpu", mark=CPU_MARK, vllm_version=version)
    return replace(base, vllm_version=version)


def to_record(result: BenchResult) -> Record:
    """The record of kind "bench"."""
    return Record(
        kind="bench",
        envelope=result.envelope.name,
        envelope_digest=result.envelope.digest(),
        started=result.started,
        seconds=round(result.seconds, 3),
        conditions=result.conditions,
        numbers=_numbers(result),
        verdicts=result.verdicts,
        details=_details(result),
    )


def _numbers(result: BenchResult) -> tuple[Number, ...]:
    numbers: list[Number] = []
    mark = f"{result.conditions.mark} number" if result.conditions.mark else ""
    if result.aggregates:
        numbers.append(_number("decode aggregate", "tok/s", result.aggregates, mark))
        for index, rates in enumerate(result.per_sequence(), 1):
            numbers.append(_number(f"decode sequence {index}", "tok/s", rates, mark))
        tokens = [float(repeat.window.tokens) for repeat in result.repeats if isinstance(repeat.window, Window)]
        numbers.append(_number("tokens in window", "tokens", tuple(tokens), mark))
    first = [
        max(values)
        for repeat in result.repeats
        if (values := [seconds for seconds in repeat.first_token_s if seconds is not None])
    ]
    if first:
        note = "prompt from the prefix cache; for information" if _all_warm(result) else "for information"
        numbers.append(_number("time to first token", "s", tuple(first), f"{mark}; {note}" if mark else note))
    return tuple(numbers)


def _number(name: str, unit: str, values: tuple[float, ...], note: str) -> Number:
    return Number(name, round(median(values), 4), unit, tuple(round(value, 4) for value in values), note)


def _all_warm(result: BenchResult) -> bool:
    return all(repeat.warm for repeat in result.repeats)


def _details(result: BenchResult) -> dict[str, Any]:
    plan, published = result.plan, result.envelope.published
    return {
        "definition": DEFINITION,
        "salt": result.salt,
        "sequences": plan.sequences,
        "context": plan.context,
        "wanted_prompt_tokens": plan.prompt_tokens,
        "decode_tokens": plan.decode_tokens,
        "server": {
            "vllm_version": result.server.version,
            "max_model_len": result.server.max_model_len,
            "metrics": result.server.has_metrics,
            "tokenizer": result.server.has_tokenizer,
        },
        "published": None
        if published is None
        else {
            "source": published.source,
            "aggregate_tok_s": published.aggregate_tok_s,
            "per_sequence_tok_s": list(published.per_sequence_tok_s),
            "definition": "not stated by the source",
        },
        "comparison": {
            "verdict": result.comparison.verdict,
            "reasons": list(result.comparison.reasons),
            "notes": list(result.comparison.notes),
            "tolerance_tok_s": result.comparison.tolerance_tok_s,
        },
        "telemetry": result.telemetry.to_json(),
        "facts": [[_fact(fact) for fact in prompt.facts] for prompt in result.prompts],
        "alone": [_text(timeline) for timeline in result.alone],
        "together": [_text(timeline) for timeline in result.prose.together],
        "repeats": [_repeat(repeat) for repeat in result.repeats],
        "left_out": [_repeat(repeat) for repeat in result.left_out],
    }


def _fact(fact: Fact) -> list[str]:
    return [fact.name, fact.code]


def _text(timeline: Timeline) -> Mapping[str, Any]:
    return {
        "tokens": timeline.tokens,
        "finish_reason": timeline.finish_reason,
        "cached_tokens": timeline.cached_tokens,
        "text": timeline.text,
    }


def _repeat(repeat: Repeat) -> dict[str, Any]:
    sent = min((timeline.sent_at for timeline in repeat.timelines), default=0.0)
    window: dict[str, Any]
    if isinstance(repeat.window, Refusal):
        window = {"refused": repeat.window.reason}
    else:
        window = {
            "start_s": round(repeat.window.start - sent, 4),
            "end_s": round(repeat.window.end - sent, 4),
            "aggregate_tok_s": round(repeat.window.aggregate_tok_s, 4),
        }
    rates = repeat.window.sequences if isinstance(repeat.window, Window) else (None,) * len(repeat.timelines)
    return {
        "window": window,
        "warm": repeat.warm,
        "server_tok_s": None if repeat.server_tok_s is None else round(repeat.server_tok_s, 3),
        "sequences": [
            {
                "prompt_tokens": timeline.prompt_tokens,
                "cached_tokens": timeline.cached_tokens,
                "tokens": timeline.tokens,
                "chunks": timeline.chunks,
                "finish_reason": timeline.finish_reason,
                "time_to_first_token_s": None
                if timeline.first_at is None
                else round(timeline.first_at - timeline.sent_at, 4),
                "window": None
                if rate is None
                else {
                    "tokens": rate.tokens,
                    "seconds": round(rate.seconds, 4),
                    "tok_s": round(rate.tok_s, 4),
                    "longest_gap_s": round(rate.longest_gap_s, 4),
                    "usual_gap_s": round(rate.usual_gap_s, 5),
                },
                # [seconds since the first request of the repeat was sent, completion tokens]
                "timeline": thinned(timeline.points, sent),
                "text_start": timeline.text[:400],
            }
            for timeline, rate in zip(repeat.timelines, rates, strict=True)
        ],
    }
