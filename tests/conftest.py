"""What several areas share: the CPU image, built once for all tests that boot it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
BUILD_S = 2400


# A landing is judged on the same examples every time; a developer's runs go on looking for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")

# Records lie at the top of the clone by default; a test's belong into the folder that the test works in.
os.environ.setdefault("SM86_RESULTS", "results")

# A job that a script put into the background starts with SIGINT ignored, and its children inherit that: the tests that
# interrupt a command would then wait for ever. A handler of our own makes children start with the usual one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cpu_image() -> str:
    """Name of the CPU image of this very tree, built by the product's own command (minutes the first time).

    Skips only where no Docker engine answers; a build that fails is a failure of the tests.
    """
    from sm86.errors import CouldNotRun
    from sm86.host.docker import require_engine
    from sm86.image.names import image_name

    try:
        require_engine()
    except CouldNotRun as fault:
        pytest.skip(fault.what)
    argv = [sys.executable, "-m", "invoke", "build", "--target", "cpu"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return image_name("cpu")
