"""The programs for GPUs, without one: they say so, read what they must, and judge what ranks tell."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm86.backend.testing import gpu_group, shared_gpu
from sm86.backend.testing.nccl import transports
from sm86.errors import CouldNotRun

ROOT = Path(__file__).resolve().parents[3]


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


speed, faults = program("allreduce_speed"), program("allreduce_faults")
serving = program("allreduce_serving")


@pytest.mark.parametrize("module", [speed, faults, serving], ids=["speed", "faults", "serving"])
@pytest.mark.parametrize("visible", ["", "GPU-1", None])
def test_without_two_gpus_they_end_with_2(
    module: Any, visible: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert module.main([]) == 2
    what, mend = capsys.readouterr().err.splitlines()
    assert "GPU" in what and mend.startswith("run it")


@pytest.mark.parametrize(
    ("module", "argv"),
    [
        (speed, ["--sizes", "x"]),
        (speed, ["--sizes", "256"]),
        (faults, ["--only", "nothing"]),
        (faults, ["--calls", "0"]),
        (faults, ["--limit", "nan"]),
        (faults, ["--emulate", "/nowhere/lib.so"]),
        (faults, ["--emulate", __file__, "--gpus", "-1"]),
        (faults, ["--emulate", __file__, "--share-gpu", "1"]),
        (faults, ["--emulate", __file__, "--share-gpu", "9"]),
        (faults, ["--emulate", __file__, "--share-gpu", "--gpus", "2"]),
        (serving, ["--modes", "2"]),
        (serving, ["--repeats", "0"]),
        (faults, ["--emulate", __file__, "--budget-s", "0"]),
        (serving, ["--budget-s", "nan"]),
    ],
)
def test_bad_input_ends_with_2(module: Any, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(argv) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_gpus_are_handed_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    assert gpu_group.gpus_for(2) == ["3", "1"] and gpu_group.gpus_for(None) == ["3", "1", "2"]
    with pytest.raises(CouldNotRun, match="4 GPUs"):
        gpu_group.gpus_for(4)


def test_a_group_collects_what_ranks_tell(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys, os, json\n"
        "rank = sys.argv[sys.argv.index('--rank') + 1]\n"
        "assert os.environ['NCCL_P2P_DISABLE'] == '1'\n"
        "print('some words')\n"
        "if rank == '1': sys.exit(3)\n"
        "print('@rank ' + json.dumps([rank, os.environ['CUDA_VISIBLE_DEVICES']]), flush=True)\n"
    )
    with gpu_group.Group(str(script), ["a", "b", "c"], []) as group:
        assert group.wait(60.0) == {0: ["0", "a"], 2: ["2", "c"]}
        assert group.words(1) == "some words\n(ended with code 3)" and not group.timed_out


def rank_script(tmp_path: Path, body: str) -> str:
    script = tmp_path / "rank.py"
    start = f"import sys, os, time\nsys.path.insert(0, {str(ROOT)!r})\n"
    start += "from sm86.backend.testing.gpu_group import begin_rank, say, tell, tell_part\nbegin_rank()\n"
    script.write_text(start + "rank = sys.argv[sys.argv.index('--rank') + 1]\n" + body)
    return str(script)


def test_a_rank_that_ends_without_a_word_ends_the_wait_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may sit in a call that the dead one never makes: the run ends long before its limit, and says where they
    were."""
    monkeypatch.setattr(gpu_group, "STRAGGLERS_S", 0.5)
    there = tmp_path / "there"
    body = (
        "def stuck():\n"
        f"    open({str(there)!r}, 'w').close()\n"
        "    time.sleep(600)\n"
        "if rank == '0': stuck()\n"
        f"while not os.path.exists({str(there)!r}): time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    script = rank_script(tmp_path, body)
    with gpu_group.Group(script, ["a", "b"], []) as group:
        assert group.wait(600.0) == {} and group.timed_out
        assert "in stuck" in group.words(0) and "code 3" in group.words(1)


def test_what_ranks_tell_on_the_way_is_heard_before_their_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[Any] = []
    script = rank_script(tmp_path, "say('at work')\ntell_part([rank, 1])\ntell_part([rank, 2])\nos._exit(9)\n")
    with gpu_group.Group(script, ["a"], [], on_part=lambda rank, part: parts.append((rank, part))) as group:
        assert group.wait(60.0) == {} and not group.timed_out
        assert group.ranks[0].part == ["0", 2]
    assert parts == [(0, ["0", 1]), (0, ["0", 2])] and "rank 0: at work" in capsys.readouterr().err


def test_a_rank_ends_at_its_limit_and_with_its_driver(tmp_path: Path) -> None:
    script = rank_script(tmp_path, "def stuck(): time.sleep(600)\nstuck()\n")
    with gpu_group.Group(script, ["a"], [], limit_s=3.0) as group:
        assert group.wait(60.0) == {} and not group.timed_out
        assert "in stuck" in group.words(0, 60) and group.ranks[0].process.poll() == 2
    with gpu_group.Group(script, ["a"], []) as group:
        assert group.ranks[0].process.stdin is not None
        group.ranks[0].process.stdin.close()
        assert group.ranks[0].process.wait(60) == gpu_group.ORPHANED


def test_nccl_transports_are_counted() -> None:
    log = "x Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\nx Channel 01 : 1[1] -> 0[0] via P2P/IPC\nno word\n"
    log += "cut via "
    assert transports(log) == {"SHM": 1, "P2P": 1}


GONE = {"failed": [3, 9, [1]], "words": "w", "seconds": 0.1, "nan": True}
LATE = {**GONE, "failed": [1, 0, [1]]}
FINE = {"wrong": 0, "ulp": 0.5, "equal": True, "calls": 9}


@pytest.mark.parametrize(
    ("kind", "results", "state"),
    [
        ("gone", {0: GONE, 2: GONE}, "pass"),
        ("gone", {0: GONE}, "fail"),
        ("gone", {0: GONE, 2: {**GONE, "failed": [3, 8, [1]]}}, "fail"),
        ("gone", {0: {**GONE, "nan": False}, 2: GONE}, "fail"),
        ("gone", {0: LATE, 2: LATE}, "fail"),
        ("gone", {0: {**GONE, "failed": None}, 2: {**GONE, "failed": None}}, "fail"),
        ("late", {0: LATE, 1: {"failed": "victim"}, 2: LATE}, "pass"),
        ("late", {0: {**LATE, "failed": [1, 0, [2]]}, 2: {**LATE, "failed": [1, 0, [2]]}}, "fail"),
        ("values", {0: FINE, 1: FINE, 2: FINE}, "pass"),
        ("values", {0: FINE, 1: FINE}, "fail"),
        ("values", {0: FINE, 1: FINE, 2: {**FINE, "calls": 8}}, "fail"),
        ("values", {rank: {**FINE, "calls": 0} for rank in range(3)}, "fail"),
        ("values", {rank: {**FINE, "stopped_s": 1.0} for rank in range(3)}, "pass"),
        ("values", {rank: {**FINE, "stopped_s": 0.2} for rank in range(3)}, "fail"),
        ("values", {0: FINE, 1: {**FINE, "wrong": 1}, 2: FINE}, "fail"),
        ("values", {0: FINE, 1: {**FINE, "ulp": 0.6}, 2: FINE}, "fail"),
        ("values", {0: FINE, 1: {**FINE, "equal": False}, 2: FINE}, "fail"),
        ("values", {0: {"not made": "why"}, 1: FINE, 2: FINE}, "not made"),
        ("values", {0: {"setup": "why"}, 1: FINE, 2: FINE}, "fail"),
    ],
)
def test_the_judge_of_scenarios(kind: str, results: dict[int, Any], state: str) -> None:
    assert faults.judged(kind, results, 3)[0] == state


@pytest.mark.parametrize(("states", "code"), [("pp", 0), ("pn", 0), ("pf", 1), ("nf", 1), ("nn", 2)])
def test_what_was_not_made_is_no_pass(states: str, code: int) -> None:
    words = {"p": faults.PASS, "n": faults.NOT_MADE, "f": faults.FAIL}
    assert faults.code_of([words[state] for state in states]) == code


@pytest.mark.parametrize(("seen", "known"), [({"SHM": 2}, True), ({"SHM": 2, "P2P": 1}, False), ({}, False)])
def test_nccl_that_is_not_known_to_go_without_peer_access_is_no_comparison(
    seen: dict[str, int], known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed.compared(seen) is known and bool(capsys.readouterr().err) is not known


def test_an_interrupt_and_a_reader_that_goes_end_in_words() -> None:
    """As `| head -1` and Ctrl-C do: no traceback, from any of the programs."""
    for module in (speed, faults, serving):
        for fault, code in ((KeyboardInterrupt, 130), (BrokenPipeError, 2)):
            start = (
                f"import runpy, sys; sys.argv = [{str(module.__file__)!r}]\n"
                "import sm86.backend.testing.gpu_group as group\n"
                f"def ended(*_): raise {fault.__name__}\n"
                "group.gpus_for = ended\n"
                "runpy.run_path(sys.argv[0], run_name='__main__')\n"
            )
            done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, cwd=ROOT)
            assert done.returncode == code and "Traceback" not in done.stderr, done.stderr


def test_the_table_names_the_best_and_the_ratio() -> None:
    row = {"median": 3.0, "low": 2.9, "high": 3.1}
    ways = {
        "packets/128": row,
        "one-shot/128": {**row, "median": 2.5},
        "one-shot/256": {**row, "median": 2.75},
        "two-shot/128": {**row, "median": 5.0},
        "nccl": {**row, "median": 10.0},
    }
    result = {
        "ranks": [{"gpu": "G", "capability": "8.6", "read_ns": 1200, "numa_node": 0}] * 2,
        "cuda": "13.0",
        "torch": "2.11",
        "nccl": "2.28.9",
        "wrong": [],
        **{part: {"8192": ways} for part in ("graph", "eager", "gap")},
    }
    text = speed.words_of(result)
    assert "| 8 KiB | 3.00 (2.90-3.10) | 2.50 (2.90-3.10) |" in text and "| one-shot/128 |" in text
    assert "| 4.00x |" in text and "8 KiB: 4.00x NCCL (least 2.6x, aim 3.0x): reached" in text
    ways["nccl"]["median"] = 6.0
    assert "BELOW the least" in speed.words_of(result)
    assert "WRONG SUMS" in speed.words_of({**result, "wrong": ["two-shot"]})


def test_serving_reads_the_log_and_finds_where_tokens_part() -> None:
    log = (
        "(Worker_TP0 pid=1) [sm86] collectives mode=1\n"
        '(Worker_TP0 pid=1) [sm86] collectives measured={"bytes":8192}\n'
        "(Worker_TP0 pid=1) [sm86] backend active=true\n[sm86] collectives choice=host\n"
    )
    said = serving.collectives_of(log)
    assert said == {"mode": "1", "choice": "host", "measured": [{"bytes": 8192}]}
    mine = [{"name": "a", "generated": [1, 2, 3], "logprobs": [-1.0, -2.0, -3.0]}]
    other = [{"name": "a", "generated": [1, 2, 4], "logprobs": [-1.0, -2.5, -9.0]}]
    assert serving.parted(mine, other) == {"a": {"equal": 2, "of": 3, "largest_gap": 0.5}}
    step = {"median": 5.0, "low": 4.9, "high": 5.1}
    found = {
        "0": {"said": {"choice": "nccl"}, "steps_ms": {"1": step, "4": step}, "run": other},
        "1": {"said": said, "steps_ms": {"1": step, "4": step}, "run": mine},
    }
    assert serving.code_of(found) == 0
    assert serving.code_of({"1": {**found["1"], "said": {"choice": "nccl"}}}) == 1
    assert serving.code_of({**found, "auto": {"failed": "it died"}}) == 1
    assert serving.code_of({"0": {"left out": "no time"}}) == 2
    text = serving.words_of({**found, "auto": {"left out": "no time"}})
    assert "| auto | none said | not measured | not measured |" in text and "left out: no time" in text
    assert "| 1 | host | 5.000 (4.900-5.100) |" in text and "a: 2 of 3 tokens as with NCCL" in text


def test_a_server_is_compared_with_nccl_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two GPUs with peer access vLLM would reduce by its own kernels, whatever NCCL is told."""
    command = serving.command_of("/m", 8123)
    assert "--disable-custom-all-reduce" in command[command.index("--") :]
    line = "Using {} all-reduce backends (in dispatch order) for group '{}' out of potential backends: ['CUSTOM'].\n"
    world, alone = line.format("['CUSTOM', 'PYNCCL']", "world"), line.format("['PYNCCL']", "tp:0")
    assert serving.reducer_of(world + alone) == serving.NCCL_ALONE
    assert serving.reducer_of(line.format("['CUSTOM', 'PYNCCL']", "tp:0")) == "['CUSTOM', 'PYNCCL']"
    assert serving.reducer_of("no word") is None


def test_an_engine_that_only_pythonpath_knows_is_found() -> None:
    own = serving.environment_of("1", ["a", "b"], {"PYTHONPATH": "/site:/more", "PATH": "/bin"})
    assert own["PYTHONPATH"] == f"{ROOT}:/site:/more" and own["PATH"] == "/bin"
    assert own["SM86_FORCE"] == own["NCCL_P2P_DISABLE"] == own["SM86_HOST_ALLREDUCE"] == "1"
    assert own["CUDA_VISIBLE_DEVICES"] == "a,b"


def test_a_mode_that_fails_keeps_what_the_others_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that dies, and then one for which no time is left: both told, their logs kept, exit code 1."""
    (tmp_path / "config.json").write_text("{}")
    dies = [sys.executable, "-c", "import sys; print('a last word'); sys.exit(3)"]
    monkeypatch.setattr(serving, "command_of", lambda *_: dies)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b")
    out = tmp_path / "out.json"
    assert serving.main(["--model", str(tmp_path), "--modes", "0,1", "--json", str(out)]) == 1
    modes = json.loads(out.read_text())["modes"]
    assert all("did not start" in modes[mode]["failed"] for mode in "01")
    assert (tmp_path / "out.1.log").read_text() == "a last word\n"
    # (a budget that is given is watched, and the watch would end the tests)
    monkeypatch.setattr(serving, "budget_of", lambda *_: serving.Budget(5.0))
    assert serving.main(["--model", str(tmp_path), "--modes", "0", "--json", str(out)]) == 2
    assert "budget" in json.loads(out.read_text())["modes"]["0"]["left out"]


class Alone:
    """An exchange of one rank."""

    def gather(self, value: Any) -> list[Any]:
        return [value]


def test_rows_that_do_not_fit_are_left_out_and_said() -> None:
    now = [0.0]
    rows = speed.Rows(1, speed.Budget(100.0, lambda: now[0]))
    rows.exchange = Alone()
    rows.longest = 40.0
    rows.add("graph", 8192, dict)
    now[0] = 50.0
    rows.add("graph", 2048, dict)
    assert rows.result == {"left out": ["graph, 2 KiB"], "graph": {"8192": {}}}


def test_scenarios_that_do_not_fit_are_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    monkeypatch.setattr(faults, "budget_of", lambda *_: faults.Budget(5.0))
    argv = ["--emulate", __file__, "--only", "mixed calls with random skew", "--json", str(out)]
    assert faults.main(argv) == 2
    assert "budget of 5 s" in json.loads(out.read_text())["scenarios"]["mixed calls with random skew"]["words"]


def test_ranks_that_share_a_gpu_all_get_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    said: list[str | None] = [None, "Default", "Exclusive_Process"]
    monkeypatch.setattr(shared_gpu, "asked", lambda gpu, fields: said.pop(0))
    assert shared_gpu.shared_gpus(2) == ["3", "3"] and shared_gpu.shared_gpus(4) == ["3"] * 4
    with pytest.raises(CouldNotRun, match="Exclusive_Process"):
        shared_gpu.shared_gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CouldNotRun, match="no GPU is visible"):
        shared_gpu.shared_gpus(2)


def test_the_seconds_for_calls_are_what_starts_and_waits_leave() -> None:
    now = [0.0]
    shares = shared_gpu.Shares(shared_gpu.Budget(100.0, lambda: now[0]), 60.0)
    small, large = shared_gpu.Part(0.0, 2.0), shared_gpu.Part(3.0)
    for part, took in (
        (small, 22.0),
        (small, 6.0),
    ):  # the first start is from a cold disk, and no measure of the others
        shares.took(took, part, 0.0)
        now[0] += took
    assert shares.start_s() == 4.0
    # 72 s are left, and three starts, one wait and the end take 17 of them
    assert shares.calls_s([large, shared_gpu.Part(1.0), small]) == pytest.approx((72 - 17) * 3 / 4)
    assert shares.calls_s([small, large]) == shares.calls_s([large] * 30) == shared_gpu.LEAST_CALLS_S
    assert shared_gpu.Shares(shared_gpu.Budget(None), 60.0).calls_s([large]) == 60.0
    assert shares.limit_s(large, 10.0) > shares.enough_s(large, 10.0) > 10.0 + shares.start_s()
    now[0] = 95.5
    assert not shares.fits(large) and shares.fits(shared_gpu.Part(0.0))


@pytest.mark.parametrize("shared", [True, False])
def test_calls_end_where_rank_0_says_so(shared: bool) -> None:
    """Wherever this rank's own clock stands: all ranks must make the same number of calls."""
    asked: list[bool] = []

    class Led:
        def gather(self, value: Any) -> list[Any]:
            asked.append(value)
            return [len(asked) == 3, value]

    class Fine:
        def check(self) -> None: ...

    rank = object.__new__(faults.Rank)
    rank.shared, rank.left_s, rank.emulated, rank.exchange, rank.reduce = shared, 1e6, True, Led(), Fine()
    rank.settle = lambda: None
    assert list(rank.paced(100, 10)) == list(range(30 if shared else 100))
    assert asked == ([False] * 3 if shared else [])
    rank.left_s = 0.0
    assert len(list(rank.paced(10, 2))) == 10 and asked[3:] == ([True] * 4 if shared else [])


def test_every_scenario_that_shares_a_gpu_is_one_that_there_is() -> None:
    assert set(faults.PARTS) | set(faults.FIRST) <= set(faults.SCENARIOS)
    assert all(not faults.PARTS.get(name, faults.FIXED).weight for name in faults.FIRST)


def test_a_record_of_ranks_that_share_a_gpu_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "faults.json"
    given: list[tuple[str, float | None]] = []

    def made(name: str, _: Any, gpus: list[str], __: Any, ___: float, calls_s: Any = None, *____: float) -> Any:
        given.append((name, calls_s))
        return faults.PASS, f"{len(gpus)} ranks", 1.25

    monkeypatch.setattr(faults, "run_one", made)
    argv = ["--emulate", __file__, "--share-gpu", "4", "--only", "values packets; special values", "--json", str(out)]
    assert faults.main(argv) == 0
    record = json.loads(out.read_text())
    assert record["note"] == shared_gpu.NOTE and record["shared_gpu"] and record["gpus"] == 1 and record["ranks"] == 4
    assert [name for name, _ in given] == ["special values", "values packets"]
    assert all(calls_s is not None for _, calls_s in given) and capsys.readouterr().out.count(shared_gpu.NOTE) == 2
    assert "1.2 s of calls, its share was" in record["scenarios"]["values packets"]["words"]
    assert faults.main([*argv[:2], *argv[4:]]) == 0
    assert given[-1] == ("special values", None) and not json.loads(out.read_text())["shared_gpu"]


@pytest.mark.parametrize(("enough_s", "state"), [(1.0, "fail"), (100.0, "not made")])
def test_who_hangs_with_time_enough_fails_whatever_the_budget(
    enough_s: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "__file__", rank_script(tmp_path, "time.sleep(600)\n"))
    monkeypatch.setattr(faults.Group, "_ask_where", lambda *_: None)
    arguments = faults.argparse.Namespace(calls=1, emulate=None)
    found = faults.run_one("special values", arguments, ["a"], faults.Budget(2.0), 120.0, 1.0, enough_s)
    assert found[0] == state and ("budget of 2 s" if state == "not made" else "not at its end") in found[1]
