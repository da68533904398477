"""How long a program for GPUs may take: it ends by itself, in words if it can, and never hangs.

A program asks `allows` before each piece of work and says what it leaves out. What still does not come back (a kernel
that waits, a library that holds the interpreter) is ended by a watch, which first prints every thread's stack.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Callable

from sm86.errors import EXIT_COULD_NOT_RUN, CouldNotRun

GRACE_S = 15.0
"""From the end of the budget to the watch: the time to end processes and to write what there is."""
HARD_S = 10.0
"""From the watch in Python to the one in C, which needs no interpreter."""


class Budget:
    """Seconds from now on; None: without end. Reads the monotonic clock."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = math.inf if seconds is None else clock() + seconds

    def left(self) -> float:
        """Seconds, infinite without a budget, never negative."""
        return max(0.0, self._end - self._clock())

    def allows(self, seconds: float) -> bool:
        """Whether work of so many seconds still fits."""
        return self.left() > seconds

    def words(self) -> str:
        """Why something was left out."""
        return f"left out: the budget of {self.seconds:g} s was spent"


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--budget-s` of a program."""
    words = "seconds for all of it; at their end the program writes what it has and says what it left out"
    parser.add_argument("--budget-s", type=float, metavar="S", help=words)


def budget_of(arguments: argparse.Namespace, clean_up: Callable[[], object] = lambda: None) -> Budget:
    """The program's budget, watched. clean_up: ends its processes. Raises CouldNotRun for no sensible number."""
    seconds = arguments.budget_s
    if seconds is not None and not 1 <= seconds <= 86_400:
        raise CouldNotRun(f"--budget-s is {seconds:g}", "give seconds from 1 to 86400")
    if seconds is not None:
        watch(seconds + GRACE_S, clean_up)
    return Budget(seconds)


def watch(seconds: float, clean_up: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """After so many seconds print every thread's stack, clean up, and end the process. Gives what calls it off."""

    def end() -> None:
        print(f"not at its end after {seconds:g} s; where every thread is:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        try:
            clean_up()
        finally:
            os._exit(EXIT_COULD_NOT_RUN)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    # where the interpreter itself is held; its exit code is 1
    faulthandler.dump_traceback_later(seconds + HARD_S, exit=True)

    def off() -> None:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    return off


def progress(words: str) -> None:
    """One line now, on stderr."""
    print(words, file=sys.stderr, flush=True)
