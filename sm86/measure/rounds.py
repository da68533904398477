"""The rounds of requests that a benchmark consists of. Effects: network.

Order matters: every prompt is sent once with one token, so that later rounds find it in the prefix cache and all
sequences decode at the same time; alone before together, because only what is known alone can fail together; the
round with one prompt in all slots also warms what the server compiles for this many sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sm86.measure import coherence, judge, prompts, sampler
from sm86.measure.client import NONSENSE, Client, Request, ServerFault, run_together
from sm86.measure.judge import Prose
from sm86.measure.metrics import Counters, Observed, prefix_hit_tokens, server_rate
from sm86.measure.plan import PROSE_TOKENS, BenchPlan, is_warm
from sm86.measure.preflight import ServerFacts, count_tokens
from sm86.measure.progress import Progress
from sm86.measure.prompts import Count, Fact, Prompt
from sm86.measure.result import Repeat
from sm86.measure.timeline import Timeline
from sm86.measure.window import MIN_TOKENS, Refusal, Window, steady_window

COMPLETIONS = "/v1/completions"
MIN_PROSE_TOKENS = 48
ESTIMATE_AIM = 0.98
"""Share of the wanted length to aim at without a tokenizer: a prompt that is too long would be refused."""
_SAMPLE_WORDS = 400
_USAGE_ROUNDS = 4

GREEDY = {"temperature": 0.0}
FORCED = {"temperature": 0.0, "ignore_eos": True}
SAMPLED = {"temperature": 1.0, "top_p": 0.95}
"""A small model loops by itself when it decodes greedily or nearly so: of 12 texts that SmolLM2-135M wrote at 0.7, 7
looped, at 1.0 none. Prose is sampled at 1.0, so that a loop is the server's and not the model's."""


SPARE_ROUNDS = 2
"""Rounds that may be disturbed and measured again. On a busy machine one stream can stand still for seconds while the
others go on (seen: 11 s between two reads of one of two streams, the server having sent every token on its own); the
same prompts again give a window then. A server that never decodes them together stays without one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """repeats: what counts; observed: what the server's counters said of each; left_out: rounds before that were
    disturbed, or too short for prompts outside the prefix cache; decode_tokens: of each sequence in every repeat."""

    repeats: tuple[Repeat, ...]
    observed: tuple[Observed, ...]
    decode_tokens: int
    left_out: tuple[Repeat, ...] = ()


def is_disturbed(repeat: Repeat) -> bool:
    """Whether a round without a window had all it takes for one: cached prompts, enough tokens of every sequence."""
    return isinstance(repeat.window, Refusal) and bool(repeat.warm) and _has_enough(repeat)


def is_too_short(repeat: Repeat, plan: BenchPlan) -> bool:
    """Whether a round of `plan` has no window because its prompts were prefilled meanwhile, and a longer one may."""
    longer = plan.decode_tokens < plan.cold_decode_tokens and plan.cold_fits
    return isinstance(repeat.window, Refusal) and not repeat.warm and longer and _has_enough(repeat)


def _has_enough(repeat: Repeat) -> bool:
    return all(t.points and t.tokens > MIN_TOKENS for t in repeat.timelines)


class Rounds:
    """The requests of one benchmark. Every method sends something and raises ServerFault when the server fails."""

    def __init__(self, client: Client, plan: BenchPlan, server: ServerFacts, progress: Progress) -> None:
        self._client = client
        self._plan = plan
        self._server = server
        self._progress = progress

    def prompts(self, salt: str) -> tuple[Prompt, ...]:
        """One prompt per sequence, of the planned length by the server's tokenizer."""
        plan = self._plan
        self._progress.stage("make the prompts", plan.sequences, "prompts")
        count = self._counter(salt)
        made = []
        for sequence, own in enumerate(prompts.facts(salt, plan.sequences)):
            if self._server.has_tokenizer:
                made.append(prompts.fit(salt, sequence, own, plan.prompt_tokens, count))
            else:
                made.append(self._fit_by_usage(salt, sequence, own, count))
            self._progress.advance(1)
        return tuple(made)

    def _fit_by_usage(self, salt: str, sequence: int, own: Sequence[Fact], estimate: Count) -> Prompt:
        """A prompt whose length was estimated, then told by the server, and corrected where it was off."""
        planned = self._plan.prompt_tokens
        aim = int(planned * ESTIMATE_AIM)
        made = prompts.fit(salt, sequence, own, aim, estimate)
        for _ in range(_USAGE_ROUNDS):
            real = self._measured_length(made.text)
            made = replace(made, tokens=real, wanted=planned)
            if ESTIMATE_AIM - 0.015 <= real / planned <= 1:
                break
            aim += int(planned * ESTIMATE_AIM) - real
            made = prompts.fit(salt, sequence, own, aim, estimate)
        return made

    def prime(self, made: Sequence[Prompt]) -> None:
        """Each prompt once with one token."""
        self._progress.stage("fill the prefix cache", sum(prompt.tokens for prompt in made), "prompt tokens")
        for prompt in made:
            self._client.stream(self._request(prompt.text, 1, GREEDY, prompt.tokens))
            self._progress.advance(prompt.tokens)

    def alone(self, made: Sequence[Prompt]) -> tuple[Timeline, ...]:
        """Each prompt by itself, greedily, to its natural end or the planned number of tokens."""
        tokens = self._plan.decode_tokens
        body = {**GREEDY, "logprobs": 1}
        self._progress.stage("ask each prompt alone", tokens * len(made), "tokens")
        return tuple(
            self._client.stream(self._request(prompt.text, tokens, body, prompt.tokens), self._progress.advance)
            for prompt in made
        )

    def same_prompt(self, made: Sequence[Prompt]) -> tuple[Timeline, ...]:
        """The first prompt in every slot, greedily; none where there is one slot only."""
        plan = self._plan
        if plan.sequences == 1:
            return ()
        tokens = judge.SAME_TOKENS
        self._progress.stage("one prompt in all slots", tokens * plan.sequences, "tokens")
        body = {**GREEDY, "return_token_ids": True}
        request = self._request(made[0].text, tokens, body, made[0].tokens)
        return run_together(self._client, [request] * plan.sequences, self._progress.advance)

    def measure(self, made: Sequence[Prompt], sample_s: float) -> Measured:
        """The measured repeats. A disturbed round is left out and measured again, SPARE_ROUNDS times in all.

        Where the pool does not keep the prompts, rounds become long enough for all to decode together all the same.
        """
        plan = self._plan
        repeats: list[Repeat] = []
        observed: list[Observed] = []
        left_out: list[Repeat] = []
        disturbed = 0
        while len(repeats) < plan.repeats:
            body = {**FORCED, "min_tokens": plan.decode_tokens}
            requests = [self._request(p.text, plan.decode_tokens, body, plan.queued_tokens) for p in made]
            title = f"measure, repeat {len(repeats) + 1} of {plan.repeats}"
            if left_out:
                title += f", after {len(left_out)} left out"
            self._progress.stage(title, plan.decode_tokens * plan.sequences, "tokens")
            before = sampler.read_idle(self._client)
            with sampler.Sampler(self._client, sample_s) as samples:
                timelines = run_together(self._client, requests, self._progress.advance)
            after = sampler.read_idle(self._client)
            repeat, seen = evaluate(plan, timelines, before, after, samples.taken)
            if is_too_short(repeat, plan):
                # all that counts is equally long, so what was measured before goes as well
                left_out += [*repeats, repeat]
                repeats, observed = [], []
                plan = replace(plan, decode_tokens=plan.cold_decode_tokens)
                continue
            if is_disturbed(repeat) and disturbed < SPARE_ROUNDS:
                disturbed += 1
                left_out.append(repeat)
                continue
            repeats.append(repeat)
            observed.append(seen)
        return Measured(tuple(repeats), tuple(observed), plan.decode_tokens, tuple(left_out))

    def prose(self, made: Sequence[Prompt]) -> Prose:
        """All prompts with their answers, together, sampled, to their natural end, with log probabilities.

        What is faulty is asked again alone, with the same seed: a model that writes it alone as well has that habit.
        """
        count = self._counter("prose")
        texts = [prompts.continuation(prompt) for prompt in made]
        # the estimate is checked nowhere before the server sees the prompt, so it gets some room
        spare = 8 if self._server.has_tokenizer else 64 + self._plan.prompt_tokens // 50
        lengths = [count(text) for text in texts]
        tokens = min(PROSE_TOKENS, self._plan.context - max(lengths) - spare)
        if tokens < MIN_PROSE_TOKENS:
            return Prose()
        self._progress.stage("prose, all together", tokens * len(texts), "tokens")
        requests = [
            self._request(text, tokens, {**SAMPLED, "seed": number, "logprobs": 1}, sum(lengths))
            for number, text in enumerate(texts, 1)
        ]
        try:
            together = run_together(self._client, requests, self._progress.advance)
        except ServerFault as fault:
            if judge.says_nan(fault.server_said):
                return Prose(refused=fault.server_said)
            raise
        faulty = [index for index, timeline in enumerate(together) if coherence.faults(timeline.text)]
        if not faulty or len(requests) == 1:
            return Prose(together)
        self._progress.stage("faulty prose again, alone", tokens * len(faulty), "tokens")
        again = {index: self._client.stream(requests[index], self._progress.advance) for index in faulty}
        return Prose(together, again)

    def _request(self, text: str, tokens: int, body: Mapping[str, Any], queued: int) -> Request:
        values = {"model": self._plan.model, "prompt": text, "max_tokens": tokens, **body}
        return Request(COMPLETIONS, values, tokens, queued)

    def _counter(self, salt: str) -> Count:
        client, model = self._client, self._plan.model
        if self._server.has_tokenizer:
            return lambda text: count_tokens(client, model, text)
        # the frame holds more digits than the prose, so one ratio for both would be off in a short prompt
        own = prompts.facts(salt, 1)[0]
        frame, sample = (prompts.compose(f"{salt}/sample", 0, own, words) for words in (0, _SAMPLE_WORDS))
        framed, sampled = (self._measured_length(text) for text in (frame, sample))
        per_character = (sampled - framed) / (len(sample) - len(frame))
        return lambda text: framed + int((len(text) - len(frame)) * per_character) + 1

    def _measured_length(self, text: str) -> int:
        length = self._client.stream(self._request(text, 1, GREEDY, len(text))).prompt_tokens
        if not length:
            raise ServerFault(NONSENSE, "the server says neither how long a prompt is nor has it a /tokenize")
        return length


def evaluate(
    plan: BenchPlan,
    timelines: tuple[Timeline, ...],
    before: Counters | None,
    after: Counters | None,
    during: Sequence[Counters],
) -> tuple[Repeat, Observed]:
    """One round's window, and what there is to check it by. Pure."""
    warm = warmth(plan, timelines, prefix_hit_tokens(before, after))
    window = steady_window(timelines)
    if not warm and plan.decode_tokens < plan.cold_decode_tokens and plan.sequences > 1:
        window = Refusal(_cold(plan, timelines, window))
    steady = window if isinstance(window, Window) else None
    observed = Observed(
        before=before,
        after=after,
        during=tuple(during),
        client_tokens=sum(timeline.tokens for timeline in timelines),
        window=(steady.start, steady.end) if steady else None,
        aggregate_tok_s=steady.aggregate_tok_s if steady else None,
    )
    return Repeat(timelines, window, warm, server_rate(observed)), observed


def warmth(plan: BenchPlan, timelines: Sequence[Timeline], hits: float | None) -> bool | None:
    """Whether all prompts came from the prefix cache: by each request's own count, else by the server's counter.

    None where neither tells.
    """
    lengths = [timeline.prompt_tokens or 0 for timeline in timelines]
    cached = [timeline.cached_tokens for timeline in timelines]
    if None not in cached:
        return all(is_warm(own or 0, length, plan.block_size) for own, length in zip(cached, lengths, strict=True))
    if hits is None:
        return None
    # the counter is the sum over all: taken as equal shares, of prompts of nearly equal length
    return is_warm(int(hits / max(len(lengths), 1)), min(lengths), plan.block_size)


def _cold(plan: BenchPlan, timelines: Sequence[Timeline], window: Window | Refusal) -> str:
    cached = [str(t.cached_tokens) if t.cached_tokens is not None else "unknown" for t in timelines]
    seen = f" ({window.reason})" if isinstance(window, Refusal) else ""
    return (
        f"the prompts did not come from the prefix cache (cached tokens: {', '.join(cached)}), and then "
        f"{plan.sequences} sequences need at least {plan.cold_decode_tokens} decode tokens each to decode together; "
        f"this run had {plan.decode_tokens}{seen}"
    )
