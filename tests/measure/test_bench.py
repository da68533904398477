"""The whole benchmark against the replay server: what a good server gives, and what every kind of bad one does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sm86.errors import CheckFailed, CouldNotRun
from sm86.measure import bench, judge
from sm86.measure.client import Client, parse_address
from sm86.measure.plan import plan
from sm86.measure.result import BenchResult, conditions_for, to_record
from sm86.measure.window import Window
from sm86.record import Conditions
from sm86.record.left_out import in_words, reasons_left_out
from sm86.record.schema import from_json
from tests.measure.conftest import PATIENT, QUICK, envelope_of
from tests.measure.replay import MODEL, Behaviour, sent_rate, serving

pytestmark = pytest.mark.timing

FAST = 6000.0
SEEN = 1600.0  # slow enough for the counters to be read inside the window


def measure(behaviour: Behaviour, sequences: int = 2, **more) -> BenchResult:
    if behaviour.rate == FAST and behaviour.per_chunk == 1:
        behaviour.per_chunk = 4  # fewer events: these tests are not about time
    envelope = envelope_of(sequences, **{k: more.pop(k) for k in ("decode_tokens", "repeats", "context") if k in more})
    with serving(behaviour) as replay:
        client = Client(parse_address(replay.url), None, QUICK if behaviour.fault == "hang" else PATIENT)
        result = bench.run(envelope, plan(envelope), client, salt="t", sample_s=0.02, **more)
        result_requests[:] = replay.requests
        really_sent.clear()
        really_sent.update({sequence: lists for (phase, sequence), lists in replay.sent.items() if phase == "measured"})
    return result


result_requests: list[dict] = []
really_sent: dict[int, list[list[tuple[float, int]]]] = {}


def assert_rates_are_true(result: BenchResult) -> None:
    """Every repeat's rates are what the server sent: a busy machine may not reach the nominal rate."""
    for number, repeat in enumerate(result.repeats):
        window = repeat.window
        assert isinstance(window, Window)
        for sequence, rate in enumerate(window.sequences):
            truth = sent_rate(really_sent[sequence][number], window.start, window.end)
            assert rate.tok_s == pytest.approx(truth, rel=0.02)


def states(result: BenchResult) -> dict[str, str]:
    return {verdict.name: verdict.state for verdict in result.verdicts}


def text_of(result: BenchResult, name: str) -> str:
    return next(verdict.text for verdict in result.verdicts if verdict.name == name)


def test_a_good_server():
    result = measure(Behaviour(rate=SEEN), repeats=2)
    assert states(result) == {
        judge.WINDOW: "pass",
        judge.TEXT: "pass",
        judge.LOGITS: "pass",
        judge.ANSWERS: "pass",
        judge.SAME: "pass",
        judge.LENGTH: "pass",
        judge.CACHE: "pass",
        "cross-check": "pass",
        "telemetry": "not applicable",
        "comparison": "not applicable",
    }
    assert result.good
    assert len(result.aggregates) == 2
    assert_rates_are_true(result)
    assert [len(rates) for rates in result.per_sequence()] == [2, 2]
    assert all(0.95 * 400 <= p.tokens <= 400 for p in result.prompts)


def test_the_requests_are_those_of_the_procedure():
    measure(Behaviour(rate=FAST))
    prime, alone, same, measured, prose = (result_requests[i : i + 2] for i in range(0, 10, 2))
    assert len(result_requests) == 10
    prompts = [body["prompt"] for body in prime]
    assert len(set(prompts)) == 2
    assert all(body["max_tokens"] == 1 for body in prime)
    assert [body["prompt"] for body in alone] == prompts
    for body in alone:
        assert body["temperature"] == 0 and body["logprobs"] == 1 and "ignore_eos" not in body
    assert [body["prompt"] for body in same] == [prompts[0]] * 2
    assert sorted(body["prompt"] for body in measured) == sorted(prompts)
    for body in measured:
        assert body["ignore_eos"] and body["min_tokens"] == body["max_tokens"] == 600 and body["temperature"] == 0
    assert all(body["logprobs"] == 1 and body["temperature"] > 0 for body in prose)
    assert {body["prompt"][: len(p)] for body in prose for p in prompts} >= set(prompts)
    for body in result_requests:
        assert body["stream"] and body["model"] == MODEL
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_another_run_has_other_prompts():
    envelope = envelope_of()
    seen = set()
    with serving(Behaviour(rate=FAST)) as replay:
        for _ in range(2):
            client = Client(parse_address(replay.url), limits=PATIENT)
            result = bench.run(envelope, plan(envelope), client, sample_s=0.02)
            seen |= {prompt.text for prompt in result.prompts}
    assert len(seen) == 4


def test_one_sequence():
    result = measure(Behaviour(rate=FAST), sequences=1)
    assert result.good
    assert states(result)[judge.SAME] == "not applicable"
    assert len(result.aggregates) == 1


def test_several_tokens_a_chunk():
    result = measure(Behaviour(rate=SEEN, per_chunk=4))
    assert result.good
    assert_rates_are_true(result)
    assert states(result)["cross-check"] == "pass"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(rate=FAST, ends_after={1: 60}), "sequence 2 ended first"),
        (Behaviour(rate=FAST, late_s={1: 0.3}), "sequence 2 got its first token"),
        (Behaviour(rate=FAST, usage="final"), "no token counts"),
    ],
)
def test_no_window_no_number(behaviour, words):
    result = measure(behaviour)
    assert states(result)[judge.WINDOW] == "fail" and words in text_of(result, judge.WINDOW)
    assert not result.good and result.aggregates == () and result.per_sequence() == ()
    record = to_record(result)
    assert [n.name for n in record.numbers if n.unit == "tok/s"] == []
    assert states(result)["comparison"] == "not applicable"


def test_a_disturbed_round_is_measured_again_and_told():
    result = measure(Behaviour(rate=FAST, late_s={1: 0.3}, late_rounds=1), repeats=2)
    assert result.good and len(result.aggregates) == len(result.repeats) == 2 and len(result.left_out) == 1
    told = text_of(result, judge.WINDOW)
    assert "in each of 2 repeats; 1 round was left out and measured again: the sequences never" in told
    record = to_record(result)
    assert len(record.details["repeats"]) == 2
    (left_out,) = record.details["left_out"]
    assert "sequence 2 got its first token" in left_out["window"]["refused"]
    assert left_out["sequences"][1]["timeline"], "it can be looked at"
    assert len([body for body in result_requests if body.get("ignore_eos")]) == 2 * 3


@pytest.mark.parametrize(
    ("behaviour", "rounds"),
    [
        (Behaviour(rate=FAST, late_s={1: 0.3}), 3),  # as often as it may be
        (Behaviour(rate=FAST, ends_after={1: 60}), 1),  # a sequence too short has no window another time either
        (Behaviour(rate=FAST, usage="final"), 1),
    ],
)
def test_only_a_disturbed_round_is_measured_again_and_not_for_ever(behaviour, rounds):
    result = measure(behaviour)
    assert states(result)[judge.WINDOW] == "fail" and not result.good and not result.aggregates
    assert len(result.left_out) == rounds - 1
    assert len([body for body in result_requests if body.get("ignore_eos")]) == 2 * rounds


def test_one_refused_repeat_takes_the_number():
    result = measure(Behaviour(rate=FAST), repeats=2)
    assert len(result.aggregates) == 2
    refused = replace(result.repeats[1], window=bench.Refusal("late"))
    mixed = replace(result, repeats=(result.repeats[0], refused))
    assert mixed.aggregates == ()
    assert bench.window_verdict(mixed.repeats).state == "fail"


def test_a_pool_that_keeps_no_prompts_is_measured_with_the_tokens_that_this_takes():
    result = measure(Behaviour(rate=FAST, cached=False), decode_tokens=176, repeats=2)
    assert result.good and len(result.repeats) == 2 and states(result)[judge.CACHE] == "fail"
    told = text_of(result, judge.WINDOW)
    assert "1 round was left out and measured again: the prompts did not come from the prefix cache" in told
    assert "need at least 257 decode tokens each to decode together; this run had 176" in told
    assert result.plan.decode_tokens == to_record(result).details["decode_tokens"] == 257
    assert [body["min_tokens"] for body in result_requests if body.get("ignore_eos")] == [176] * 2 + [257] * 4


def test_what_counts_is_equally_long_where_the_prompts_leave_the_cache_in_between():
    result = measure(Behaviour(rate=FAST, warm_rounds=1), decode_tokens=176, repeats=2)
    assert result.good and len(result.repeats) == 2 and len(result.left_out) == 2
    assert {t.tokens for repeat in result.repeats for t in repeat.timelines} == {257}
    told = text_of(result, judge.WINDOW)
    assert "2 rounds were left out and measured again: it was shorter than those that count; the prompts did" in told
    assert in_words(reasons_left_out(to_record(result))) in told


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(rate=FAST, cached=False, ends_after={1: 60}),  # a sequence too short
        Behaviour(rate=FAST, cached=False, context=640),  # no room for more tokens
    ],
)
def test_a_longer_round_is_tried_only_where_it_can_help(behaviour):
    result = measure(behaviour, decode_tokens=176, context=behaviour.context)
    assert states(result)[judge.WINDOW] == "fail" and not result.left_out
    assert "need at least 257 decode tokens" in text_of(result, judge.WINDOW)


def test_a_cold_cache_with_enough_tokens_is_measured_and_marked():
    result = measure(Behaviour(rate=FAST, cached=False), decode_tokens=500)
    assert result.good and result.aggregates
    assert states(result)[judge.CACHE] == "fail"


def test_the_cache_is_read_from_the_metrics_where_usage_does_not_tell():
    result = measure(Behaviour(rate=FAST, cached_told=False))
    assert states(result)[judge.CACHE] == "pass"
    blind = measure(Behaviour(rate=FAST, cached_told=False, metrics=False), decode_tokens=176)
    assert states(blind)[judge.CACHE] == "not seen"
    assert states(blind)["cross-check"] == "not seen"
    assert blind.good and blind.plan.decode_tokens == 257, "what is not known to be cached is taken as not cached"


def test_without_metrics_the_cross_check_is_not_seen():
    result = measure(Behaviour(rate=FAST, metrics=False))
    assert result.good
    assert states(result)["cross-check"] == "not seen"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(rate=SEEN, extra_tokens=100), "the client got 1200"),
        (Behaviour(rate=SEEN, preempts=1), "preemptions"),
    ],
)
def test_the_cross_check_warns(behaviour, words):
    result = measure(behaviour)
    assert states(result)["cross-check"] == "fail" and words in text_of(result, "cross-check")
    assert result.good


@pytest.mark.parametrize(
    ("behaviour", "check", "words"),
    [
        (Behaviour(rate=FAST, forgets={1}), judge.ANSWERS, "known alone; together it said 0"),
        (Behaviour(rate=FAST, leaks={1: 0}), judge.ANSWERS, "only sequence 1 was told"),
        (Behaviour(rate=FAST, loops={0}), judge.TEXT, "repeat 1, sequence 1"),
        (Behaviour(rate=FAST, prose_loops="together"), judge.TEXT, "prose of sequence 1"),
        (Behaviour(rate=FAST, mute=True), judge.TEXT, "without any text"),
        (Behaviour(rate=FAST, logprobs=None), judge.LOGITS, "not numbers"),
        (Behaviour(rate=FAST, alone_logprob=None), judge.LOGITS, "alone"),
        (Behaviour(rate=FAST, fault="nan 400", fault_phase="prose"), judge.LOGITS, "Out of range"),
        (Behaviour(rate=FAST, fault="nan event", fault_phase="prose"), judge.LOGITS, "Out of range"),
    ],
)
def test_incoherence_at_n(behaviour, check, words):
    result = measure(behaviour)
    assert states(result)[check] == "fail" and words in text_of(result, check)
    assert not result.good


def test_a_model_that_always_loops_is_not_judged_by_its_loops():
    result = measure(Behaviour(rate=FAST, prose_loops="always"))
    assert states(result)[judge.TEXT] == "not applicable"
    assert result.good  # its answers show that it is sound
    blank = measure(Behaviour(rate=FAST, prose_loops="always", knows=False))
    assert states(blank)[judge.ANSWERS] == "not applicable"
    assert not blank.good


def test_a_model_that_knows_nothing_is_not_applicable():
    result = measure(Behaviour(rate=FAST, knows=False))
    assert states(result)[judge.ANSWERS] == "not applicable"
    assert result.good


@pytest.mark.parametrize("version", [None, "<html>"])
def test_a_server_without_a_version_is_measured_all_the_same(version):
    result = measure(Behaviour(rate=FAST, version=version))
    assert result.good and result.server.version is None and result.conditions.vllm_version is None


def test_near_ties_are_not_applicable():
    result = measure(Behaviour(rate=FAST, alone_logprob=-1.0, forgets={0, 1}))
    assert states(result)[judge.ANSWERS] == "not applicable"


def test_a_server_without_log_probabilities_is_not_seen():
    result = measure(Behaviour(rate=FAST, logprobs="none"))
    assert states(result)[judge.LOGITS] == "not seen"
    assert not result.good


def test_slots_that_disagree_are_a_warning():
    result = measure(Behaviour(rate=FAST, same_differs=True))
    assert states(result)[judge.SAME] == "fail"
    assert result.good


def test_without_a_tokenizer_lengths_are_estimated_and_checked():
    result = measure(Behaviour(rate=FAST, tokenizer=False))
    assert result.good
    lengths = [t.prompt_tokens for t in result.repeats[0].timelines]
    assert lengths and all(0.95 * 400 <= tokens <= 400 for tokens in lengths), lengths
    assert states(result)[judge.LENGTH] == "pass"


@pytest.mark.parametrize(
    ("phase", "fault"),
    [("prime", "500"), ("alone", "hang"), ("same", "reset"), ("measured", "garbage"), ("prose", "500")],
)
def test_a_server_that_fails_in_the_middle(phase, fault):
    after = 1 if phase in ("prime", "same") else 20
    with pytest.raises(CheckFailed, match="failed in the middle") as caught:
        measure(Behaviour(rate=FAST, fault=fault, fault_phase=phase, fault_after=after))
    assert caught.value.exit_code == 1
    assert "invoke logs" in caught.value.mend


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(model="another"), "serves another, not replay-model"),
        (Behaviour(context=512), "serves a context of 512 tokens"),
        (Behaviour(context=4096), "serves a context of 4096 tokens"),
        (Behaviour(key="right"), "refused the API key"),
        (Behaviour(busy=1), "is busy: 1 requests running"),
    ],
)
def test_what_cannot_be_measured(behaviour, words):
    envelope = envelope_of()
    with serving(behaviour) as replay:
        client = Client(parse_address(replay.url), "wrong", PATIENT)
        with pytest.raises(CouldNotRun) as caught:
            bench.preflight.check_server(client, plan(envelope), settle_s=0.2)
        assert words in caught.value.what
        assert caught.value.mend and "wrong" not in caught.value.what
        assert [body for body in replay.requests if body.get("stream")] == []


def test_progress_is_told_in_stages():
    told: list[tuple[str, int]] = []

    class Told:
        def stage(self, text: str, total: int, unit: str) -> None:
            told.append((text, 0))

        def advance(self, count: int) -> None:
            told[-1] = (told[-1][0], told[-1][1] + count)

    measure(Behaviour(rate=FAST, per_chunk=3), progress=Told())
    counts = dict(told)
    assert counts["measure, repeat 1 of 1"] == 2 * 600
    assert counts["make the prompts"] == 2
    assert counts["ask each prompt alone"] == 2 * 150


def test_the_record_holds_what_a_number_depends_on():
    result = measure(Behaviour(rate=SEEN), repeats=2)
    record = to_record(result)
    values = json.loads(json.dumps(record.to_json()))
    assert from_json(values, "x") == record
    assert record.kind == "bench" and record.conditions.mark == "CPU"
    aggregate = record.numbers[0]
    assert aggregate.name == "decode aggregate" and aggregate.unit == "tok/s" and aggregate.note == "CPU number"
    assert len(aggregate.repeats) == 2
    assert all("CPU" in number.note for number in record.numbers)
    details = values["details"]
    assert "steady window" in details["definition"]
    first = details["repeats"][0]["sequences"][0]
    assert first["prompt_tokens"] > 380 and first["cached_tokens"] > 300 and first["tokens"] == 600
    assert len(first["timeline"]) <= 64 and first["timeline"][-1][1] == 600
    window = result.repeats[0].window
    assert isinstance(window, Window) and first["window"]["tokens"] == window.sequences[0].tokens


def test_conditions():
    cuda = replace(envelope_of(), engine="cuda")
    facts = measure(Behaviour(rate=FAST)).server
    assert facts.version == "0.26.0"
    given = Conditions(engine="cuda", mark="", image_id="sha256:1")
    assert conditions_for(cuda, facts, given) == replace(given, vllm_version="0.26.0")
    assert conditions_for(cuda, facts, None).mark == "conditions unknown"
    assert conditions_for(envelope_of(), facts, None).mark == "CPU"
    # an envelope for a rig, served by a CPU build, is a CPU number all the same
    assert conditions_for(cuda, replace(facts, version="0.28.0+cpu"), given).mark == "CPU"
