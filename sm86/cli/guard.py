"""From a call to an exit code: faults become one line and a mend, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import TextIO

from sm86.cli.interrupt import begun
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_INTERRUPTED, CouldNotRun, Sm86Error, printable

TRACEBACK_VARIABLE = "SM86_TRACEBACK"

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})


def guard(call: Callable[[], int]) -> int:
    """Run `call` and return its exit code, or the code of the fault it raised, told in words on stderr.

    A fault of the program itself (any other exception) is told as such; SM86_TRACEBACK=1 shows where.
    """
    begun()
    # where it cannot keep its settings it says so in three lines, which is nothing that a person could mend here
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # a name in a log that the terminal's encoding cannot show must not end the command
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        tell(CouldNotRun("standard output is closed", "open it, or send it to a file"))
        return EXIT_COULD_NOT_RUN
    try:
        code = call()
        sys.stdout.flush()
        return code
    except Sm86Error as error:
        tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        _say("sm86: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader (a pager, head) has gone; Python would complain again when it closes stdout
        _to_nowhere(sys.stdout)
        return EXIT_COULD_NOT_RUN
    except SystemExit as end:
        # rich ends the program with 1 for it, which here is a finding
        if isinstance(end.__context__, BrokenPipeError):
            return EXIT_COULD_NOT_RUN
        raise
    except Exception as error:
        if isinstance(error, OSError) and (_unwritable() or error.errno in FULL):
            where = error.filename or "the output"
            tell(
                CouldNotRun(f"cannot write {where}: {error.strerror or error}", "free some space, or send it elsewhere")
            )
            return EXIT_COULD_NOT_RUN
        if isinstance(error, OSError) and error.errno in CLOSED and error.filename:
            # a look at a path, where its reading is guarded and the look is not
            tell(CouldNotRun(f"cannot use {error.filename}: {error.strerror}", "check the path and its permissions"))
            return EXIT_COULD_NOT_RUN
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        words = " ".join(str(error).split())
        tell(
            CouldNotRun(
                f"a fault of the program itself: {type(error).__name__}: {words}",
                f"run it again with {TRACEBACK_VARIABLE}=1 and report what it prints",
            )
        )
        return EXIT_COULD_NOT_RUN


def tell(error: Sm86Error) -> None:
    """The fault on stderr: what, the evidence if any, how to mend it."""
    _say(f"sm86: {error.what}", *(f"  | {line}" for line in error.evidence), f"mend: {error.mend}")


def _say(*lines: str) -> None:
    """Lines on stderr. What stands in them may come from a server or a file: control characters are shown, not sent to
    the terminal. A stderr that is closed or full takes nothing, and the exit code must still be right."""
    if sys.stderr is None:
        return
    try:
        for line in lines:
            print(printable(line), file=sys.stderr)
        sys.stderr.flush()
    except (OSError, ValueError):
        _to_nowhere(sys.stderr)


def _unwritable() -> bool:
    """Whether stdout takes nothing any more. What it still held is given up then, or Python would try again at its end
    and change the exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _to_nowhere(sys.stdout)
        return True
    return False


def _to_nowhere(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def whole_number(text: str | int | None, name: str, low: int, high: int) -> int | None:
    """An option's whole number; None stays None. CouldNotRun outside low..high or when it is none."""
    if text is None:
        return None
    try:
        number = int(str(text))
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise CouldNotRun(f"--{name} is {text!r}", f"give a whole number from {low} to {high}")
    return number


def require_values(**options: object) -> None:
    """CouldNotRun for an option that was given without a value, as a shell's unset variable gives it: the default
    would be taken in its place, unnoticed. Names are the options', with _ for -."""
    for name, value in options.items():
        if isinstance(value, str) and not value.strip():
            raise CouldNotRun(f"--{name.strip('_').replace('_', '-')} is empty", "give its value, or leave it out")
