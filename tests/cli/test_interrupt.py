"""Ctrl-C before a command has begun; what else asks a program to end; a terminal that is closed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conftest import ROOT

# as invoke does it: its name in argv, tasks.py loaded, then the interrupt, before any guard
START = """
import os, signal, sys
sys.argv[0] = {name!r}
import tasks
os.kill(os.getpid(), signal.{number})
print("went on", flush=True)
"""

INSIDE = """
import os, signal, sys
sys.argv[0] = "/somewhere/bin/invoke"
import tasks
from sm86.cli.guard import guard
def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("put in order", flush=True)
sys.exit(guard(work))
"""


# the second signal comes while things are put in order, by a program that must not inherit how it is passed over
TWICE = """
import os, signal, subprocess, sys
sys.argv[0] = "/somewhere/bin/invoke"
import tasks
from sm86.cli.guard import guard
CHILD = "import signal; print(*(signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)))"
def work():
    try:
        os.kill(os.getpid(), signal.{number})
    finally:
        os.kill(os.getpid(), signal.{number})
        print(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True).stdout, end="")
        print("put in order", flush=True)
sys.exit(guard(work))
"""

# says something while it puts things in order, as every command does
CLOSED_TERMINAL = """
import signal, sys
sys.argv[0] = "/somewhere/bin/invoke"
import tasks
from pathlib import Path
from sm86.cli.guard import guard
def work():
    try:
        open({began!r}, "w").close()
        while True:
            signal.pause()
    finally:
        print("stopping the server", file=sys.stderr, flush=True)
        print("stopping the server", flush=True)
        Path({ended!r}).write_text("put in order")
code = guard(work)
Path({code!r}).write_text(str(code))
"""

ALL = ["SIGINT", "SIGTERM", "SIGHUP"]


def run(code: str, ignored: bool = False, number: str = "SIGINT") -> subprocess.CompletedProcess[str]:
    def begin() -> None:
        # the tests themselves may run as a job that ignores some of them
        for name in ALL:
            signal.signal(signal.Signals[name], signal.SIG_IGN if ignored and name == number else signal.SIG_DFL)

    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=begin,
    )


@pytest.mark.parametrize("number", ALL)
@pytest.mark.parametrize("name", ["/somewhere/bin/invoke", "/lib/site-packages/invoke/__main__.py"])
def test_before_a_command_has_begun(name: str, number: str) -> None:
    done = run(START.format(name=name, number=number))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sm86: interrupted\n")


def test_in_the_middle_a_command_puts_its_things_in_order() -> None:
    done = run(INSIDE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "put in order\n", "sm86: interrupted\n")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_being_asked_to_end_is_taken_as_ctrl_c_once(number: str) -> None:
    done = run(TWICE.format(number=number))
    assert (done.returncode, done.stdout, done.stderr) == (130, "True True\nput in order\n", "sm86: interrupted\n")


def test_a_closed_terminal_does_not_stop_what_is_put_in_order(tmp_path: Path) -> None:
    began, ended, code = (tmp_path / name for name in ("began", "ended", "code"))
    os.mkfifo(began)
    words = CLOSED_TERMINAL.format(began=str(began), ended=str(ended), code=str(code))
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    child = subprocess.Popen(
        [sys.executable, "-c", words], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal
    )
    os.close(theirs)
    with open(began):
        pass
    os.close(ours)
    assert child.wait(60) == 0
    assert (ended.read_text(), code.read_text()) == ("put in order", "130")


@pytest.mark.parametrize("number", ALL)
def test_a_job_that_ignores_it_goes_on(number: str) -> None:
    code = START.format(name="/somewhere/bin/invoke", number=number)
    assert run(code, ignored=True, number=number).stdout == "went on\n"


def test_another_program_that_loads_the_tasks_keeps_its_own_way() -> None:
    done = run(START.format(name="/lib/pytest/__main__.py", number="SIGINT"))
    assert "KeyboardInterrupt" in done.stderr
    assert run(START.format(name="/lib/pytest/__main__.py", number="SIGTERM")).returncode == -signal.SIGTERM
