"""A number beside the published one: the verdict, its noise, and everything that forbids it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.measure.compare import BETTER, CANNOT, NOTHING, WITHIN, WORSE, Measured, compare
from sm86.record import Conditions, Verdict
from sm86.spec import load_envelope
from sm86.spec.envelope import PublishedRig

ENVELOPE = load_envelope("sm86-80k-4seq")  # published: 120.1 tok/s
GPU = {"name": "NVIDIA GeForce RTX 3090", "power_limit_w": 350.0, "default_power_limit_w": 350.0}
RIG = Conditions(engine="cuda", mark="", vllm_version="0.26.0", gpus=(GPU,) * 8)
GOOD = tuple(
    Verdict(name, "pass", "")
    for name in (
        "window",
        "coherence: text",
        "coherence: log probabilities",
        "coherence: known answers",
        "coherence: same prompt",
        "cross-check",
    )
)


def measured(*aggregates: float, **changes) -> Measured:
    values = {
        "aggregates": aggregates or (120.0, 120.4, 119.9),
        "prompt_tokens": (81_300,) * 4,
        "wanted_tokens": 81_344,
        "full_context": True,
        "cold": False,
        "decode_tokens": 512,
        "published_decode_tokens": 512,
        "verdicts": GOOD,
        "server_version": "0.26.0",
        "verify_state": "pass",
    }
    return Measured(**{**values, **changes})


@pytest.mark.parametrize(
    ("aggregates", "verdict", "state"),
    [
        ((120.0, 120.4, 119.9), WITHIN, "pass"),
        ((117.8, 117.9, 117.8), WITHIN, "pass"),  # 2.3 below: inside the floor of 2.4
        ((117.6, 117.6, 117.7), WORSE, "fail"),
        ((122.6, 122.6, 122.5), BETTER, "pass"),
        ((130.0, 131.0, 130.5), BETTER, "pass"),
        ((112.0, 116.5, 115.5), WORSE, "fail"),  # 4.6 below, spread 4.5
        ((112.0, 116.5, 115.7), WITHIN, "pass"),  # 4.4 below, spread 4.5: the repeats are the noise
    ],
)
def test_the_verdict_and_its_noise(aggregates, verdict, state):
    found = compare(ENVELOPE, RIG, measured(*aggregates))
    assert found.verdict == verdict
    assert found.as_verdict().state == state
    assert "does not state how its number is defined" in found.text
    assert "120.1" in found.text and found.reasons == ()


def verdicts(**states: str) -> tuple[Verdict, ...]:
    def key(name: str) -> str:
        return name.replace("coherence: ", "").replace(" ", "_")

    return tuple(replace(v, state=states.get(key(v.name), v.state)) for v in GOOD)


@pytest.mark.parametrize(
    ("conditions", "changes", "reason"),
    [
        (replace(RIG, mark="emulated"), {}, "marked emulated"),
        (replace(RIG, engine="cpu", mark="CPU"), {}, "CPU number"),
        (replace(RIG, mark="conditions unknown"), {}, "conditions unknown"),
        (replace(RIG, gpus=()), {}, "GPUs are not known"),
        (replace(RIG, gpus=(GPU,) * 7), {}, "7 x NVIDIA GeForce RTX 3090, the published one 8 x RTX 3090"),
        (replace(RIG, gpus=({**GPU, "name": "NVIDIA GeForce RTX 3090 Ti"},) * 8), {}, "RTX 3090 Ti"),
        (replace(RIG, gpus=(*(GPU,) * 7, {"name": "NVIDIA RTX A6000"})), {}, "1 x NVIDIA RTX A6000"),
        (replace(RIG, overrides={"NCCL_ALGO": "Tree"}), {}, "NCCL_ALGO=Tree"),
        (replace(RIG, overrides={"SPECULATIVE_CONFIG": "{}"}), {}, "SPECULATIVE_CONFIG"),
        (replace(RIG, overrides={"FUSE_ALLREDUCE_RMS": "0"}), {}, "FUSE_ALLREDUCE_RMS=0"),
        (replace(RIG, vllm_version="0.25.0"), {}, "the server that answered is vLLM 0.26.0"),
        (RIG, {"full_context": False}, "not what the context leaves"),
        (RIG, {"prompt_tokens": (81_300, 77_276, 81_300, 81_300)}, "a prompt has 77276 tokens"),
        (RIG, {"verify_state": None}, "was not run"),
        (RIG, {"verify_state": "fail"}, "says fail"),
        (RIG, {"verify_state": "not seen"}, "says not seen"),
        (RIG, {"verdicts": verdicts(text="fail")}, "coherence: text is failed"),
        (RIG, {"verdicts": verdicts(text="not seen")}, "coherence: text is not seen"),
        (RIG, {"verdicts": verdicts(known_answers="not applicable")}, "known answers is not applicable"),
        (RIG, {"verdicts": verdicts(**{"cross-check": "fail"})}, "do not agree"),
        (RIG, {"aggregates": (120.0, 107.0, 121.0)}, "the repeats differ by 12 %"),
    ],
)
def test_unlike_things_are_not_compared(conditions, changes, reason):
    found = compare(ENVELOPE, conditions, measured(**changes))
    assert found.verdict == CANNOT
    assert any(reason in one for one in found.reasons), found.reasons
    assert found.as_verdict().state == "not applicable"
    assert found.tolerance_tok_s is None


def test_what_does_not_forbid_it():
    neutral = replace(RIG, overrides={"FUSE_ALLREDUCE_RMS": "1", "SPECULATIVE_CONFIG": "none"})
    assert compare(ENVELOPE, neutral, measured()).verdict == WITHIN
    assert compare(ENVELOPE, RIG, measured(verdicts=verdicts(same_prompt="fail"))).verdict == WITHIN
    assert compare(ENVELOPE, RIG, measured(verdicts=verdicts(**{"cross-check": "not seen"}))).verdict == WITHIN


def test_a_pool_that_keeps_no_prompts_is_a_note_and_no_obstacle():
    found = compare(ENVELOPE, RIG, measured(cold=True))
    assert found.verdict == WITHIN and "the prompts were not in the prefix cache" in found.text


def test_alone_a_cold_prompt_does_not_matter():
    one = load_envelope("sm86-262k")
    assert "prefix cache" not in compare(ENVELOPE, RIG, measured()).text
    rates = {"prompt_tokens": (261_000,), "wanted_tokens": 261_568}
    assert compare(one, RIG, measured(59.6, 59.5, cold=True, **rates)).verdict == WITHIN


def test_notes_on_power_repeats_and_tokens():
    limited = replace(RIG, gpus=({**GPU, "power_limit_w": 200.0},) * 8)
    found = compare(ENVELOPE, limited, measured(120.0, decode_tokens=256))
    assert found.verdict == WITHIN
    assert any("200 W" in note for note in found.notes)
    assert any("one repeat" in note for note in found.notes)
    assert any("256 tokens" in note for note in found.notes)


def test_no_number_and_nothing_published():
    assert compare(ENVELOPE, RIG, replace(measured(), aggregates=())).verdict == CANNOT
    assert compare(load_envelope("sm86-64k"), RIG, measured()).verdict == NOTHING
    cpu = compare(load_envelope("cpu-smoke"), replace(RIG, engine="cpu", mark="CPU"), measured())
    assert cpu.verdict in (NOTHING, CANNOT)


def test_all_reasons_are_given_at_once():
    found = compare(ENVELOPE, replace(RIG, gpus=()), measured(full_context=False, verify_state=None))
    assert len(found.reasons) == 3


def test_the_published_rig_is_the_spec_s():
    envelope = load_envelope("sm86-262k")
    other = replace(envelope, published_rig=PublishedRig(8, "RTX A6000", 300.0))
    assert compare(other, RIG, measured(59.6)).reasons == (
        "the rig is 8 x NVIDIA GeForce RTX 3090, the published one 8 x RTX A6000",
    )
    unknown = compare(replace(envelope, published_rig=None), RIG, measured(59.6))
    assert unknown.verdict == CANNOT and "the published rig is not known" in unknown.text
    silent = replace(RIG, gpus=({"name": GPU["name"], "power_limit_w": 250.0},) * 8)
    assert "limited to 250 W (350 W by default" in compare(envelope, silent, measured(59.6)).text
