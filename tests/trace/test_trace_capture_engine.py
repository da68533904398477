"""A capture on a real engine: vLLM's CPU build in its container, started with a profiler, recorded while it decodes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BUILD_S, ROOT

BOOT_S, CAPTURE_S = 700, 600
STEPS = 12

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.timeout(BUILD_S + BOOT_S + CAPTURE_S)]


def invoke(*arguments: str, within_s: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "invoke", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=within_s, check=False)


def test_decode_steps_of_a_real_engine_are_recorded(cpu_image: str, tmp_path: Path) -> None:
    from sm86.host.docker import require_engine

    docker = require_engine()
    if docker.container("cpu-smoke"):
        pytest.skip("a container cpu-smoke is there already")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    try:
        started = invoke(
            *("up", "--envelope", "cpu-smoke", "--port", port, "--override", f"SM86_PROFILE_STEPS={STEPS}"),
            within_s=BOOT_S,
        )
        assert started.returncode == 0, started.stdout + started.stderr
        done = invoke(
            *("trace.capture", "--envelope", "cpu-smoke", "--out", str(tmp_path), "--json"), within_s=CAPTURE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        invoke("down", "--envelope", "cpu-smoke", within_s=120)
    told = json.loads(done.stdout)
    assert told["decode_steps"] == STEPS and told["mark"] == "CPU"
    assert {v["name"]: v["state"] for v in told["verdicts"]} == {"captured": "pass", "gpu-kernels": "not applicable"}
    assert (tmp_path / told["files"]["0"]).stat().st_size > 10_000
    (ROOT / told["record"]).unlink()
    assert docker.container("cpu-smoke") is None
