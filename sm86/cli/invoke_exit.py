"""Wrong arguments end with exit code 2: invoke alone says 1, which here means that a check failed. Help comes when it
is asked for, and ends as every command does."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from sm86.cli.guard import guard
from sm86.cli.interrupt import watch_start

HELP = "--help"


def install() -> None:
    """Let invoke's argument parser end the program with code 2, its own words and a mend.

    Called when tasks.py is loaded, which is before invoke parses the tasks' arguments. An interrupt between the two is
    taken care of as well.
    """
    watch_start()
    from invoke.exceptions import Exit, ParseError
    from invoke.parser import Parser

    original = Parser.parse_argv
    if getattr(original, "sm86", False):
        return

    def parse_argv(self: Any, argv: list[str]) -> Any:
        if getattr(self, "ignore_unknown", False):
            return original(self, argv)
        from sm86.cli.mistyped import explain, unknown_option

        argv = _with_help_first(self, argv)
        told = unknown_option(argv, self.contexts, self.initial)
        if told is None:
            try:
                return original(self, argv)
            except (ParseError, ValueError) as error:
                told = explain(argv, self.contexts, self.initial, " ".join(str(error).split()))
        raise Exit(f"sm86: {told[0]}\nmend: {told[1]}", 2) from None

    parse_argv.sm86 = True  # type: ignore[attr-defined]
    Parser.parse_argv = parse_argv  # type: ignore[method-assign]
    _mind_the_output()


def _mind_the_output() -> None:
    """Help and the list of tasks are printed by invoke itself: into a pipe whose reader has gone, or a full disk, they
    end as every command does."""
    from invoke.exceptions import Exit
    from invoke.program import Program

    original = Program.parse_cleanup

    def parse_cleanup(self: Any) -> None:
        try:
            try:
                original(self)
            finally:
                if sys.stdout is not None:  # closed before the start
                    sys.stdout.flush()
        except OSError as error:
            raise Exit(code=guard(partial(_raise, error))) from None

    Program.parse_cleanup = parse_cleanup  # type: ignore[method-assign]


def _raise(error: OSError) -> int:
    raise error


def _with_help_first(parser: Any, argv: list[str]) -> list[str]:
    """`TASK ... --help` asks for help, also where invoke would take "--help" for the argument that TASK needs: the
    words of a task that can answer are replaced by `--help` and its name, as if nothing else had been asked."""
    if HELP not in argv:
        return argv
    before = argv[: argv.index(HELP)]
    task = next((word for word in reversed(before) if word in parser.contexts), None)
    if task is None or parser.initial is None or "help" not in parser.initial.args:
        return argv
    parser.initial.args["help"].value = task
    return []
