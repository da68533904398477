"""What a command would do, for `--dry-run`: the words, or with `--json` the same lines for a program."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterable

from sm86.errors import EXIT_OK

SCHEMA = "sm86.dry-run"
VERSION = 1


def tell_intended(task: str, lines: Iterable[str], json: bool) -> int:
    """Print the lines, or as JSON: `task`, and `lines` without their indentation. Returns exit code 0."""
    told = list(lines)
    if json:
        values = {"schema": SCHEMA, "version": VERSION, "task": task, "lines": [line.strip() for line in told]}
        print(json_module.dumps(values, indent=2))
    else:
        print("\n".join(told))
    return EXIT_OK
