"""What a person is told when something cannot be done: one line what, one line how to mend it.

Every module raises these; only the command line (`sm86.cli`) turns them into words and an exit code.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FINDING = 1
EXIT_COULD_NOT_RUN = 2
EXIT_INTERRUPTED = 130


def printable(line: str) -> str:
    """One line in which control characters are shown, not sent to the terminal: names in it may come from a file or a
    server. Tabs stay."""
    return "".join(sign if sign.isprintable() or sign == "\t" else _shown(sign) for sign in line)


def _shown(sign: str) -> str:
    return sign.encode("unicode_escape", "backslashreplace").decode("ascii")


class Sm86Error(Exception):
    """A fault a person can mend.

    what: one line, no trailing full stop needed; mend: one line that says what to do about it.
    evidence: further lines to show (log lines, the failing command's own words); may be empty.
    """

    exit_code = EXIT_COULD_NOT_RUN

    def __init__(self, what: str, mend: str, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.what = " ".join(what.split())
        self.mend = " ".join(mend.split())
        self.evidence = evidence


class CouldNotRun(Sm86Error):
    """Nothing was judged: bad input, no Docker, no GPU. Exit code 2."""

    exit_code = EXIT_COULD_NOT_RUN


class CheckFailed(Sm86Error):
    """Something ran and the answer is no: a rule failed, a server died in the middle. Exit code 1."""

    exit_code = EXIT_FINDING
