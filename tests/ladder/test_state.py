"""The state file: what it keeps comes back, what it was of is compared, and a broken one is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sm86.errors import CouldNotRun
from sm86.ladder import state as s
from sm86.ladder.cause import MEMORY, Cause
from sm86.ladder.rungs import CONTEXT, SEQUENCE, rungs
from sm86.ladder.state import Outcome, State

RUNGS = rungs(CONTEXT)
IDENTITY = s.identity_of(CONTEXT, "docker", RUNGS, 3, None, "a" * 40, ("sha256:1",))
STATE = (
    State(IDENTITY, "2026-05-01T12:00:00Z", conditions={"image_id": "sha256:1", "gpus": ["GPU-0"]})
    .with_outcome(Outcome("sm86-262k", s.PASSED, tok_s=(59.0, 60.0), each_tok_s=(59.5,), records=("a.json",)))
    .with_outcome(Outcome("sm86-393k", s.FAILED, cause=Cause(MEMORY, "capture OOM", "free it", ("7: x",)), seconds=4.5))
)


def test_it_comes_back_as_it_was() -> None:
    assert s.from_text(STATE.to_text(), "here") == STATE
    assert STATE.next_key == "sm86-393k" and STATE.unfinished is None


def test_the_same_ladder_may_go_on() -> None:
    again = s.identity_of(CONTEXT, "docker", rungs(CONTEXT), 3, None, "a" * 40, ("sha256:1",))
    assert s.differences(s.from_text(STATE.to_text(), "here").identity, again) == ()


changed = RUNGS[1].envelope.with_serve(num_gpu_blocks_override=1824)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (replace(IDENTITY, revision="b" * 40), "revision was aaaa"),
        (replace(IDENTITY, revision="a" * 40 + "+changes"), "now it is aaaa"),
        (replace(IDENTITY, images=("sha256:2",)), "the image was sha256:1, now it is sha256:2"),
        (replace(IDENTITY, engine="local"), "on the engine docker"),
        (replace(IDENTITY, repeats=None), "--repeats was 3"),
        (replace(IDENTITY, decode_tokens=600), "--decode-tokens was not given"),
        (s.identity_of(CONTEXT, "docker", RUNGS[:2], 3, None, "a" * 40, ("sha256:1",)), "its rungs were"),
        (s.identity_of(CONTEXT, "docker", rungs(SEQUENCE), 3, None, "a" * 40, ("sha256:1",)), "its rungs were"),
        (
            s.identity_of(
                CONTEXT, "docker", (RUNGS[0], replace(RUNGS[1], envelope=changed), RUNGS[2]), 3, None, "a" * 40,
                ("sha256:1",),
            ),
            "the spec of rung sm86-393k was",
        ),
        (
            s.identity_of(
                CONTEXT, "docker", rungs(CONTEXT, overrides=(("NCCL_ALGO", "Ring"),)), 3, None, "a" * 40, ("sha256:1",)
            ),
            "had the overrides none",
        ),
    ],
)  # fmt: skip
def test_what_it_is_of_is_compared(now: s.Identity, says: str) -> None:
    assert any(says in one for one in s.differences(IDENTITY, now)), s.differences(IDENTITY, now)


def test_conditions_that_are_not_known_are_no_difference() -> None:
    first = {"image_id": "1", "driver": None, "gpus": ["GPU-0", "GPU-1"]}
    assert s.unlike(first, {"image_id": None, "driver": "580", "gpus": []}) == ()
    assert s.unlike(first, {**first, "gpus": ["GPU-0"]}) == ("gpus was GPU-0, GPU-1, now it is GPU-0",)
    assert s.unlike({"git_rev": "a"}, {"git_rev": "b"}) == ("git_rev was a, now it is b",)


GOOD = json.loads(STATE.to_text())


def broken(**more) -> str:
    return json.dumps({**GOOD, **more})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        (STATE.to_text()[:-40], "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "not the state of a ladder"),
        ('{"schema": "sm86.record", "version": 1}', "not the state of a ladder"),
        (broken(version=2), "of version 2; this program reads version 1"),
        (broken(identity=None), "is damaged"),
        (broken(identity={**GOOD["identity"], "rungs": []}), "is damaged"),
        (broken(identity={**GOOD["identity"], "rungs": [["a", "b"]]}), "is damaged"),
        (broken(outcomes=None), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "state": "great"}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "key": "nowhere"}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "tok_s": ["fast"]}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "tok_s": [10**400]}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "tok_s": [float("nan")]}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "seconds": []}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "seconds": 10**400}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "text": None}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "records": [1]}]), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "text": "\ud800"}]), "is damaged"),
        (broken(conditions={"model": "\udfff"}), "is damaged"),
        (broken(outcomes=[{**GOOD["outcomes"][0], "more": 1}]), "is damaged"),
        (broken(conditions=3), "is damaged"),
    ],
)
def test_a_broken_file_is_told_and_how_to_go_on(text: str, says: str) -> None:
    with pytest.raises(CouldNotRun) as fault:
        s.from_text(text, "ladder.state")
    assert says in fault.value.what and "--restart" in fault.value.mend


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_state_that_another_program_wrote_anew(coding: str) -> None:
    assert s.from_text(STATE.to_text().encode(coding), "here") == STATE


@pytest.mark.parametrize("cut", range(0, len(STATE.to_text()) - 2, 97))
def test_a_cut_file_is_never_read_as_a_whole_one(cut: int) -> None:
    with pytest.raises(CouldNotRun):
        s.from_text(STATE.to_text()[:cut], "ladder.state")
