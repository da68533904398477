"""`invoke ladder.*`: words, exit codes, and what an earlier run left."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from sm86.cli import ladder as command
from sm86.cli.guard import guard
from sm86.ladder import state as s
from sm86.ladder.rungs import SEQUENCE, rungs
from sm86.record import load
from tests.ladder.hands import CONDITIONS, FakeHands, failure, measured, record, verified

RUNGS = rungs(SEQUENCE)
KEYS = [rung.key for rung in RUNGS]
OOM = {("boot", KEYS[1]): record(RUNGS[1], "boot", details=failure("capture OOM"))}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Runs the command with hands that start nothing; gives (exit code, stdout, stderr)."""
    monkeypatch.setattr(command, "revision", lambda: "a" * 40)

    def call(name: str = SEQUENCE, hands: FakeHands | None = None, drawn: bool = False, **more):
        hands = hands or FakeHands(tmp_path)
        if not drawn:
            # drawing takes half a second, and one test looks at it
            monkeypatch.setattr(command, "_draw", lambda *_: ())
        code = guard(lambda: command.ladder(name, results=tmp_path, hands=hands, **more))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err and "\x1b" not in captured.out + captured.err
        return code, captured.out, captured.err

    call.results = tmp_path
    return call


def records(run) -> list[Path]:
    return sorted((run.results / "ladder-sequence").glob("*-ladder*.json"))


def test_a_whole_ladder(run) -> None:
    code, out, err = run(drawn=True)
    assert code == 0, out + err
    assert "complete: 4 of 4 rungs passed" in out and "50.5 (50.0 to 51.0)" in out
    assert f"rung 2 of 4, {KEYS[1]}: boot" in err
    (path,) = records(run)
    assert str(path) in out and load(path).details["complete"] is True
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    for key in KEYS:
        assert len(list((run.results / key).glob("*.json"))) == 3


def test_json_is_the_record_alone(run) -> None:
    code, out, err = run(json=True)
    assert code == 0 and json.loads(out)["schema"] == "sm86.record"
    assert str(records(run)[0]) in err


def test_a_rung_that_fails_is_exit_1_with_the_next_root_cause(run) -> None:
    code, out, err = run(hands=FakeHands(run.results, dict(OOM)))
    assert code == 1
    assert f"rung 2 of 4, {KEYS[1]}: failed: out of memory: capture OOM" in err
    assert f"stopped at {KEYS[1]}. Next root cause: out of memory: capture OOM" in out
    assert "| 7: said so" in out and "mend: free the GPUs" in out and "--resume tries this rung again" in out
    assert "not run" in out
    assert load(records(run)[0]).details["stopped_by"]["kind"] == "out of memory"


def test_half_a_ladder_asks_what_to_do(run) -> None:
    run(hands=FakeHands(run.results, dict(OOM)))
    code, out, err = run()
    assert (code, out) == (2, "") and f"failed at rung {KEYS[1]}" in err and "--resume" in err and "--restart" in err
    hands = FakeHands(run.results)
    code, out, err = run(hands=hands, resume=True)
    assert code == 0 and hands.calls[0] == f"boot {KEYS[1]}" and "4 of 4" in out
    # a complete one needs no word
    hands = FakeHands(run.results)
    assert run(hands=hands)[0] == 0 and hands.calls[0] == f"boot {KEYS[0]}"


def test_restart_begins_anew(run) -> None:
    run(hands=FakeHands(run.results, dict(OOM)))
    hands = FakeHands(run.results)
    assert run(hands=hands, restart=True)[0] == 0 and hands.calls[0] == f"boot {KEYS[0]}"


def test_a_complete_ladder_has_nothing_to_go_on_with(run) -> None:
    run()
    hands = FakeHands(run.results)
    code, out, err = run(hands=hands, resume=True)
    assert code == 0 and hands.calls == [] and "passed already" in err and "4 of 4" in out
    assert len(records(run)) == 1, "nothing was run, so nothing is recorded"


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6, 13, 20])
def test_ctrl_c_is_130_and_resume_finishes(run, call: int) -> None:
    hands = FakeHands(run.results, stop_at=call)
    code, out, err = run(hands=hands)
    assert code == 130 and "invoke ladder.sequence --resume" in err and not records(run)
    again = FakeHands(run.results)
    if hands.up:
        # the interrupted command could not stop it: the next one does, before anything else
        again.up = hands.up
    code, out, err = run(hands=again, resume=True)
    assert code == 0, out + err
    assert "4 of 4" in out and not again.up
    if hands.calls[call - 1].startswith("down"):
        assert again.calls[0] == hands.calls[call - 1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"repeats": 5}, "--repeats was not given"),
        ({"override": ("CUDAGRAPH_DISPATCH_DEBUG=1",)}, "had the overrides none"),
        ({"envelopes": "sm86-262k,sm86-80k-4seq"}, "its rungs were"),
        ({"engine": "local"}, "on the engine docker"),
        ({"image": "sha256:2"}, "the image was sha256:1, now it is sha256:2"),
        ({"revision": "b" * 40}, "revision was aaa"),
    ],
)
def test_a_state_of_something_else_is_refused_with_what_differs(run, monkeypatch, change, says) -> None:
    run(hands=FakeHands(run.results, stop_at=8))
    before = (run.results / "ladder-sequence" / s.FILE).read_text()
    hands = FakeHands(run.results, image=change.pop("image", "sha256:1"))
    if "revision" in change:
        revision = change.pop("revision")
        monkeypatch.setattr(command, "revision", lambda: revision)
    code, out, err = run(hands=hands, resume=True, **change)
    assert (code, out) == (2, "") and says in err and "--restart" in err
    assert not any(call.startswith("boot") for call in hands.calls)
    assert (run.results / "ladder-sequence" / s.FILE).read_text() == before
    assert run(hands=FakeHands(run.results), restart=True)[0] == 0


@pytest.mark.parametrize("text", ["", "{", '{"schema": "sm86.ladder-state", "version": 9}', "\x00\xff"])
def test_a_broken_state_is_told_and_restart_mends_it(run, text: str) -> None:
    path = run.results / "ladder-sequence" / s.FILE
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    for more in ({}, {"resume": True}, {"dry_run": True}):
        code, out, err = run(**more)
        assert (code, out) == (2, "") and "--restart" in err
    assert run(restart=True)[0] == 0


def test_a_name_in_the_state_sends_nothing_to_the_terminal(run) -> None:
    run(hands=FakeHands(run.results, dict(OOM)))
    path = run.results / "ladder-sequence" / s.FILE
    values = json.loads(path.read_text())
    values["started"] = "2026\x1b[2J"
    values["outcomes"][0]["findings"] = ["odd\x1b[31m"]
    path.write_text(json.dumps(values))
    said = [*run(dry_run=True)[1:], *run()[1:], *run(hands=FakeHands(run.results), resume=True)[1:]]
    assert "odd\\x1b[31m" in "".join(said) and "\x1b" not in "".join(said)


@pytest.mark.parametrize("kind", ["folder", "pipe", "huge"])
def test_a_state_that_is_no_plain_file_is_told_at_once(run, kind: str) -> None:
    path = run.results / "ladder-sequence" / s.FILE
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(command.MOST_BYTES + 1)
    code, out, err = run()
    assert (code, out) == (2, "") and "cannot read" in err and "mend: " in err


def test_dry_run_does_nothing_and_says_how_far_it_is(run) -> None:
    code, out, err = run(dry_run=True)
    assert code == 0 and err == "" and not list(run.results.iterdir())
    assert [line.split()[1] for line in out.splitlines()[1:]] == KEYS
    assert "published 120.1 tok/s" in out
    run(hands=FakeHands(run.results, dict(OOM)))
    _, out, _ = run(dry_run=True)
    assert "[passed]" in out and "[failed]" in out and f"stands at rung {KEYS[1]}" in out
    _, out, _ = run(dry_run=True, json=True)
    values = json.loads(out)
    assert values["schema"] == "sm86.ladder-plan" and values["next"] == KEYS[1]
    assert [rung["state"] for rung in values["rungs"]] == ["passed", "failed", "not run", "not run"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"resume": True, "restart": True}, "one of the two"),
        ({"resume": True}, "no ladder to go on with"),
        ({"repeats": "0"}, "--repeats is '0'"),
        ({"rounds": "x"}, "--rounds is 'x'"),
        ({"decode_tokens": "-3"}, "--decode-tokens is '-3'"),
        ({"png": "curve.svg"}, "does not end in .png"),
        ({"override": ("NCCL_ALGO",)}, "is not NAME=VALUE"),
        ({"override": ("NCCL_AL=Ring",)}, "no override 'NCCL_AL'"),
        ({"envelopes": "sm86-9k"}, "no envelope 'sm86-9k'"),
    ],
)
def test_wrong_arguments_are_exit_2_and_start_nothing(run, more, says) -> None:
    hands = FakeHands(run.results)
    code, out, err = run(hands=hands, **more)
    assert (code, out, hands.calls) == (2, "", []) and says in err and "mend: " in err
    assert not list(run.results.iterdir())


def test_two_ladders_at_once_are_refused(run) -> None:
    with (run.results / ".ladder.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = run()
    assert code == 2 and "another ladder is running" in err


def test_a_finding_of_the_log_is_exit_1_though_every_rung_passed(run) -> None:
    dirty = [verified(RUNGS[0], {"git-revision": ("fail", "there were changes")}) for _ in range(2)]
    code, out, _ = run(hands=FakeHands(run.results, {("verify", KEYS[0]): dirty}))
    assert code == 1 and "4 of 4 rungs passed" in out and "finding: git-revision: there were changes" in out


def test_the_comm_matrix_begins_with_the_gate_until_it_is_shown(run) -> None:
    _, out, _ = run("comm", dry_run=True)
    assert "1. sm86-262k" in out and "only after sm86-262k is coherent" in out
    run()
    hands = FakeHands(run.results)
    code, out, _ = run("comm", hands=hands)
    assert code == 0 and "was shown coherent in" in out and hands.calls[0] == "boot as-it-is"
    assert "flashinfer-all-reduce is inert, not started" in out
    assert "the next material lever is peer access" in out


@pytest.mark.parametrize("why", ["marked", "incoherent", "other spec", "damaged"])
def test_a_gate_that_was_not_shown_stays(run, why: str) -> None:
    from dataclasses import replace

    good = measured(RUNGS[0])
    shown = {
        "marked": replace(good, conditions=replace(CONDITIONS, mark="emulated")),
        "incoherent": replace(good, verdicts=()),
        "other spec": replace(good, envelope_digest="0" * 16),
        "damaged": good,
    }[why]
    path = FakeHands(run.results).save(shown)
    if why == "damaged":
        Path(path).write_text("{")
    _, out, _ = run("comm", dry_run=True)
    assert "1. sm86-262k" in out


def test_resuming_the_matrix_keeps_its_gate(run) -> None:
    run("comm", hands=FakeHands(run.results, stop_at=7))
    hands = FakeHands(run.results)
    code, _, err = run("comm", hands=hands, resume=True)
    assert code == 0 and hands.calls[0] == "boot as-it-is", err


def test_a_disk_that_is_full_leaves_the_old_state(run, monkeypatch) -> None:
    run(hands=FakeHands(run.results, stop_at=8))
    path = run.results / "ladder-sequence" / s.FILE
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    hands = FakeHands(run.results)
    code, _, err = run(hands=hands, resume=True)
    assert code == 2 and "No space left" in err and path.read_text() == before and not hands.calls
