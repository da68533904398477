"""`invoke test`: every check of the repository, in the order in which a fault is cheapest to find."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sm86.errors import CheckFailed, CouldNotRun

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = ("docker/Dockerfile",)


def test(fast: bool = False) -> int:
    """Run lint, types, rendered files, Dockerfile lint and the tests; the first that fails ends it.

    fast: leave out the tests that need a Docker engine or boot an engine. Exit code 0, or raises
    CheckFailed; CouldNotRun when a tool is not installed.
    """
    python = sys.executable
    selection = ["-m", "not docker and not engine"] if fast else []
    steps: list[tuple[str, Callable[[], list[str]]]] = [
        ("lint", lambda: [python, "-m", "ruff", "check", "."]),
        ("format", lambda: [python, "-m", "ruff", "format", "--check", "."]),
        ("types", lambda: [python, "-m", "mypy"]),
        ("rendered files", lambda: [python, "-m", "invoke", "render", "--check"]),
        ("Dockerfile", lambda: [_beside_python("hadolint"), *DOCKERFILES]),
        ("tests", lambda: [python, "-m", "pytest", "-q", *selection]),
    ]
    for name, argv in steps:
        _run(name, argv())
    return 0


def _beside_python(program: str) -> str:
    path = Path(sys.executable).parent / program
    if not path.exists():
        raise CouldNotRun(f"{program} is not installed", "install the test extra: pip install -e '.[host,test]'")
    return str(path)


def _run(name: str, argv: list[str]) -> None:
    print(f"== {name}", flush=True)
    started = time.monotonic()
    code = subprocess.run(argv, cwd=ROOT, check=False).returncode
    if code:
        raise CheckFailed(f"{name}: failed with exit code {code}", f"see above; to repeat it alone: {' '.join(argv)}")
    print(f"   {name}: passed in {time.monotonic() - started:.1f} s", flush=True)
