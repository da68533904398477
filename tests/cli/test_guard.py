"""Every fault ends as one line and a mend with the right exit code; no traceback reaches a person."""

import os
import subprocess
import sys

import pytest

from sm86.cli import doctor, model, plan
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


def test_control_characters_of_others_do_not_reach_the_terminal(capsys):
    guard(raises(CouldNotRun("it serves \x1b[31mred", "look\x07", ("boom\x1b[2J\u202e", "tab\tstays"))))
    said = capsys.readouterr().err
    assert "\\x1b[31mred" in said and "\\x07" in said and "boom\\x1b[2J\\u202e" in said and "tab\tstays" in said
    assert not any(sign in said for sign in "\x1b\x07\u202e")


CALL = """
import sys
from sm86.cli.guard import guard
from sm86.errors import CheckFailed, CouldNotRun
def call():
    {body}
    return 0
sys.exit(guard(call))
"""


def run(body: str, streams: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The call in a process of its own, its streams set by a shell; Python's own end is part of what is seen."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, CALL.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "streams, words", [(">/dev/full", "cannot write the output: No space left"), (">&-", "output is closed")]
)
@pytest.mark.parametrize("body", ["print('x')", "print('x' * 1_000_000)"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stdout_that_takes_nothing_is_told_in_words(streams, words, body, unbuffered):
    done = run(body, streams, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert words in done.stderr and "mend: " in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize("error, code", [("CouldNotRun", 2), ("CheckFailed", 1)])
def test_a_stderr_that_takes_nothing_does_not_change_the_exit_code(streams, error, code):
    done = run(f"raise {error}('a', 'b')", streams)
    assert done.returncode == (2 if ">&- 2" in streams else code)


def test_a_character_that_the_terminal_cannot_show_is_written_as_its_number():
    done = run("print('caf\\u00e9 \\udcff')", "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "caf\\xe9 \\udcff\n")


def test_the_reader_may_leave():
    done = run("print('x\\n' * 1_000_000)", "| head -1 >/dev/null")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "call",
    [
        lambda: plan.plan(envelope=""),
        lambda: plan.plan(rig=" "),
        lambda: plan.plan(fit=True, out=""),
        lambda: doctor.doctor(from_file=""),
        lambda: doctor.doctor(envelope="", from_file="x"),
        lambda: model.check(""),
        lambda: model.lock(".", lock=""),
        lambda: model.fetch(token_file=""),
    ],
)
def test_an_option_without_a_value_is_not_its_default(call):
    """A shell's unset variable: the command would do something else than was asked for."""
    with pytest.raises(CouldNotRun, match="is empty"):
        call()
