"""Programs for GPUs end by themselves: in words while they can, by the watch where they hang."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.backend.testing.budget import Budget, add_option, budget_of
from sm86.errors import CouldNotRun

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_left_of_a_budget() -> None:
    now = [100.0]
    budget = Budget(30.0, lambda: now[0])
    assert budget.left() == 30.0 and budget.allows(29.0) and not budget.allows(30.0)
    now[0] = 129.0
    assert budget.allows(0.5) and not budget.allows(1.5)
    now[0] = 200.0
    assert budget.left() == 0.0 and not budget.allows(0.0) and "30 s" in budget.words()
    assert Budget(None).allows(1e12)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9"])
def test_a_budget_must_be_sensible(text: str) -> None:
    parser = argparse.ArgumentParser()
    add_option(parser)
    with pytest.raises(CouldNotRun, match="--budget-s"):
        budget_of(parser.parse_args(["--budget-s", text]))
    assert budget_of(parser.parse_args([])).seconds is None


HANGS = {
    "in Python": "import time\ndef stuck(): time.sleep(600)\nstuck()",
    "behind a thread": "import threading\ndef stuck(): threading.Event().wait()\n"
    "one = threading.Thread(target=stuck); one.start(); one.join()",
}


@pytest.mark.parametrize("hang", HANGS)
def test_what_hangs_is_ended_with_every_stack(hang: str) -> None:
    script = "from sm86.backend.testing.budget import watch\nwatch(2.0, lambda: print('cleaned', flush=True))\n"
    done = subprocess.run([sys.executable, "-c", script + HANGS[hang]], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == "cleaned\n"
    assert "not at its end" in done.stderr and "in stuck" in done.stderr, done.stderr


def test_a_library_that_holds_the_interpreter_is_ended_too() -> None:
    """No Python thread can run then; the watch in C ends it."""
    script = (
        "import ctypes\nfrom sm86.backend.testing import budget\nbudget.HARD_S = 1.0\nbudget.watch(1.0)\n"
        "ctypes.PyDLL(None).sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "most recent call first" in done.stderr


def test_a_watch_can_be_called_off() -> None:
    script = (
        "import time\nfrom sm86.backend.testing.budget import watch\nwatch(1.0)()\ntime.sleep(1.5)\nprint('whole')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "whole\n")
