"""The words of graph dispatch."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from sm86.backend.diagnostics.graphs import Batch, DraftCounter, batch_of, dispatch_line, outcome

DECODE = Batch(1, 1, 1, 1, 1, 0, "FULL", "FULL_DECODE_ONLY", True, (1, 4))


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, ("hit", "captured")),
        ({"mode": "NONE"}, ("miss", "no_graph_for_descriptor")),
        ({"mode": "NONE", "tokens": 5, "requests": 5}, ("skip", "beyond_largest_capture")),
        ({"mode": "NONE", "graphs_mode": "NONE"}, ("skip", "graphs_off")),
        ({"mode": "NONE", "capture_sizes": ()}, ("skip", "graphs_off")),
        ({"mode": "NONE", "graphs_ready": False}, ("skip", "not_captured_yet")),
        ({"mode": "NONE", "forced_eager": True}, ("skip", "eager_forced")),
        ({"mode": "NONE", "cascade": True}, ("skip", "cascade_attention")),
        ({"mode": "NONE", "tokens": 40, "query_len": 40}, ("eager", "prefill")),
        ({"mode": "NONE", "tokens": 41, "requests": 2, "query_len": 40}, ("eager", "prefill")),
        ({"mode": "PIECEWISE", "tokens": 40, "query_len": 40}, ("hit", "captured")),
        (
            {"mode": "NONE", "uniform_query_len": 3, "query_len": 3, "tokens": 3, "capture_sizes": (3,)},
            ("miss", "no_graph_for_descriptor"),
        ),
    ],
)
def test_outcomes(changes: dict, want: tuple[str, str]) -> None:
    assert outcome(dataclasses.replace(DECODE, **changes)) == want


def test_the_line_names_the_capture_shape() -> None:
    assert dispatch_line(DECODE) == (
        "SM86 cudagraph hit cg_mode=FULL num_tokens=1 num_reqs=1 padded_tokens=1 uniform=true num_spec_tokens=0 "
        "query_len=1 uniform_decode_query_len=1 capture_sizes=[1,4] reason=captured"
    )


def test_a_batch_from_the_runner() -> None:
    runner = SimpleNamespace(
        cudagraph_dispatcher=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(name="FULL_DECODE_ONLY"), keys_initialized=True
        ),
        uniform_decode_query_len=1,
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[4, 1]),
    )
    arguments = {"num_tokens": 3, "num_reqs": 3, "max_num_scheduled_tokens": 1, "use_cascade_attn": False}
    result = (SimpleNamespace(name="FULL"), SimpleNamespace(num_tokens=4), False, None, None)
    got = batch_of(runner, arguments, result)
    assert got == Batch(3, 3, 4, 1, 1, 0, "FULL", "FULL_DECODE_ONLY", True, (1, 4)) and outcome(got)[0] == "hit"


def test_draft_steps_are_named_and_counted() -> None:
    counter = DraftCounter(2)
    assert counter.line("FULL", 1, 1) is None, "outside a proposal (warm-up)"
    lines = []
    for _ in range(3):
        counter.begin()
        lines += [counter.line("NONE", 5, 5), counter.line("FULL", 1, 1)]
        counter.end()
    assert lines[:2] == [
        "SM86 draft cudagraph prefill cg_mode=NONE num_tokens=5 padded_tokens=5",
        "SM86 draft cudagraph decode cg_mode=FULL num_tokens=1 padded_tokens=1",
    ]
    assert lines[2] and lines[3] and lines[4:] == [None, None]
