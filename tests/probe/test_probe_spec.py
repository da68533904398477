"""Draft lines in the backend's own format -> the roadmap's readout."""

from __future__ import annotations

import pytest

from sm86.backend.diagnostics import graphs
from sm86.measure.drafts import Drafts, read_drafts, tokens_per_step
from sm86.probe import spec
from sm86.probe.dispatch import Expected
from sm86.probe.lines import read
from sm86.probe.spec import Rates, read_spec
from tests.probe.test_probe_dispatch import batch, lines_of

DECODE_ONLY = Expected("FULL_DECODE_ONLY", (1,), 1, spec_tokens=1)
BOTH = Expected("FULL_AND_PIECEWISE", (1,), 1, spec_tokens=1)

TARGET = batch(tokens=2, query_len=2, padded_tokens=2, uniform_query_len=2, num_spec_tokens=1, capture_sizes=(2,))


def log(*modes: str, target: graphs.Batch = TARGET) -> list[str]:
    """Two proposals of one prefill and one decode step each, as the backend counts and words them."""
    counter = graphs.DraftCounter(64)
    said = [graphs.dispatch_line(target)] * 3
    for _ in range(2):
        counter.begin()
        said += [line for mode in modes if (line := counter.line(mode, 2, 2)) is not None]
        counter.end()
    return [f"(Worker_TP0 pid=9) {line}" for line in said]


@pytest.mark.parametrize(
    ("modes", "expected", "kind", "state", "words"),
    [
        (("FULL", "FULL"), DECODE_ONLY, spec.CAPTURED, "pass", "captured: it loses on draft compute"),
        (("PIECEWISE", "PIECEWISE"), BOTH, spec.PIECES, "pass", "captured in pieces"),
        (("NONE", "NONE"), BOTH, spec.BROKEN, "fail", "dispatch or key selection is broken, and may be worth fixing"),
        (("NONE", "NONE"), DECODE_ONLY, spec.BY_DESIGN, "fail", "by design of vLLM 0.26.0"),
        (("NONE", "PIECEWISE"), BOTH, spec.MIXED, "fail", "Some draft steps replay graphs and others do not"),
    ],
)
def test_the_roadmaps_readout(modes, expected, kind: str, state: str, words: str) -> None:
    found = read_spec(read(log(*modes)), expected)
    assert (found.kind, found.state) == (kind, state), found.text
    assert words in found.text
    assert found.modes == {"prefill": {modes[0]: 2}, "decode": {modes[1]: 2}}
    assert (found.mend == "") == (state == "pass")


def test_a_model_step_that_misses_is_named_before_the_drafts() -> None:
    lost = batch(**{**_fields(TARGET), "mode": "NONE"})
    found = read_spec(read(log("FULL", "FULL", target=lost)), DECODE_ONLY)
    assert found.kind == spec.TARGET and found.state == "fail"
    assert "3 of 3 decode batches ran without a graph" in found.text


def _fields(one: graphs.Batch) -> dict:
    return {name: getattr(one, name) for name in one.__slots__}


def test_without_draft_lines_nothing_is_known() -> None:
    found = read_spec(read(lines_of(TARGET)), DECODE_ONLY)
    assert found.kind == spec.UNSEEN and found.state == "not seen"


def test_the_rate_is_told_beside_the_one_without_drafts() -> None:
    lines = read(log("FULL", "FULL"))
    slower = read_spec(lines, DECODE_ONLY, Rates(20.0, 56.0, 1.4)).text
    assert "20.0 tok/s, 1.40 tokens a step, without: 56.0 tok/s (0.36x: drafting loses here)" in slower
    assert "drafting wins here" in read_spec(lines, DECODE_ONLY, Rates(80.0, 56.0)).text
    assert "no benchmark without drafts" in read_spec(lines, DECODE_ONLY, Rates(20.0)).text


def test_tokens_per_step_come_from_the_servers_counters() -> None:
    text = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 10.0\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 20.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0\n'
    )
    after = read_drafts(text)
    assert after == Drafts(30.0, 12.0)
    assert tokens_per_step(Drafts(10.0, 2.0), after) == 1.5
    assert tokens_per_step(after, after) is None
    assert read_drafts("vllm:generation_tokens_total 3\n") is None and tokens_per_step(None, after) is None
