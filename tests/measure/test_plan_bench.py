"""What a benchmark will do, and what it refuses to try."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.errors import CouldNotRun
from sm86.measure.plan import is_warm, plan
from sm86.spec import load_all, load_envelope, load_proofs


@pytest.mark.parametrize("envelope", (*load_all(), *load_proofs()), ids=lambda e: e.name)
def test_every_envelope_has_a_plan_that_fits(envelope):
    made = plan(envelope)
    assert made.prompt_tokens + made.decode_tokens < envelope.serve.context
    assert made.full_context is (envelope.engine == "cuda" and envelope.status != "proof")
    assert made.steps()


def test_the_prompt_is_what_the_context_leaves():
    made = plan(load_envelope("sm86-80k-4seq"))
    assert (made.decode_tokens, made.repeats, made.queued_tokens) == (512, 3, 4 * made.prompt_tokens)
    assert made.prompt_tokens == 81_920 - 64 - 732  # what prompts outside the prefix cache need: see below
    assert made.cold_decode_tokens == 476 + 256  # 3 prompts of 81,124 in chunks of 512
    alone = plan(load_envelope("sm86-262k"))
    assert alone.prompt_tokens == 262_144 - 64 - alone.decode_tokens


@pytest.mark.parametrize("envelope", (*load_all(), *load_proofs()), ids=lambda e: e.name)
def test_every_envelope_has_room_for_prompts_that_stay_in_no_cache(envelope):
    made = plan(envelope)
    assert made.cold_fits
    longer = replace(made, prompt_tokens=made.prompt_tokens + 2)
    if made.full_context and made.sequences > 1:
        assert not longer.cold_fits, "and no prompt is shorter than it has to be"


def test_many_sequences_in_a_small_context_have_no_such_room():
    small = replace(load_envelope("cpu-smoke"), bench=replace(load_envelope("cpu-smoke").bench, prompt_tokens=300))
    crowd = replace(small, serve=replace(small.serve, context=700, sequences=200, max_num_batched_tokens=128))
    assert not plan(crowd).cold_fits


def test_arguments_replace_the_envelopes_numbers():
    made = plan(load_envelope("sm86-80k-4seq"), repeats=1, decode_tokens=1024)
    assert (made.repeats, made.decode_tokens, made.prompt_tokens) == (1, 1024, 81_920 - 1024 - 64)
    assert not plan(load_envelope("sm86-64k"), decode_tokens=20_000).full_context


@pytest.mark.parametrize(
    ("repeats", "tokens", "what"),
    [
        (0, None, "0 repeats"),
        (-1, None, "repeats"),
        (None, 159, "159 decode tokens are too few"),
        (None, 70_000, "do not fit"),
        (None, 65_536 - 64 - 255, "256 prompt tokens and 65217 decode tokens do not fit"),
    ],
)
def test_impossible_plans_are_refused(repeats, tokens, what):
    with pytest.raises(CouldNotRun, match=what) as caught:
        plan(load_envelope("sm86-64k"), repeats, tokens)
    assert caught.value.mend


def test_an_envelope_whose_prompt_does_not_fit_is_refused():
    smoke = load_envelope("cpu-smoke")
    with pytest.raises(CouldNotRun, match="do not fit"):
        plan(replace(smoke, bench=replace(smoke.bench, prompt_tokens=2000)))


@pytest.mark.parametrize(
    ("cached", "prompt", "block", "warm"),
    [
        (81_152, 81_344, 256, True),
        (65_024, 81_344, 256, True),
        (64_000, 81_344, 256, False),
        (0, 81_344, 256, False),
        (128, 256, 128, True),
        (128, 250, 128, True),  # one whole block is all that can be cached
        (0, 250, 128, False),
        (0, 128, 128, False),  # nothing can be cached: the last token is always computed
        (0, 100, 128, False),
    ],
)
def test_warm(cached, prompt, block, warm):
    assert is_warm(cached, prompt, block) is warm
