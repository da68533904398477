from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.measure.limits import Limits
from sm86.spec import load_envelope
from sm86.spec.envelope import Bench, Envelope
from tests.measure.replay import BLOCK, CONTEXT, MODEL

PATIENT = Limits(connect_s=5.0, answer_s=5.0, first_token_s=5.0, prefill_tok_s=1e6, between_tokens_s=5.0)
QUICK = Limits(connect_s=1.0, answer_s=0.7, first_token_s=0.5, prefill_tok_s=1e6, between_tokens_s=0.5, token_s=0.02)
"""For servers that never answer."""

ATTEMPTS = 4


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timing: real time passes; tried again where a busy machine disturbed it")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A busy machine disturbs a replay now and then; a wrong client is wrong every time."""
    if pyfuncitem.get_closest_marker("timing") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            pyfuncitem.obj(**arguments)
            return True
        except (Exception, pytest.fail.Exception):
            if attempt == ATTEMPTS:
                raise
    return True


def envelope_of(
    sequences: int = 2, decode_tokens: int = 600, repeats: int = 1, prompt_tokens: int = 400, context: int = CONTEXT
) -> Envelope:
    """An envelope for the replay server."""
    smoke = load_envelope("cpu-smoke")
    return replace(
        smoke,
        serve=replace(smoke.serve, served_model_name=MODEL, context=context, sequences=sequences, block_size=BLOCK),
        bench=Bench(decode_tokens, repeats, prompt_tokens),
    )


@pytest.fixture
def envelope() -> Envelope:
    return envelope_of()
