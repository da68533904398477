"""Ctrl-C before a command has begun: the same words and exit code as in the middle of one, and no traceback. And what
else asks a program to end: SIGTERM, and SIGHUP where a connection breaks, are taken as Ctrl-C is.

Between the moment that invoke loads tasks.py and the moment that `guard` is entered lie the imports of a command, some
tenths of a second on a slow machine. An interrupt there would end in invoke's hands, with a traceback or with exit code
1. What Python and invoke do before tasks.py is theirs.

Python puts things in order for Ctrl-C alone. A server on the GPUs would outlive the ladder that started it when the
terminal closes, and nobody would know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from sm86.errors import EXIT_INTERRUPTED

WORDS = b"sm86: interrupted\n"
ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)


def _end(signum: int, frame: FrameType | None) -> None:
    # nothing has been begun that would have to be put in order, and imports may be half done
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, WORDS)
    os._exit(EXIT_INTERRUPTED)


def watch_start() -> None:
    """From now on Ctrl-C, SIGTERM and SIGHUP end the program at once. Only for a program that invoke runs, and only
    those that are not ignored (a job in the background, `nohup`)."""
    if not sys.argv or "invoke" not in Path(sys.argv[0]).parts[-2:]:
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    for number in ASKED_TO_END:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def begun() -> None:
    """From now on each of them is a KeyboardInterrupt, so that a command can put its things in order."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ASKED_TO_END:
        if signal.getsignal(number) is _end:
            signal.signal(number, _as_ctrl_c)


def _as_ctrl_c(signum: int, frame: FrameType | None) -> None:
    for number in ASKED_TO_END:
        # shell and kernel both send SIGHUP: the second must not cut short what the first began. Ctrl-C still does.
        # No SIG_IGN: programs that are started to put things in order would inherit it
        if signal.getsignal(number) is _as_ctrl_c:
            signal.signal(number, _pass_over)
    if signum == signal.SIGHUP:
        _leave_the_terminal()
    raise KeyboardInterrupt


def _pass_over(signum: int, frame: FrameType | None) -> None:
    """Once is enough."""


def _leave_the_terminal() -> None:
    """A closed terminal refuses every word: the first one said while a server is stopped would end the stopping."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if os.isatty(stream) or not _takes_words(stream):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)


def _takes_words(stream: int) -> bool:
    """Whether it is no terminal that was hung up, which does not even say that it is one."""
    try:
        os.write(stream, b"")
    except OSError:
        return False
    return True
