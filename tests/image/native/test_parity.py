"""The parity script's judgement, without a GPU: what it lets pass and what it does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "native_parity.py"
spec = importlib.util.spec_from_file_location("native_parity", SCRIPT)
assert spec is not None and spec.loader is not None
parity = importlib.util.module_from_spec(spec)
spec.loader.exec_module(parity)


@pytest.mark.parametrize(
    ("facts", "agrees"),
    [
        ({"between": 0.0, "native": 2e-3, "wheel": 2e-3}, True),
        ({"between": 1e-3, "native": 2.05e-3, "wheel": 2e-3}, True),
        ({"between": 1e-3, "native": 2.2e-3, "wheel": 2e-3}, False),
        ({"between": 3e-3, "native": 1e-3, "wheel": 2e-3}, False),
        ({"between": float("nan"), "native": 1e-3, "wheel": 2e-3}, False),
        ({"between": 0.0, "native": float("nan"), "wheel": 2e-3}, False),
        ({"differing": 0.0}, True),
        ({"differing": 1.0}, False),
    ],
)
def test_judgement(facts, agrees):
    assert parity.judge("x", facts)[0] is agrees


def test_without_libraries_it_says_which_is_missing(tmp_path):
    argv = [sys.executable, str(SCRIPT), "--native", str(tmp_path), "--wheel", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "has no _C_stable_libtorch.abi3.so" in done.stderr and "mend:" in done.stderr
