"""The driver with ranks that answer, refuse, die, hang and lie; none outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm86.comm import answer, driver, nccl_log
from sm86.comm.driver import environment_of, judge, run
from sm86.comm.matrix import settings
from sm86.comm.plan import Plan
from tests.comm.made import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
SETTING = BY_NAME["nccl-ring-ll"]

RANK = """
import json, os, sys, time
order = json.loads(sys.stdin.readline())
def say(**more):
    cells = {str(s): {"us": 5.0 + order["rank"], "error": 0.3, "bit_equal": True, "ran": ""} for s in order["sizes"]}
    base = {"rank": order["rank"], "state": "measured", "why": "", "cells": cells, "facts": {"torch": "2.11.0"}}
    print("a library's own words", flush=True)
    print("SM86-COMM " + json.dumps({**base, **more}), flush=True)
def nccl(text):
    with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
        log.write("rig:1:1 [0] NCCL " + text + "\\n")
"""


def made(body: str, limit_s: float = 30.0, ranks: int = 2):
    plan = Plan(ranks, "cuda", (8192, 32768), 87, settings(), 3, limit_s=limit_s)
    return run(plan, SETTING, 1, [sys.executable, "-c", RANK + body])


def test_the_slowest_rank_counts_and_nccl_says_what_ran() -> None:
    done = made(
        "say()\n"
        "if order['rank'] == 0:\n"
        "    nccl('INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}')\n"
        "    nccl('INFO AllReduce: 32768 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}')\n"
        "nccl('INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct')\n"
    )
    assert done.state == answer.MEASURED, done.why
    assert done.cells[8192].us == 6.0
    assert done.cells[8192].ran == "Ring LL, 2 channels"
    assert done.facts["transports"] == {"SHM/direct/direct": 2}
    assert (done.setting, done.repeat) == ("nccl-ring-ll", 1)


def test_a_refusal_of_nccl_is_told_in_its_own_words() -> None:
    done = made(
        "nccl('WARN Error : no algorithm/protocol available for function AllReduce with datatype ncclBfloat16.')\n"
        "say(state='failed', why='DistBackendError: NCCL error', cells={})\n"
    )
    assert done.state == answer.UNAVAILABLE
    assert done.why.startswith("Error : no algorithm/protocol available")


def test_a_rank_that_dies_is_named_and_the_others_do_not_hang() -> None:
    began = time.monotonic()
    done = made(
        "if order['rank'] == 1:\n    print('CUDA error: an illegal memory access', file=sys.stderr)\n    os._exit(7)\n"
        "time.sleep(600)\n",
        limit_s=300.0,
    )
    assert done.state == answer.FAILED
    assert done.why == "rank 1 ended with code 7: CUDA error: an illegal memory access"
    assert time.monotonic() - began < 100


def test_a_hang_ends_in_its_limit_and_names_the_missing() -> None:
    done = made("if order['rank'] == 0:\n    say()\nelse:\n    time.sleep(600)\n", limit_s=2.0)
    assert done.state == answer.TIMEOUT
    assert done.why == "no answer from rank 1"


@pytest.mark.parametrize("error", ["1.01", "float('inf')", "float('nan')"])
def test_wrong_values_are_no_measurement(error: str) -> None:
    done = made(
        f"bad = {{'us': 1.0, 'error': {error}, 'bit_equal': True, 'ran': ''}}\n"
        "good = {**bad, 'error': 0.2}\n"
        "say(cells={'8192': bad if order['rank'] else good, '32768': good})\n"
    )
    assert done.state == answer.WRONG
    assert "8192 bytes" in done.why and "32768" not in done.why
    json.loads(json.dumps(done.to_json(), allow_nan=False))


def test_what_is_not_bit_equal_on_one_rank_is_not_bit_equal() -> None:
    cell = {"us": 1.0, "error": 0.2, "ran": ""}
    answers = [
        {"state": answer.MEASURED, "cells": {"8192": {**cell, "bit_equal": equal}}, "facts": {}}
        for equal in (True, False)
    ]
    assert not judge(SETTING, 0, answers, nccl_log.parse([]), 1.0).cells[8192].bit_equal


def test_the_shells_nccl_settings_do_not_leak_into_a_row() -> None:
    base = {"NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "9", "NCCL_CUMEM_HOST_ENABLE": "0", "PATH": "/bin"}
    base["NCCL_NVLS_ENABLE"] = "0"  # a machine whose switch others share
    given = environment_of(BY_NAME["nccl-tree-ll128"], base, Path("/f"), 3)
    assert given["NCCL_ALGO"] == "AllReduce:Tree" and given["NCCL_PROTO"] == "AllReduce:LL128"
    assert "NCCL_MAX_NCHANNELS" not in given
    assert given["NCCL_CUMEM_HOST_ENABLE"] == given["NCCL_NVLS_ENABLE"] == "0" and given["PATH"] == "/bin"
    assert given["NCCL_DEBUG_FILE"] == "/f/nccl-3.log"
    assert "NCCL_DEBUG" not in environment_of(BY_NAME["sm86-host"], base, Path("/f"), 0)


def test_ranks_end_when_the_driver_is_killed(tmp_path_factory) -> None:
    tmp_path, folder = tmp_path_factory.mktemp("pids"), tmp_path_factory.mktemp("left")
    plan = Plan(2, "cpu", (8192,), 4, (BY_NAME["nccl"],), 1)
    body = (
        "from sm86.comm import driver, worker\n"
        "import sys\n"
        "rank = [sys.executable, '-c', 'import sys, time, os, pathlib; from sm86.comm import worker; '\n"
        "    'sys.stdin.readline(); worker._end_with_driver(); '\n"
        f"    'pathlib.Path(\"{tmp_path}/\" + str(os.getpid())).touch(); time.sleep(600)']\n"
        "from sm86.comm.plan import plan_of\n"
        f"import json; plan = plan_of(json.loads({json.dumps(json.dumps(plan.to_json()))}))\n"
        "driver.run(plan, plan.settings[0], 0, rank)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", body], cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)})
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
        child.kill()
        child.wait()
        pids = [int(path.name) for path in tmp_path.iterdir()]
        deadline = time.monotonic() + 60
        while any(_alive(pid) for pid in pids):
            assert time.monotonic() < deadline, "a rank outlives its driver"
            time.sleep(0.05)
    finally:
        child.kill()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_plan_that_is_no_plan_ends_with_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sm86.comm.driver", "{}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "does not understand this plan" in done.stderr and "Traceback" not in done.stderr


def test_terminating_the_driver_ends_its_ranks(tmp_path: Path) -> None:
    body = (
        "import signal, sys\n"
        "from sm86.comm import driver, plan\n"
        "from tests.comm.made import BY_NAME\n"
        f"rank = [sys.executable, '-c', 'import os, time, pathlib; pathlib.Path(\"{tmp_path}/\" + "
        "str(os.getpid())).touch(); time.sleep(600)']\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "driver.run(plan.Plan(2, 'cpu', (8192,), 4, (BY_NAME['nccl'],), 1), BY_NAME['nccl'], 0, rank)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", body], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 130
        assert not any(_alive(int(path.name)) for path in tmp_path.iterdir())
    finally:
        child.kill()


def test_the_module_is_the_one_the_host_starts() -> None:
    from sm86.host import comm_run

    assert comm_run.DRIVER[-1] == driver.__name__
