"""Ctrl-C before a command has begun: the same words and exit code as in the middle of one, and no traceback.

Between the moment that invoke loads tasks.py and the moment that `guard` is entered lie the imports of a command, some
tenths of a second on a slow machine. An interrupt there would end in invoke's hands, with a traceback or with exit code
1. What Python and invoke do before tasks.py is theirs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from sm86.errors import EXIT_INTERRUPTED

WORDS = b"sm86: interrupted\n"


def _end(signum: int, frame: FrameType | None) -> None:
    # nothing has been begun that would have to be put in order, and imports may be half done
    os.write(2, WORDS)
    os._exit(EXIT_INTERRUPTED)


def watch_start() -> None:
    """From now on Ctrl-C ends the program at once. Only for a program that invoke runs, and only where Ctrl-C is not
    ignored (a job in the background)."""
    by_invoke = "invoke" in Path(sys.argv[0]).parts[-2:] if sys.argv else False
    if by_invoke and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begun() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again, so that a command can put its things in order."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
