"""The parity judge: what passes and what must not. Plain numbers in place of a model."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("scores are torch tensors", allow_module_level=True)

import torch

from sm86.backend.testing.parity import FACTOR, all_together, judge, main, table
from sm86.backend.testing.reference import Scores
from sm86.errors import CouldNotRun


def scores(offset: float) -> Scores:
    """Nine positions of a ten-token sequence; the best token is 1 everywhere."""
    logprob = -torch.arange(9.0) + offset
    return Scores(logprob, torch.ones(9, dtype=torch.int64), torch.full((9,), 0.4))


def entry(error: float, generated: list[int], prompt_error: float | None = None) -> dict:
    reference = scores(0.0).logprob
    return {
        "name": "x",
        "prompt": [0] * 6,
        "generated": generated,
        "logprobs": (reference[5:] + error).tolist(),
        "prompt_logprobs": None if prompt_error is None else (reference[:5] + prompt_error).tolist(),
    }


@pytest.mark.parametrize(
    ("error", "prompt_error", "generated", "passes"),
    [
        (0.1, 0.1, [1, 1, 1, 1], True),
        (0.12, None, [1, 1, 1, 1], True),
        (0.2, 0.1, [1, 1, 1, 1], False),
        (0.1, 0.2, [1, 1, 1, 1], False),
        (0.1, 0.1, [1, 2, 1, 1], True),
    ],
)
def test_verdicts(error: float, prompt_error: float | None, generated: list[int], passes: bool) -> None:
    verdict = judge(entry(error, generated, prompt_error), scores(0.0), scores(0.1))
    assert verdict.passed is passes
    assert verdict.agree == generated.count(1) and verdict.total == 4
    assert abs(verdict.floor - 0.1) < 1e-6 and abs(verdict.mean - error) < 1e-6


def test_a_choice_far_from_a_tie_fails_unless_bf16_itself_is_swayed_there() -> None:
    rounded = dataclasses.replace(scores(0.0), lead=torch.full((9,), 1.4))
    other = entry(0.1, [1, 2, 1, 1])
    assert not judge(other, rounded, scores(0.1)).passed
    swayed = dataclasses.replace(scores(0.1), best=torch.tensor([1, 1, 3, 1, 1, 1, 1, 1, 1]))
    verdict = judge(other, rounded, swayed)
    assert verdict.passed and abs(verdict.floor_lead - 1.4) < 1e-6
    assert "pass" in table([verdict]) and "FAIL" in table([judge(other, rounded, scores(0.1))])


def test_nothing_generated_is_no_pass() -> None:
    nothing = {**entry(0.1, []), "logprobs": []}
    verdict = judge(nothing, scores(0.0), scores(0.1))
    assert verdict.mean == 0.0 and not verdict.passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_log_prob_that_is_no_number_is_no_pass(value: float) -> None:
    for key in ("logprobs", "prompt_logprobs"):
        one = entry(0.1, [1, 1, 1, 1], 0.1)
        one[key][1] = value
        assert not judge(one, scores(0.0), scores(0.1)).passed, key


@pytest.mark.parametrize("key", ["logprobs", "prompt_logprobs"])
def test_tokens_without_log_probs_are_not_passed_over(key: str) -> None:
    one = entry(0.1, [1, 1, 1, 1], 0.1)
    one[key] = one[key][:-1]
    with pytest.raises(CouldNotRun, match="not every token"):
        judge(one, scores(0.0), scores(0.1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no run file"),
        ("[" * 100000, "is no run file"),
        ("[]", "holds no entries"),
        ('{"prompt": [1]}', "holds no entries"),
        ('[{"name": "x"}]', "an entry without"),
        (json.dumps([{"name": "x", "prompt": [], "generated": [1], "logprobs": [0.0]}]), "an entry without"),
        (json.dumps([{"name": "x", "prompt": [1], "generated": [1], "logprobs": []}]), "not every token"),
    ],
)
def test_run_files_that_cannot_be_judged(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.json"
    run.write_text(text)
    assert main([str(tmp_path), str(run)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[0] and "testing.ask" in said[1] and len(said) == 2
    assert main([str(tmp_path), str(tmp_path / "absent.json")]) == 2


def noisy(served: float, count: int, seed: int = 3) -> tuple[dict, Scores, Scores]:
    """A prompt of two tokens and `count` generated: transformers' bf16 is 0.1 off on average, the server `served`, both
    by chance from token to token."""
    noise = torch.Generator().manual_seed(seed)
    reference = -torch.arange(count + 1.0)
    ones = torch.ones(count + 1, dtype=torch.int64)
    off = torch.empty(count + 1).exponential_(1 / 0.1, generator=noise)
    more = torch.empty(count).exponential_(1 / served, generator=noise)
    one = {"name": "n", "prompt": [0, 1], "generated": [1] * count, "logprobs": (reference[1:] + more).tolist()}
    lead = torch.full((count + 1,), 0.4)
    return one, Scores(reference, ones, lead), Scores(reference + off, ones, lead)


def test_forty_tokens_may_differ_by_chance_and_must_not_by_much() -> None:
    passed = [judge(*noisy(0.125, 39, seed)).passed for seed in range(20)]
    assert all(passed), "as far as is allowed, on average"
    means = [judge(*noisy(0.125, 39, seed)) for seed in range(20)]
    assert any(one.mean > FACTOR * one.floor for one in means), "and above that by chance now and then"
    assert not any(judge(*noisy(0.5, 39, seed)).passed for seed in range(20))


def test_a_small_error_of_every_token_shows_in_all_entries_together() -> None:
    few = [judge(*noisy(0.16, 48, seed)) for seed in range(60)]
    assert sum(one.passed for one in few) > 40, "each of them alone may be chance"
    good, words = all_together(few)
    assert not good and words.endswith("FAIL") and "2880 tokens" in words
    good, words = all_together([judge(*noisy(0.1, 48, seed)) for seed in range(60)])
    assert good and words.endswith("pass")
