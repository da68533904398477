"""Ctrl-C before a command has begun."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# as invoke does it: its name in argv, tasks.py loaded, then the interrupt, before any guard
START = """
import os, signal, sys
sys.argv[0] = {name!r}
import tasks
os.kill(os.getpid(), signal.SIGINT)
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


def run(code: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    action = signal.SIG_IGN if ignored else signal.SIG_DFL
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, action),
    )


@pytest.mark.parametrize("name", ["/somewhere/bin/invoke", "/lib/site-packages/invoke/__main__.py"])
def test_before_a_command_has_begun(name: str) -> None:
    done = run(START.format(name=name))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sm86: interrupted\n")


def test_in_the_middle_a_command_puts_its_things_in_order() -> None:
    done = run(INSIDE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "put in order\n", "sm86: interrupted\n")


def test_a_job_that_ignores_it_goes_on() -> None:
    assert run(START.format(name="/somewhere/bin/invoke"), ignored=True).stdout == "went on\n"


def test_another_program_that_loads_the_tasks_keeps_its_own_way() -> None:
    done = run(START.format(name="/lib/pytest/__main__.py"))
    assert "KeyboardInterrupt" in done.stderr
