"""Wrong arguments end with exit code 2: invoke alone says 1, which here means that a check failed."""

from __future__ import annotations

from typing import Any

from sm86.cli.interrupt import watch_start


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
        try:
            return original(self, argv)
        except (ParseError, ValueError) as error:
            if getattr(self, "ignore_unknown", False):
                raise
            words = " ".join(str(error).split())
            raise Exit(
                f"sm86: {words}\nmend: `invoke --list` shows the tasks, `invoke --help TASK` one of them", 2
            ) from None

    parse_argv.sm86 = True  # type: ignore[attr-defined]
    Parser.parse_argv = parse_argv  # type: ignore[method-assign]
