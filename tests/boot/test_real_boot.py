"""The embedded default through `up`, `status`, `logs` and `down`: a real engine, in a container and as a process."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from tests.conftest import BUILD_S

ROOT = Path(__file__).parents[2]
BOOT_S = 900

pytestmark = [pytest.mark.engine, pytest.mark.timeout(BOOT_S + BUILD_S)]


def docker_is_ready():
    """None, or why a container cannot be booted here."""
    from sm86.host.docker import require_engine

    try:
        docker = require_engine()
    except CouldNotRun as fault:
        return fault.what
    return "a container cpu-smoke is there already" if docker.container("cpu-smoke") else None


def local_is_ready():
    """None, or why a process cannot be booted here; `up` makes the engine's environment where it is missing."""
    running = (ROOT / ".cache" / "run" / "cpu-smoke" / "server.json").exists()
    return "cpu-smoke runs already" if running else None


def invoke(*words):
    argv = [sys.executable, "-m", "invoke", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BOOT_S + BUILD_S, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("engine", [pytest.param("docker", marks=pytest.mark.docker), "local"])
def test_a_real_engine_lives_and_dies(engine, request):
    missing = docker_is_ready() if engine == "docker" else local_is_ready()
    if missing:
        pytest.skip(missing)
    if engine == "docker":
        request.getfixturevalue("cpu_image")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ("--envelope", "cpu-smoke", "--engine", engine)
    try:
        code, out, err = invoke("up", *options, "--port", port, "--json")
        assert code == 0, out + err
        told = json.loads(out)
        states = {phase["name"]: phase["state"] for phase in told["phases"]}
        assert states.pop("capture") == "not applicable"
        assert states.pop("image") == ("passed" if engine == "docker" else "not applicable")
        assert set(states.values()) == {"passed"}, states
        record = json.loads((ROOT / told["record"]).read_text())
        assert record["conditions"]["mark"] == "CPU"
        assert record["conditions"]["vllm_version"] and record["conditions"]["model_hash"]

        code, out, _ = invoke("status", *options)
        assert code == 0 and f":{port}" in out
        code, out, _ = invoke("logs", *options)
        assert code == 0 and "[sm86] manifest end" in out and "Application startup complete." in out
        code, out, _ = invoke("up", *options)
        assert code == 0 and "already serves" in out
    finally:
        code, out, err = invoke("down", *options)
    assert code == 0, out + err
    code, out, _ = invoke("status", *options)
    assert code == 1 and "not started" in out
