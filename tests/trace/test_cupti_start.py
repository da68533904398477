"""The experiment's counting: a launch that lost kernels is told from one that the session's end cut."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "benchmarks" / "cupti_start.py"
_spec = importlib.util.spec_from_file_location("cupti_start", FILE)
assert _spec is not None and _spec.loader is not None
cupti = importlib.util.module_from_spec(_spec)
sys.modules["cupti_start"] = cupti
_spec.loader.exec_module(cupti)


def events(*kernels: int, untimed: int = 0):
    """One launch for each number, with so many kernels."""
    made = []
    for at, count in enumerate(kernels):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 10.0 * at + 1, "dur": 2}
        made.append({**call, "args": {"correlation": at + 1}})
        made += [
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "ts": 10.0 * at + 2 + n,
                "dur": 1,
                "args": {"correlation": at + 1},
            }
            for n in range(count)
        ]
    made += [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 0, "args": {"correlation": 1}}] * untimed
    return made


def test_whole_launches_have_lost_nothing() -> None:
    found = cupti.judge(events(4, 4, 4), nodes=4)
    assert (found.launches, found.whole, found.lost, found.untimed, found.cut) == (3, 3, (), 0, 0)


def test_what_is_missing_at_the_start_is_lost_and_at_the_end_cut() -> None:
    found = cupti.judge(events(0, 1, 4, 4, 0), nodes=4)
    assert found.lost == ((0, 4), (1, 3)) and found.cut == 1 and found.whole == 2


def test_a_partial_launch_at_the_end_has_lost_kernels() -> None:
    assert cupti.judge(events(4, 4, 2), nodes=4).lost == ((2, 2),)


def test_kernels_without_a_time_and_without_a_launch_are_counted() -> None:
    assert cupti.judge(events(3, 4, untimed=1), nodes=4).untimed == 1
    orphan = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": 99}}] * 3
    assert cupti.judge([*orphan, *events(4)], nodes=4).orphans == 3


def test_the_table_says_what_was_lost_where() -> None:
    facts = {"gpu": "GPU", "torch": "2.11.0", "cuda": "13.0", "launches": 60, "whole": 59, "untimed": 0}
    lossy = {**facts, "lost": [[0, 17]]}
    lines, lost = cupti.table({"busy": [{**facts, "lost": []}], "idle-10": [lossy, lossy, {"failed": "no memory"}]})
    text = "\n".join(lines)
    assert lost and "launch 0: 2x" in text and "failed: no memory" in text and lines[-1] == "kernels were lost"
    assert cupti.table({"busy": [{**facts, "lost": []}]})[0][-1] == "nothing was lost"
    assert cupti.table({"busy": [{"failed": "x"}]})[0][-1] == "nothing was measured"


def test_the_run_on_a_gpu_lost_nothing_and_one_condition_was_not_run() -> None:
    document = json.loads((Path(__file__).parent / "data" / "cupti-h200.json").read_text())
    ran = {name: runs[0] for name, runs in document["runs"].items() if "failed" not in runs[0]}
    assert sorted(ran) == ["again", "busy", "idle-0", "idle-10"] and set(document["runs"]) - set(ran) == {"warmed"}
    for run in ran.values():
        assert (run["gpu"], run["torch"], run["launches"]) == ("NVIDIA H200", "2.11.0+cu130", document["replays"])
    lines, lost = cupti.table(document["runs"])
    assert not lost and lines[-1] == "nothing was lost"
    assert any("left out: the budget" in line for line in lines)


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    done = subprocess.run([sys.executable, "-P", str(FILE)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and done.stderr.startswith("cupti_start: ") and not done.stdout
