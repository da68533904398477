"""From a call to an exit code: faults become one line and a mend, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_INTERRUPTED, CouldNotRun, Sm86Error

TRACEBACK_VARIABLE = "SM86_TRACEBACK"


def guard(call: Callable[[], int]) -> int:
    """Run `call` and return its exit code, or the code of the fault it raised, told in words on stderr.

    A fault of the program itself (any other exception) is told as such; SM86_TRACEBACK=1 shows where.
    """
    try:
        code = call()
        sys.stdout.flush()
        return code
    except Sm86Error as error:
        tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("sm86: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader (a pager, head) has gone; Python would complain again when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_COULD_NOT_RUN
    except Exception as error:
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
    print(f"sm86: {error.what}", file=sys.stderr)
    for line in error.evidence:
        print(f"  | {line}", file=sys.stderr)
    print(f"mend: {error.mend}", file=sys.stderr)


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
