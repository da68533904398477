"""The steady window on synthetic timelines, and on simulated prefill and decode of known rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.measure.stream import Chunk, Done, Fault, ServerError
from sm86.measure.timeline import Point, StreamBroken, Timeline, build, thinned
from sm86.measure.window import MIN_TOKENS, Refusal, Window, steady_window


def timeline(points: list[tuple[float, int]], sent_at: float = 0.0) -> Timeline:
    return Timeline(
        sent_at,
        tuple(Point(at, tokens) for at, tokens in points),
        text="",
        reasoning="",
        finish_reason="length",
        prompt_tokens=None,
        cached_tokens=None,
        total_tokens=None,
        token_ids=None,
        text_marks=(),
        logprob_marks=(),
        bad_logprob=None,
        chunks=len(points),
        complete=True,
    )


def steady(first: float, rate: float, tokens: int, per_chunk: int = 1) -> Timeline:
    return timeline([(first + n / rate, n + per_chunk) for n in range(0, tokens, per_chunk)])


def simulate(sequences: int, prompt: int, out: int, step_s: float, primed: bool) -> list[Timeline]:
    """First come first served: chunks of 2,048 prefill tokens at 1,000 tok/s, with one step of every decoder."""
    left = [0 if primed else prompt] * sequences
    made = [0] * sequences
    points: list[list[tuple[float, int]]] = [[] for _ in range(sequences)]
    now = 0.0
    while min(made) < out:
        decoding = [i for i in range(sequences) if left[i] == 0 and made[i] < out]
        waiting = next((i for i in range(sequences) if left[i] > 0), None)
        chunk = 0
        if waiting is not None:
            chunk = min(2048 - len(decoding), left[waiting])
            left[waiting] -= chunk
        now += chunk / 1000 + (step_s if decoding else 0.0)
        for i in decoding:
            made[i] += 1
            points[i].append((now, made[i]))
    return [timeline(own) for own in points]


# the table of the design: truth per sequence and together, and what dividing by the whole run would give


def test_case_a_four_cold_sequences():
    run = simulate(4, 60_000, 512, 0.045, primed=False)
    window = steady_window(run)
    assert isinstance(window, Window)
    assert [round(s.tok_s, 1) for s in window.sequences] == [22.2] * 4
    assert window.aggregate_tok_s == pytest.approx(88.9, abs=0.05)
    whole = 4 * 512 / max(t.points[-1].at for t in run)
    assert whole == pytest.approx(7.7, abs=0.15)


def test_case_b_eight_cold_sequences_never_decode_together():
    run = simulate(8, 100_000, 256, 0.055, primed=False)
    refusal = steady_window(run)
    assert isinstance(refusal, Refusal)
    assert "sequence 8 got its first token at" in refusal.reason
    assert "sequence 1 had ended at" in refusal.reason
    assert 8 * 256 / max(t.points[-1].at for t in run) == pytest.approx(2.5, abs=0.05)


def test_case_c_eight_primed_sequences():
    window = steady_window(simulate(8, 100_000, 256, 0.055, primed=True))
    assert isinstance(window, Window)
    assert window.aggregate_tok_s == pytest.approx(145.5, abs=0.1)
    assert [round(s.tok_s, 1) for s in window.sequences] == [18.2] * 8


@pytest.mark.parametrize("per_chunk", [1, 3, 8])
def test_tokens_not_chunks(per_chunk):
    window = steady_window([steady(0.0, 50, 512, per_chunk), steady(0.37, 40, 512, per_chunk)])
    assert isinstance(window, Window)
    assert [s.tok_s for s in window.sequences] == pytest.approx([50, 40], rel=0.001)
    assert window.aggregate_tok_s == pytest.approx(90, rel=0.001)


def test_the_first_chunk_is_excluded_whatever_it_holds():
    held = [(0.0, 90), *((n / 10, 90 + n) for n in range(1, 200))]
    window = steady_window([timeline(held)])
    assert isinstance(window, Window)
    assert window.aggregate_tok_s == pytest.approx(10)
    assert window.sequences[0].tokens == 199


def test_what_comes_before_the_last_start_and_after_the_first_end_does_not_count():
    early = timeline([(n / 100, n + 1) for n in range(200)] + [(2 + n / 20, 201 + n) for n in range(400)])
    late = steady(2.0, 20, 200)
    window = steady_window([early, late])
    assert isinstance(window, Window)
    assert [s.tok_s for s in window.sequences] == pytest.approx([20, 20], rel=0.01)


@settings(deadline=None)
@given(st.floats(0, 3), st.floats(5, 200), st.integers(1, 6), st.integers(2, 5))
def test_the_rate_comes_back(lateness, rate, per_chunk, count):
    tokens = int(3.2 * rate * per_chunk) + 40 * per_chunk + 2 * MIN_TOKENS
    tokens += -tokens % per_chunk
    run = [steady(lateness * i / count, rate, tokens, per_chunk) for i in range(count)]
    window = steady_window(run)
    if isinstance(window, Refusal):
        shared = min(t.points[-1].at for t in run) - max(t.points[0].at for t in run)
        assert shared < (MIN_TOKENS + 2 * per_chunk) / rate
    else:
        assert window.aggregate_tok_s == pytest.approx(rate * count, rel=1e-6)


def test_an_early_end_is_refused_by_name():
    refusal = steady_window([steady(0, 50, 512), steady(0.1, 50, 60)])
    assert isinstance(refusal, Refusal)
    assert "decoded 59 tokens while all 2 were decoding; 128 are needed" in refusal.reason
    assert "sequence 2 ended first, at 1.3 s" in refusal.reason


def test_a_late_start_is_refused_by_name():
    refusal = steady_window([steady(0, 50, 256), steady(4.0, 50, 256)])
    assert isinstance(refusal, Refusal)
    assert "sequence 2 started last, at 4.0 s" in refusal.reason


def test_without_counts_there_is_no_number():
    refusal = steady_window([steady(0, 50, 256), timeline([])])
    assert isinstance(refusal, Refusal)
    assert "sequence 2 has no token counts" in refusal.reason


def test_one_piece_and_nothing_are_refused():
    assert isinstance(steady_window([timeline([(1.0, 512)])]), Refusal)
    assert isinstance(steady_window([]), Refusal)
    assert isinstance(steady_window([steady(0, 10, MIN_TOKENS)]), Refusal)
    assert isinstance(steady_window([steady(0, 10, MIN_TOKENS + 1)]), Window)


def test_a_stall_stays_in_the_rate_and_is_shown():
    points = [(n / 100, n + 1) for n in range(100)] + [(n / 100 + 2.0, n + 1) for n in range(100, 300)]
    window = steady_window([timeline(points)])
    assert isinstance(window, Window)
    assert window.aggregate_tok_s == pytest.approx(299 / 4.99, rel=1e-6)
    assert window.sequences[0].longest_gap_s == pytest.approx(2.01)
    assert window.sequences[0].usual_gap_s == pytest.approx(0.01)


# timelines


def chunk(at: float, made: int | None, text: str = "x", **more) -> Chunk:
    return Chunk(at, text, completion_tokens=made, **more)


def test_events_of_one_read_are_one_point_with_the_last_count():
    made = build(0.0, [chunk(1.0, 1), chunk(1.0, 2), chunk(2.0, 3), chunk(2.5, 3), Done(3.0)])
    assert made.points == (Point(1.0, 2), Point(2.0, 3))
    assert (made.text, made.chunks, made.tokens) == ("xxxx", 4, 3)


def test_the_final_usage_counts_and_text_is_cut_by_tokens():
    events = [
        chunk(1.0, 2, "ab"),
        chunk(2.0, 4, "cd", finish_reason="length"),
        Chunk(2.1, completion_tokens=5, prompt_tokens=9, cached_tokens=8, choice=False),
        Done(2.2),
    ]
    made = build(0.5, events)
    assert (made.tokens, made.prompt_tokens, made.cached_tokens, made.finish_reason) == (5, 9, 8, "length")
    assert [made.text_up_to(n) for n in (1, 2, 3, 4, 99)] == ["", "ab", "ab", "abcd", "abcd"]


def test_the_least_likely_token_on_the_way():
    events = [
        chunk(1.0, 1, "ab", lowest_logprob=-0.1),
        chunk(2.0, 2, "cd", lowest_logprob=-3.0),
        chunk(3.0, 3, "ef", lowest_logprob=-0.2),
        Done(3.0),
    ]
    made = build(0.0, events)
    assert [made.lowest_logprob(0, n) for n in (0, 1, 2, 3, 6)] == [None, -0.1, -0.1, -3.0, -3.0]
    assert [made.lowest_logprob(n, 6) for n in (1, 2, 3, 5)] == [-3.0, -3.0, -0.2, None]
    assert build(0.0, [chunk(1.0, 1), Done(1.0)]).lowest_logprob(0, 1) is None


def test_missing_usage_leaves_no_points():
    made = build(0.0, [chunk(1.0, None), chunk(2.0, None), Done(2.0)])
    assert made.points == () and made.first_at is None and made.tokens == 0


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([chunk(1.0, 1)], "before [DONE]"),
        ([chunk(1.0, 5), chunk(2.0, 4), Done(2.0)], "fell from 5 to 4"),
        ([chunk(1.0, 5), Chunk(2.0, completion_tokens=3, choice=False), Done(2.0)], "final count is 3"),
        ([Fault(1.0, "an event that is not JSON", "x"), Done(2.0)], "not JSON"),
        ([ServerError(1.0, "dead", 500), Done(2.0)], "error inside the stream (500)"),
    ],
)
def test_broken_streams(events, problem):
    with pytest.raises(StreamBroken) as caught:
        build(0.0, events)
    assert problem in caught.value.problem


def test_thinning_keeps_the_ends():
    points = tuple(Point(float(n), n) for n in range(1000))
    thin = thinned(points, 0.0, 64)
    assert len(thin) == 64 and thin[0] == [0.0, 0] and thin[-1] == [999.0, 999]
    assert thinned(points[:3], 1.0) == [[-1.0, 0], [0.0, 1], [1.0, 2]]
