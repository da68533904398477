"""What a benchmark of an envelope will do: lengths and counts, checked before anything is sent. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sm86.errors import CouldNotRun
from sm86.measure.window import MIN_TOKENS
from sm86.spec.envelope import Envelope, Serve

ROOM_TOKENS = 64
"""Left free beside prompt and decode, so that the prompt with its answers and some prose behind it still fits."""

MIN_DECODE_TOKENS = MIN_TOKENS + 32
"""The window needs MIN_TOKENS of every sequence, and sequences never start and end at the same token."""

MIN_PROMPT_TOKENS = 256
"""The facts that are asked about and some prose around them."""

PROSE_TOKENS = 224
COLD_TOKENS = 256
WARM_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Lengths in tokens: `prompt_tokens` is what each prompt should have, `context` what the server must serve.

    full_context: the prompt is what the context leaves, as for the published numbers. batch_tokens: the prefill chunk.
    """

    envelope: str
    model: str
    sequences: int
    context: int
    prompt_tokens: int
    decode_tokens: int
    repeats: int
    batch_tokens: int
    block_size: int
    full_context: bool

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that may have to be prefilled before the last sequence's first token."""
        return self.sequences * self.prompt_tokens

    @property
    def cold_decode_tokens(self) -> int:
        """Decode tokens without which sequences whose prompts are not cached never all decode together."""
        return _cold_decode(self.sequences, self.prompt_tokens, self.batch_tokens)

    @property
    def cold_fits(self) -> bool:
        """Whether the context has room for that many."""
        return self.prompt_tokens + self.cold_decode_tokens + ROOM_TOKENS <= self.context

    def _cold_words(self) -> str:
        if self.sequences == 1 or self.decode_tokens >= self.cold_decode_tokens or not self.cold_fits:
            return ""
        return f", of {self.cold_decode_tokens} where the prompts do not stay in the prefix cache"

    def steps(self) -> tuple[str, ...]:
        """What will be done, in words, one line each."""
        n, each = self.sequences, f"{self.decode_tokens} tokens"
        plural = "sequence" if n == 1 else "sequences"
        return (
            f"check that the server serves {self.model} with a context of {self.context} tokens, and is idle",
            f"make {n} prompts of {self.prompt_tokens} tokens with five facts each",
            "send each prompt once, to fill the prefix cache",
            f"send each prompt alone, {each} or to its natural end: what does the model answer?",
            f"send one prompt in all {n} slots: do they agree?",
            f"measure {self.repeats} x {n} {plural} x {each}{self._cold_words()}",
            f"send all {n} prompts with their answers, for prose and log probabilities",
        )


def _cold_decode(sequences: int, prompt_tokens: int, batch_tokens: int) -> int:
    return ceil((sequences - 1) * prompt_tokens / batch_tokens) + COLD_TOKENS


def _longest_prompt(serve: Serve, left: int) -> int:
    """At most `left`, and short enough for the decode tokens that prompts outside the prefix cache need.

    A pool that holds no more than its sequences keeps no prompt beside them: each round prefills them anew.
    """
    if serve.sequences == 1:
        return left
    cold = serve.context - ROOM_TOKENS - COLD_TOKENS
    prompt = min(left, cold * serve.max_num_batched_tokens // (serve.max_num_batched_tokens + serve.sequences - 1))
    return prompt if prompt > 0 else left


def plan(envelope: Envelope, repeats: int | None = None, decode_tokens: int | None = None) -> BenchPlan:
    """The plan of an envelope; `repeats` and `decode_tokens` replace its own. CouldNotRun where it cannot work."""
    serve, bench = envelope.serve, envelope.bench
    count = bench.repeats if repeats is None else repeats
    decode = bench.decode_tokens if decode_tokens is None else decode_tokens
    if count < 1:
        raise CouldNotRun(f"{count} repeats measure nothing", "give at least 1; the envelope's own number by default")
    if decode < MIN_DECODE_TOKENS:
        raise CouldNotRun(
            f"{decode} decode tokens are too few: each sequence must decode {MIN_TOKENS} while all decode",
            f"give at least {MIN_DECODE_TOKENS}",
        )
    left = serve.context - decode - ROOM_TOKENS
    prompt = bench.prompt_tokens or _longest_prompt(serve, left)
    least = bench.prompt_tokens or MIN_PROMPT_TOKENS
    if prompt > left or prompt < least:
        raise CouldNotRun(
            f"{envelope.name}: {least} prompt tokens and {decode} decode tokens "
            f"do not fit the context of {serve.context}",
            f"give at most {max(serve.context - ROOM_TOKENS - least, 0)} decode tokens",
        )
    return BenchPlan(
        envelope=envelope.name,
        model=serve.served_model_name,
        sequences=serve.sequences,
        context=serve.context,
        prompt_tokens=prompt,
        decode_tokens=decode,
        repeats=count,
        batch_tokens=serve.max_num_batched_tokens,
        block_size=serve.block_size,
        full_context=bench.prompt_tokens == 0 and prompt >= 0.9 * serve.context,
    )


def is_warm(cached_tokens: int, prompt_tokens: int, block_size: int) -> bool:
    """Whether a prompt came from the prefix cache: WARM_SHARE of what a cache of whole blocks can hold of it.

    vLLM always computes the last token anew, and caches whole blocks only, so a short prompt of 250 tokens
    with blocks of 128 can have 128 cached tokens at most.
    """
    cacheable = (prompt_tokens - 1) // block_size * block_size
    return cacheable > 0 and cached_tokens >= WARM_SHARE * cacheable
