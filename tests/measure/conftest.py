from __future__ import annotations

from dataclasses import replace

import pytest
from replay import BLOCK, CONTEXT, MODEL

from sm86.measure.limits import Limits
from sm86.spec import load_envelope
from sm86.spec.envelope import Bench, Envelope

QUICK = Limits(connect_s=1.0, answer_s=0.7, first_token_s=0.5, prefill_tok_s=1e6, between_tokens_s=0.5, token_s=0.02)
"""A test's patience."""


def envelope_of(sequences: int = 2, decode_tokens: int = 600, repeats: int = 1, prompt_tokens: int = 400) -> Envelope:
    """An envelope for the replay server."""
    smoke = load_envelope("cpu-smoke")
    return replace(
        smoke,
        serve=replace(smoke.serve, served_model_name=MODEL, context=CONTEXT, sequences=sequences, block_size=BLOCK),
        bench=Bench(decode_tokens, repeats, prompt_tokens),
    )


@pytest.fixture
def envelope() -> Envelope:
    return envelope_of()
