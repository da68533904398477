"""A ladder of two real servers on the CPU engine, interrupted in its second rung and finished by the next command."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm86.cli.engines import open_engine
from sm86.host.build import git_state
from sm86.host.engine import MISSING
from sm86.ladder import state as s
from sm86.ladder.climb import BOOT
from sm86.record import load
from sm86.report import curve
from sm86.spec import load_envelope
from tests.conftest import BUILD_S, ROOT

ONE = ROOT / "tests/ladder/data/cpu-one.toml"
LADDER_S = 1500

pytestmark = [pytest.mark.engine, pytest.mark.timeout(BUILD_S + 2 * LADDER_S)]

CALL = """
import sys
from pathlib import Path
from sm86.cli.guard import guard
from sm86.cli.ladder import ladder
envelopes, port, results, resume = sys.argv[1:]
options = {"engine": "local", "port": port, "repeats": 1, "resume": resume == "resume", "json": True}
sys.exit(guard(lambda: ladder("sequence", envelopes, results=Path(results), **options)))
"""


def start(port: int, results: Path, resume: str = "") -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", CALL, f"{ONE},cpu-smoke", str(port), str(results), resume]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def server(name: str):
    return open_engine(load_envelope(name), "local")


def begun(path: Path, child: subprocess.Popen[str], key: str) -> bool:
    """Waits until the ladder has begun to boot that rung; False: it ended before."""
    until = time.monotonic() + BUILD_S + LADDER_S
    while child.poll() is None:
        assert time.monotonic() < until, "the ladder does not come to its second rung"
        time.sleep(0.2)
        if path.exists():
            outcome = s.from_text(path.read_text(encoding="utf-8"), str(path)).outcomes.get(key)
            if outcome is not None and outcome.step == BOOT and server("cpu-smoke").state().is_up:
                return True
    return False


def test_two_rungs_with_an_interruption(tmp_path: Path) -> None:
    for name in ("cpu-smoke", str(ONE)):
        if server(name).state().kind != MISSING:
            pytest.skip(f"{name} runs already")
    before = git_state(ROOT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "ladder-sequence" / s.FILE

    child = start(port, tmp_path)
    if begun(path, child, "cpu-smoke"):
        child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LADDER_S)
    if git_state(ROOT) != before:
        pytest.skip("the revision changed meanwhile, and a ladder of two revisions is refused")
    assert child.returncode == 130, out + err
    assert out == "" and "Traceback" not in err and "invoke ladder.sequence --resume" in err
    assert server("cpu-smoke").state().kind == MISSING and server(str(ONE)).state().kind == MISSING
    kept = s.from_text(path.read_text(encoding="utf-8"), str(path))
    assert kept.outcomes["cpu-one"].state == s.PASSED and kept.next_key == "cpu-smoke"

    child = start(port, tmp_path, "resume")
    out, err = child.communicate(timeout=LADDER_S)
    if git_state(ROOT) != before:
        pytest.skip("the revision changed meanwhile, and a ladder of two revisions is refused")
    assert "Traceback" not in err and out, err
    record = json.loads(out)
    rungs = {rung["key"]: rung for rung in record["details"]["rungs"]}
    assert [(key, rung["state"]) for key, rung in rungs.items()] == [("cpu-one", "passed"), ("cpu-smoke", "passed")], (
        err
    )
    # changes that are not committed are a finding beside the numbers, and end nothing
    assert child.returncode == (1 if before[1] else 0), err
    assert record["details"]["complete"] is True and record["conditions"]["mark"] == "CPU"
    assert all(rung["tok_s"] > 0 and rung["published_tok_s"] is None for rung in rungs.values())
    assert len(list((tmp_path / "cpu-one").glob("*-boot.json"))) == 1, "what had passed was not run again"
    for rung in rungs.values():
        kinds = [load(Path(file)).kind for file in rung["records"]]
        assert kinds == ["boot", "bench", "verify"]
        bench = load(Path(rung["records"][1]))
        telemetry = next(verdict for verdict in bench.verdicts if verdict.name == "telemetry")
        assert telemetry.state == "not applicable" and "no GPU" in telemetry.text
        assert list((tmp_path / rung["envelope"]).glob("*-server.log"))
    (saved,) = (tmp_path / "ladder-sequence").glob("*-ladder.json")
    assert [point.sequences for point in curve.points(load(saved))] == [1, 2]
    assert saved.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert server("cpu-smoke").state().kind == MISSING
