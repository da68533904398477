"""The next root cause, from the records of a rung."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.boot.kinds import KINDS
from sm86.ladder import cause as c
from sm86.ladder import judge
from sm86.ladder.rungs import CONTEXT, rungs
from sm86.record import Verdict
from sm86.spec import load_envelope
from tests.ladder.hands import GOOD, failure, measured, record, verified

RUNG = rungs(CONTEXT)[0]
EXPERIMENTAL = rungs(CONTEXT)[1]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("capture OOM", c.MEMORY),
        ("KV pool OOM", c.MEMORY),
        ("weights OOM", c.MEMORY),
        ("host OOM", c.MEMORY),
        ("GPU memory taken", c.MEMORY),
        ("shared memory too small", c.MEMORY),
        ("KV pool too small", c.CONTEXT),
        ("unknown", c.BOOT),
        ("NCCL init stall", c.BOOT),
    ],
)
def test_a_boot_that_failed(kind: str, expected: str) -> None:
    found = judge.of_boot(record(RUNG, "boot", details=failure(kind)), RUNG)
    assert found is not None and found.kind == expected
    assert "it did not fit" in found.text and found.mend == "free the GPUs" and found.evidence == ("7: said so",)


def test_the_kinds_of_memory_are_those_of_the_boot() -> None:
    """The names that the judgement reads are names that a boot gives."""
    names = {kind.name for kind in KINDS}
    assert {"capture OOM", "KV pool OOM", "KV pool too small", "GPU memory taken", "host OOM"} <= names


def test_what_is_known_of_an_envelope_stands_beside_its_failure() -> None:
    found = judge.of_boot(record(EXPERIMENTAL, "boot", details=failure("capture OOM")), EXPERIMENTAL)
    assert found is not None and "about 30 MiB" in found.text


def test_a_boot_that_serves() -> None:
    assert judge.of_boot(record(RUNG, "boot", details={"failure": None}), RUNG) is None


@pytest.mark.parametrize(
    ("rule", "state", "expected"),
    [
        ("out-of-memory", "fail", c.MEMORY),
        ("context-served", "fail", c.CONTEXT),
        ("dispatch", "fail", c.GRAPH),
        ("graphs-captured", "fail", c.CAPTURE),
        ("capture-shape", "fail", c.CAPTURE),
        ("kv-cache-dtype", "fail", c.UNLIKE),
        ("context-served", "not seen", c.UNLIKE),
    ],
)
def test_a_log_that_does_not_prove_it(rule: str, state: str, expected: str) -> None:
    found = judge.of_verify(verified(RUNG, {rule: (state, "because")}), RUNG)
    assert found is not None and found.kind == expected and rule in found.text and "because" in found.text
    assert found.evidence == (f"3: line of {rule}",) and found.mend


def test_of_several_the_cause_comes_first_and_a_contradiction_before_what_is_missing() -> None:
    bad = {"ready": ("fail", "never"), "graphs-captured": ("not seen", "no bar"), "out-of-memory": ("fail", "GPU")}
    found = judge.of_verify(verified(RUNG, bad), RUNG)
    assert found is not None and found.kind == c.MEMORY
    found = judge.of_verify(verified(RUNG, {"graphs-captured": ("not seen", "no bar"), "argv": ("fail", "x")}), RUNG)
    assert found is not None and found.text.startswith("argv")


def test_a_good_log_and_one_with_uncommitted_changes() -> None:
    assert judge.of_verify(verified(RUNG), RUNG) is None
    dirty = verified(RUNG, {"git-revision": ("fail", "dirty")})
    assert judge.of_verify(dirty, RUNG) is None
    assert judge.findings_of(dirty) == ("git-revision: dirty",)
    assert judge.findings_of(verified(RUNG)) == ()


def bench(*verdicts: Verdict):
    kept = {verdict.name: verdict for verdict in (*GOOD, *verdicts)}
    return measured(RUNG, verdicts=tuple(kept.values()))


def test_a_good_measurement_also_where_a_check_does_not_apply() -> None:
    assert judge.of_bench(measured(RUNG), RUNG) is None
    assert judge.of_bench(bench(Verdict("coherence: known answers", "not applicable", "knows none")), RUNG) is None


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict("coherence: text", "fail", "a loop"), c.INCOHERENT),
        (Verdict("coherence: known answers", "fail", "another sequence's code"), c.INCOHERENT),
        (Verdict("coherence: log probabilities", "not seen", "none sent"), c.INCOHERENT),
        (Verdict("window", "fail", "they never decoded together"), c.WINDOW),
        (Verdict("comparison", "fail", "worse: 40.0 against 59.6"), c.SLOW),
    ],
)
def test_a_measurement_that_is_no_result_or_slow(verdict: Verdict, expected: str) -> None:
    found = judge.of_bench(bench(verdict), RUNG)
    assert found is not None and found.kind == expected and verdict.text in found.text and found.mend


def test_nothing_shown_is_never_coherent() -> None:
    both = [
        Verdict(name, "not applicable", "does not apply") for name in ("coherence: text", "coherence: known answers")
    ]
    found = judge.of_bench(bench(*both), RUNG)
    assert found is not None and found.kind == c.INCOHERENT
    assert judge.of_bench(measured(RUNG, verdicts=()), RUNG) is not None


def test_a_slow_result_names_what_limits_the_gpus() -> None:
    slow = Verdict("comparison", "fail", "worse: 40.0 against 59.6")
    hot = bench(slow, Verdict("telemetry", "fail", "thermal: GPU 3 was held back by heat"))
    found = judge.of_bench(hot, RUNG)
    assert found is not None and "GPU 3" in found.text and "limits the GPUs" in found.mend
    found = judge.of_bench(bench(slow, Verdict("telemetry", "pass", "nothing")), RUNG)
    assert found is not None and "telemetry shows no limit" in found.text and "before touching kernels" in found.mend


def test_a_server_that_failed_in_the_middle() -> None:
    oom = verified(RUNG, {"out-of-memory": ("fail", "GPU memory ran out while serving")})
    found = judge.of_fault("the server failed", "its log has the reason", oom, RUNG)
    assert found.kind == c.MEMORY and "while serving" in found.text
    for after in (None, verified(RUNG), verified(RUNG, {"ready": ("fail", "not any more")})):
        found = judge.of_fault("the server failed", "its log has the reason", after, RUNG)
        assert (found.kind, found.text) == (c.SERVER, "the server failed")
        assert found.mend.startswith("its log has the reason; ") and f"results/{RUNG.envelope.name}/" in found.mend


def test_the_diagnosis_names_the_envelope() -> None:
    found = judge.of_verify(verified(EXPERIMENTAL, {"graphs-captured": ("fail", "stands at 50 %")}), EXPERIMENTAL)
    assert found is not None and EXPERIMENTAL.envelope.name in found.mend


def test_a_cause_survives_its_json() -> None:
    found = judge.of_verify(verified(RUNG, {"dispatch": ("fail", "miss")}), RUNG)
    assert found is not None and c.from_json(found.to_json()) == found
    assert c.from_json(None) is None
    for bad in (3, {}, {**found.to_json(), "text": 3}, replace(found).to_json() | {"evidence": [1]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            c.from_json(bad)


def test_a_proof_with_a_random_checkpoint_is_held_to_its_log_probabilities() -> None:
    proof = replace(RUNG, envelope=load_envelope("sm86-proof"))
    both = [
        Verdict(name, "not applicable", "does not apply") for name in ("coherence: text", "coherence: known answers")
    ]
    assert judge.of_bench(bench(*both), proof) is None
    lost = judge.of_bench(bench(*both, Verdict("coherence: log probabilities", "not applicable", "none")), proof)
    assert lost is not None and lost.kind == c.INCOHERENT


def test_before_the_first_request_a_log_need_not_show_what_decoding_writes() -> None:
    silent = verified(RUNG, {"dispatch": ("not seen", "no decode batch was reported")})
    assert judge.of_verify(silent, RUNG, decoded=False) is None
    after = judge.of_verify(silent, RUNG)
    assert after is not None and "dispatch: not seen" in after.text
    both = verified(RUNG, {"dispatch": ("not seen", "none"), "graphs-captured": ("not seen", "no bar")})
    for record_ in (both, verified(RUNG, {"dispatch": ("fail", "miss")})):
        assert judge.of_verify(record_, RUNG, decoded=False) is not None
