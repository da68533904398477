"""Prometheus text -> counters -> cross-check."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.measure.metrics import (
    Counters,
    Observed,
    Sample,
    counters,
    cross_check,
    parse,
    prefix_hit_tokens,
    server_rate,
)

EXPOSITION = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a, \\"b\\"=}"} 12.0
vllm:generation_tokens_total{model_name="a",engine="1"} 30.0 1700000000000
vllm:generation_tokens_created{engine="0"} 1.7e+09
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:num_preemptions_total{engine="0"} 0.0
vllm:prefix_cache_hits_total{engine="0"} 512.0 # {trace_id="1"} 1.0
vllm:prefix_cache_queries_total{engine="0"} 600.0
vllm:request_success_total{engine="0",finished_reason="stop"} 4.0
python_gc_objects_collected_total{generation="0"} 9
process_start_time_seconds NaN
"""


def test_counters_are_summed_over_engines():
    found = counters(EXPOSITION, 3.0)
    assert found == Counters(3.0, 42.0, 2.0, 0.0, 0.0, 512.0, 600.0)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_labels_does_not_matter(rng: random.Random):
    labels = [("engine", "0"), ("model_name", 'x"}\\,\n'), ("reason", ""), ("le", "+Inf")]
    shuffled = labels[:]
    rng.shuffle(shuffled)

    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    line = "m{" + ", ".join(f'{name}="{escape(value)}"' for name, value in shuffled) + ",} 1e3"
    assert parse(line) == (Sample("m", tuple(sorted(labels)), 1000.0),)


@pytest.mark.parametrize(
    "line", ["", "m", "m{", 'm{a="1"', "m{a=1} 2", 'm{a="1" b="2"} 3', "m x", "<html>", "{} 1", "m{} "]
)
def test_lines_that_are_none_are_skipped(line):
    assert parse(line) == ()


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read(text):
    counters(text, 0.0)


def test_absent_metrics_are_none_not_zero():
    assert counters("other_metric 1\n", 1.0) == Counters(1.0)
    assert counters("vllm:num_requests_running NaN\nvllm:generation_tokens_total +Inf\n", 1.0) == Counters(1.0)


def observed(**changes) -> Observed:
    values = {
        "before": Counters(0.0, 100.0, 0.0, 0.0, 0.0, 10.0, 20.0),
        "after": Counters(12.0, 1100.0, 0.0, 0.0, 0.0, 500.0, 900.0),
        "during": tuple(Counters(float(t), 100.0 + 100 * t, 2.0, 0.0, 0.0) for t in range(1, 11)),
        "client_tokens": 1000,
        "window": (1.0, 10.0),
        "aggregate_tok_s": 100.0,
    }
    return Observed(**{**values, **changes})


def test_agreement_passes_and_says_what_was_seen():
    verdict = cross_check([observed(), observed()], 2)
    assert verdict.state == "pass"
    assert "2 repeats" in verdict.text and "+0.0 %" in verdict.text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"client_tokens": 979}, "the server made 1000 tokens, the client got 979"),
        ({"client_tokens": 1021}, "the client got 1021"),
        ({"after": Counters(12.0, 1100.0, 0.0, 0.0, 1.0)}, "1 preemptions"),
        ({"during": (*observed().during[:5], Counters(6.5, 750.0, 3.0))}, "3 requests were running inside the window"),
        ({"aggregate_tok_s": 106.0}, "the server's counter says 100.0 tok/s, the client 106.0"),
    ],
)
def test_what_does_not_agree_fails(changes, text):
    verdict = cross_check([observed(), observed(**changes)], 2)
    assert verdict.state == "fail"
    assert text in verdict.text and "repeat 2" in verdict.text


def test_what_the_readings_cannot_resolve_is_no_difference():
    loose = tuple(Counters(c.at, c.generation_tokens, 2.0, 0.0, 0.0, uncertain_s=0.2) for c in observed().during)
    assert cross_check([observed(aggregate_tok_s=106.0, during=loose)], 2).state == "pass"
    assert cross_check([observed(aggregate_tok_s=112.0, during=loose)], 2).state == "fail"


def test_two_percent_is_the_limit():
    assert cross_check([observed(client_tokens=981)], 2).state == "pass"
    assert cross_check([observed(client_tokens=979)], 2).state == "fail"


@pytest.mark.parametrize(
    "changes",
    [
        {"before": None},
        {"after": None},
        {"after": Counters(1.0)},
        {"during": ()},
        {"before": Counters(0.0, 5000.0, 0.0, 0.0, 0.0)},  # the counter went back: another server
    ],
)
def test_what_is_not_shown_is_not_a_pass(changes):
    assert cross_check([observed(**changes)], 2).state == "not seen"
    assert cross_check([], 2).state == "not seen"


def test_the_servers_rate_needs_half_of_the_window():
    assert server_rate(observed()) == pytest.approx(100.0)
    assert server_rate(observed(during=observed().during[:4])) is None
    assert server_rate(observed(window=None)) is None


def test_prefix_hits():
    assert prefix_hit_tokens(observed().before, observed().after) == 490
    assert prefix_hit_tokens(None, observed().after) is None
