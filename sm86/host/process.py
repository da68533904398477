"""Running a command and saying plainly what went wrong. The only module that starts subprocesses for others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sm86.errors import CouldNotRun


@dataclass(frozen=True, slots=True)
class Result:
    """A finished command: its argument list, exit code and what it printed (UTF-8, bad bytes replaced)."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    def last_words(self, count: int = 5) -> tuple[str, ...]:
        """The last lines that are not empty, of stderr or else stdout: what to show a person."""
        lines = [line for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return tuple(lines[-count:])


def run(
    argv: Sequence[str],
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: str = "",
) -> Result:
    """Run to the end within `timeout` seconds and return the result, whatever the exit code.

    `env` is added to this process's environment. Raises CouldNotRun when the program does not exist,
    may not be run, or does not end in time (it is killed then).
    """
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError:
        raise CouldNotRun(f"there is no program {argv[0]!r}", f"install {argv[0]}, or put it on PATH") from None
    except PermissionError:
        raise CouldNotRun(f"{argv[0]!r} may not be run", "check its permissions") from None
    except subprocess.TimeoutExpired:
        raise CouldNotRun(
            f"{' '.join(argv[:3])} did not end within {timeout:.0f} s", "see whether its service hangs, then try again"
        ) from None
    return Result(tuple(argv), done.returncode, done.stdout, done.stderr)
