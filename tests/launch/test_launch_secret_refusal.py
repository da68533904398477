"""The API key that is shown nowhere, and the refusal that is said once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import refusal, secret

KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize("text", [KEY, f"{KEY}\n", f"{KEY}\r\n", f"\ufeff{KEY}\n"])
def test_the_key_is_the_files_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    assert secret.read_key(tmp_path / "key", True) == KEY


def test_no_key(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "newline").write_text("\n")
    for path in (tmp_path / "empty", tmp_path / "newline", Path("/dev/null")):
        assert secret.read_key(path, True) is None
    assert secret.read_key(tmp_path / "absent", False) is None
    with pytest.raises(CouldNotRun, match="is not there"):
        secret.read_key(tmp_path / "absent", True)


@pytest.mark.parametrize("text", [f"{KEY} x", f"{KEY}\nmore", f" {KEY}", f"{KEY}\t", f"{KEY}é", f"{KEY}\0", " "])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(CouldNotRun) as caught:
        secret.read_key(tmp_path / "key", True)
    assert KEY not in caught.value.what + caught.value.mend


def test_files_that_are_no_key(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 5000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path, words in ((tmp_path / "large", "larger"), (tmp_path / "binary", "UTF-8"), (tmp_path, "cannot be read")):
        with pytest.raises(CouldNotRun, match=words):
            secret.read_key(path, True)


def test_a_key_among_the_arguments_is_refused() -> None:
    secret.require_unseen(KEY, ["serve", "m"])
    secret.require_unseen(None, ["serve", KEY])
    secret.require_unseen("8", ["--port", "8000"])
    for part in (KEY, f"--x={KEY}"):
        with pytest.raises(CouldNotRun) as caught:
            secret.require_unseen(KEY, ["serve", part])
        assert KEY not in caught.value.what + caught.value.mend


def test_a_value_that_holds_the_key_is_not_shown() -> None:
    values = {"A": KEY, "B": f"x{KEY}", "C": "c"}
    assert secret.masked(values, KEY) == {"C": "c"}
    assert secret.masked(values, None) == values


ERROR = CouldNotRun("the model is not there", "put it there")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark.json"


def say(error: CouldNotRun, began: float, mark: Path | None, capsys: pytest.CaptureFixture[str]) -> str:
    assert refusal.say(error, began, [mark] if mark else []) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert say(ERROR, time.time(), None, capsys) == "sm86: the model is not there\nmend: put it there\n"


def test_restarts_in_a_container_are_silent_and_a_person_is_told_again(mark: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert say(ERROR, time.time(), mark, capsys)
    for _ in range(3):
        assert say(ERROR, time.time(), mark, capsys) == ""
    assert say(ERROR, time.time() + refusal.WINDOW_S + 1, mark, capsys)


def test_another_refusal_is_always_said(mark: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    other = CouldNotRun("the model is not there", "put it elsewhere")
    assert say(ERROR, time.time(), mark, capsys)
    assert say(other, time.time(), mark, capsys)
    assert say(ERROR, time.time(), mark, capsys)


def test_outside_a_container_every_start_is_told(capsys) -> None:  # type: ignore[no-untyped-def]
    assert say(ERROR, time.time(), None, capsys) and say(ERROR, time.time(), None, capsys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sha256": 1}', '{"sha256": "x", "ended": "never"}', "\xff"])
def test_a_damaged_mark_silences_nothing(mark: Path, text: str, capsys) -> None:  # type: ignore[no-untyped-def]
    mark.write_bytes(text.encode("latin-1"))
    assert say(ERROR, time.time(), mark, capsys)


def test_a_mark_from_the_future_silences_nothing(mark: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert say(ERROR, time.time(), mark, capsys)
    assert say(ERROR, time.time() - 60, mark, capsys)


def test_a_mark_behind_a_link_is_not_believed(mark: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert say(ERROR, time.time(), mark, capsys)
    os.rename(mark, tmp_path / "real")
    mark.symlink_to(tmp_path / "real")
    assert say(ERROR, time.time(), mark, capsys)


def test_no_writable_place_is_no_reason_to_fail_otherwise(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("")
    assert say(ERROR, time.time(), tmp_path / "file" / "mark", capsys)


def test_the_mark_goes_to_the_first_place_that_can_be_written(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("")
    marks = [tmp_path / "file" / "refusal-x.json", tmp_path / "refusal-x.json"]
    for said in (True, False, False):
        assert refusal.say(ERROR, time.time(), marks) == 2
        assert bool(capsys.readouterr().err) is said
    assert marks[1].exists()


def test_marks_of_other_containers_silence_nothing_and_old_ones_go(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("socket.gethostname", lambda: "one")
    first = refusal.mark_paths(tmp_path / "shared")
    refusal.say(ERROR, time.time(), first)
    assert capsys.readouterr().err
    monkeypatch.setattr("socket.gethostname", lambda: "two")
    os.utime(first[0], (1, 1))
    (tmp_path / "shared" / "GPU-a.lock").write_text("")
    os.utime(tmp_path / "shared" / "GPU-a.lock", (1, 1))
    refusal.say(ERROR, time.time(), refusal.mark_paths(tmp_path / "shared"))
    assert capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["GPU-a.lock", "refusal-two.json"]
