"""Every fault ends as one line and a mend with the right exit code; no traceback reaches a person."""

import pytest

from sm86.cli.guard import guard, whole_number
from sm86.errors import CheckFailed, CouldNotRun


def raises(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    "error, code",
    [
        (CouldNotRun("no Docker", "install it"), 2),
        (CheckFailed("a rule failed", "look at it"), 1),
        (KeyboardInterrupt(), 130),
        (KeyError("x"), 2),
        (RecursionError("deep"), 2),
    ],
)
def test_exit_codes(error, code, capsys):
    assert guard(raises(error)) == code
    assert "Traceback" not in capsys.readouterr().err


def test_what_evidence_mend(capsys):
    guard(raises(CouldNotRun("two\nlines", "do\nthis", ("seen 1", "seen 2"))))
    assert capsys.readouterr().err == "sm86: two lines\n  | seen 1\n  | seen 2\nmend: do this\n"


def test_a_fault_of_the_program_says_how_to_see_more(capsys, monkeypatch):
    guard(raises(ValueError("odd")))
    assert "SM86_TRACEBACK=1" in capsys.readouterr().err
    monkeypatch.setenv("SM86_TRACEBACK", "1")
    with pytest.raises(ValueError):
        guard(raises(ValueError("odd")))


def test_the_exit_code_of_the_call_is_kept():
    assert guard(lambda: 0) == 0
    assert guard(lambda: 1) == 1


@pytest.mark.parametrize("text", ["two", "2.0", "", "-1", "0", "101", "1e3"])
def test_numbers_that_are_none(text):
    with pytest.raises(CouldNotRun, match="--repeats"):
        whole_number(text, "repeats", 1, 100)


def test_numbers():
    assert whole_number("7", "repeats", 1, 100) == 7
    assert whole_number(None, "repeats", 1, 100) is None
