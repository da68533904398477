"""The program that plants faults in the CUDA sources: its table fits these sources, and it tells what it saw. The
commands of its outcomes are stand-ins, since the true ones need a GPU."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm86.backend import nvcc
from sm86.backend.testing import planted
from sm86.backend.testing.budget import Budget
from sm86.backend.testing.planted import BROKEN, FOUND, NO_BUILD, NOT_FOUND, NOT_RUN, Commands, Ran, judged, passes
from sm86.backend.testing.planted_faults import ATTENTION, COLLECTIVES, FAULTS, Fault, chosen
from sm86.errors import CouldNotRun

ROOT = Path(__file__).resolve().parents[2]
needs_nvcc = pytest.mark.skipif(nvcc.find_nvcc() is None, reason="no nvcc on this machine: nothing is compiled")

# --- the table --------------------------------------------------------------------------------------------------------


def test_every_fault_changes_its_source_in_one_place() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    changed = set()
    for fault in FAULTS:
        source = (ROOT / fault.subject.source).read_text()
        text = fault.planted(source)
        assert text != source and len(text) - len(source) == len(fault.new) - len(fault.old), fault.name
        changed.add(text)
    assert len(changed) == len(FAULTS), "no two faults are one"
    assert {fault.subject for fault in FAULTS} == {ATTENTION, COLLECTIVES}


@pytest.mark.parametrize("source", ["", "a; a;"])
def test_a_table_for_another_source_is_refused(source: str) -> None:
    with pytest.raises(CouldNotRun, match=r"planted fault one: its text occurs (0|2) times"):
        Fault("one", ATTENTION, "a;", "b;").planted(source)


@pytest.mark.parametrize("subject", [ATTENTION, COLLECTIVES], ids=lambda subject: subject.name)
def test_the_tests_that_must_find_them_are_there(subject: planted.Subject) -> None:
    for test in subject.tests:
        file, _, name = test.partition("::")
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, test


@needs_nvcc
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["offset-of-32-bits", "sums-not-armed"])
def test_a_changed_source_compiles(name: str, tmp_path: Path) -> None:
    (fault,) = chosen(name)
    source = ROOT / fault.subject.source
    (tmp_path / source.name).write_text(fault.planted(source.read_text()))
    for header in source.parent.glob("*.h"):
        (tmp_path / header.name).write_bytes(header.read_bytes())
    command = [str(nvcc.find_nvcc()), "-std=c++17", "-arch=compute_86", "-ptx", str(tmp_path / source.name)]
    done = subprocess.run([*command, "-o", str(tmp_path / "out.ptx")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- what a run of the tests says -------------------------------------------------------------------------------------

A, B = "tests/backend/test_x.py::test_a[window-8] ", "tests/backend/test_x.py::test_b "


@pytest.mark.parametrize(
    ("code", "output", "by_budget", "want"),
    [
        (0, f"{A}PASSED [ 50%]\n{B}PASSED [100%]\n", False, (NOT_FOUND, "", "2 tests passed")),
        (1, f"{A}PASSED\n{B}FAILED\nE   assert 0.7 < 0.006\n", False, (FOUND, "test_b", "assert 0.7 < 0.006")),
        (1, f"{A}ERROR [ 50%]\nE   RuntimeError: CUDA\n", False, (FOUND, "test_a[window-8]", "RuntimeError: CUDA")),
        (-11, f"{A}PASSED\n{B}", False, (FOUND, "", "the tests' process died of signal 11")),
        (None, f"{A}PASSED\n{B}", False, (FOUND, "test_b", "hangs: ended after 9 s")),
        (None, f"{A}PASSED\n{B}", True, (NOT_RUN, "", "not at its end after 9 s")),
        (None, f"{A}FAILED\n", True, (FOUND, "test_a[window-8]", "")),
        (None, "collecting ...", False, (NOT_RUN, "", "not at its end after 9 s")),
    ],
)
def test_judgement(code: int | None, output: str, by_budget: bool, want: tuple[str, str, str]) -> None:
    assert judged(Ran(code, output, 9.0), by_budget) == want


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (0, f"{A}SKIPPED (no GPU)\n"),
        (0, ""),
        (5, "no tests ran"),
        (4, "ERROR: not found: test_gone"),
        (2, "Interrupted: 1 error during collection"),
        (1, "ImportError while loading conftest"),
    ],
)
def test_tests_that_judge_nothing_are_no_answer(code: int, output: str) -> None:
    assert not passes(Ran(code, output, 1.0))
    assert judged(Ran(code, output, 1.0), False)[0] == BROKEN


def test_pytest_writes_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.parametrize('n', ['one', 'two words'])\ndef test_good(n): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_ends_itself():\n    import os; print(end='', flush=True); os._exit(77)\n"
    )
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for last, want in (("test_bad", 1), ("test_ends_itself", 77)):
        argv = [*command, "--rootdir", str(tmp_path), "tests/test_x.py::test_good", f"tests/test_x.py::{last}"]
        ran = Commands()(argv, tmp_path, env, 60.0)
        assert ran.code == want, ran.output
        good = [("test_good[one]", "PASSED"), ("test_good[two words]", "PASSED")]
        assert planted.results_of(ran.output)[:2] == good
        if last == "test_bad":
            assert judged(ran, False)[:2] == (FOUND, "test_bad")
            assert "1 == 2" in judged(ran, False)[2]
        else:
            # as if it had been ended in that test
            assert judged(Ran(None, ran.output, 9.0), False)[:2] == (FOUND, "test_ends_itself")


# --- a whole run, by stand-ins ----------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What is copied, as small as it can be."""
    root = tmp_path / "clone"
    for part in planted.COPIED:
        path = root / part
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix:
            path.write_text("")
        else:
            path.mkdir()
    for subject in (ATTENTION, COLLECTIVES):
        path = root / subject.source
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one; two; three; four;")
    (root / "sm86/backend/attention/libsm86_attention.so").write_text("must not be loaded")
    return root


def faults(*words: str) -> list[Fault]:
    return [Fault(f"no-{word}", ATTENTION, f"{word};", "") for word in words]


def stand_in(seen: list[dict[str, str]] | None = None, unchanged: str = "PASSED") -> planted.Run:
    """Does not compile without two, fails without one, and does not see that three is missing."""

    def run(argv: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float) -> Ran:
        text = (folder / ATTENTION.source).read_text() + (folder / COLLECTIVES.source).read_text()
        if seen is not None:
            seen.append({**env, "folder": str(folder), "argv": " ".join(argv)})
        assert Path.cwd() not in folder.parents and not list(folder.rglob("*.so"))
        if "pytest" not in argv:
            return Ran(2, "error: two is undeclared", 1.0) if text.count("two;") < 2 else Ran(0, "", 1.0)
        if planted.UNCHANGED in text:
            return Ran(0 if unchanged in ("PASSED", "SKIPPED") else 1, f"{A}{unchanged}\nE   no GPU here\n", 2.0)
        return Ran(1, f"{A}FAILED\nE   wrong\n", 1.0) if text.count("one;") < 2 else Ran(0, f"{A}PASSED\n", 1.0)

    return run


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize(
    ("words", "want", "states"),
    [
        (("one", "three"), 1, [FOUND, NOT_FOUND]),
        (("one",), 0, [FOUND]),
        (("one", "two"), 2, [FOUND, NO_BUILD]),
        (("one", "two", "three"), 1, [FOUND, NO_BUILD, NOT_FOUND]),
    ],
)
def test_a_run(clone: Path, jobs: int, words: tuple[str, ...], want: int, states: list[str]) -> None:
    json_file = clone / "out.json"
    assert planted.planted(faults(*words), jobs, Budget(None), stand_in(), clone, json_file) == want
    got = json.loads(json_file.read_text())
    assert (got["schema"], got["version"], got["unchanged"]) == ("sm86.planted-faults", 1, "passes")
    by_name = {outcome["name"]: outcome for outcome in got["outcomes"]}
    assert [by_name[f"no-{word}"]["state"] for word in words] == states
    assert by_name["no-one"]["by"] == "test_a[window-8]"
    assert got["faults"] == len(words) == sum(got["counts"].values())


def test_a_copy_loads_its_own_library_alone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM86_NATIVE_LIBRARY", "/elsewhere/native.so")
    monkeypatch.setenv("SM86_COLLECTIVES_LIBRARY", "/elsewhere/collectives.so")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    seen: list[dict[str, str]] = []
    one = Fault("other", COLLECTIVES, "one;", "")
    assert planted.planted([*faults("one"), one], 2, Budget(None), stand_in(seen), clone, None) == 0
    assert len(seen) == 8, "two commands for each fault and each unchanged source"
    for env in seen:
        attention = env["folder"].endswith(("no-one", "unchanged-attention"))
        mine, other = [
            subject.variable for subject in ((ATTENTION, COLLECTIVES) if attention else (COLLECTIVES, ATTENTION))
        ]
        assert env[mine] == f"{env['folder']}/library.so" and other not in env
        assert env["PYTHONPATH"].split(":") == [env["folder"], "/elsewhere"]
        assert "PYTEST_ADDOPTS" not in env and "PYTHONSAFEPATH" not in env and env["SM86_TEST_DEVICE"] == "cuda"
        assert str(clone) not in env["folder"]


@pytest.mark.parametrize("result", ["FAILED", "SKIPPED", "ERROR"])
@pytest.mark.parametrize("jobs", [1, 4])
def test_an_unchanged_source_that_does_not_pass_ends_it(clone: Path, result: str, jobs: int) -> None:
    """Without a GPU everything would be `found`."""
    json_file = clone / "out.json"
    with pytest.raises(CouldNotRun, match=r"unchanged .*sparse_mla\.cu does not pass its tests") as raised:
        planted.planted(faults("one"), jobs, Budget(None), stand_in(unchanged=result), clone, json_file)
    assert any("no GPU here" in line for line in raised.value.evidence)
    got = json.loads(json_file.read_text())
    assert "does not pass" in got["unchanged"] and FOUND not in got["counts"]


def test_what_the_budget_leaves_out_is_no_finding(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    inner, budget = stand_in(), Budget(30.0, lambda: now[0])

    def run(argv: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float) -> Ran:
        assert limit_s <= budget.left()
        now[0] += 7.0
        return inner(argv, folder, env, limit_s)

    # 7 s each: the unchanged source's two commands and the first fault's, then one more build
    assert planted.planted(faults("one", "three"), 1, budget, run, clone, clone / "out.json") == 2
    got = json.loads((clone / "out.json").read_text())
    assert [outcome["state"] for outcome in got["outcomes"]] == [FOUND, NOT_RUN]
    assert "no-three: not run; left out: the budget of 30 s was spent" in capsys.readouterr().out
    now[0] = 14.5
    with pytest.raises(CouldNotRun, match="unchanged"):
        short = Budget(1.0, lambda: now[0])
        planted.planted(faults("one"), 1, short, lambda *_: Ran(None, "", 1.0), clone, None)
    assert planted.exit_code([planted.Outcome("a", "b", NOT_RUN)]) == 2, "nothing was judged"


def test_a_table_that_does_not_fit_and_a_package_without_tests(clone: Path) -> None:
    with pytest.raises(CouldNotRun, match="occurs 0 times"):
        planted.planted(
            [*faults("one"), Fault("gone", ATTENTION, "five;", "")], 1, Budget(None), stand_in(), clone, None
        )
    (clone / "tests/conftest.py").unlink()
    with pytest.raises(CouldNotRun, match="no tests beside the package"):
        planted.planted(faults("one"), 1, Budget(None), stand_in(), clone, None)


def told_by(call: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = call()
    return code, capsys.readouterr().err


def test_bad_arguments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in ((["--jobs", "0"], "--jobs is 0"), (["--only", "no-such"], "no planted fault no-such")):
        code, said = told_by(lambda arguments=arguments: planted.main(arguments), capsys)  # type: ignore[misc]
        assert code == 2 and words in said
    monkeypatch.setattr(planted, "find_nvcc", lambda: None)
    assert planted.main([]) == 2 and "there is no nvcc" in capsys.readouterr().err


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    ran = Commands()([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, os.environ, 0.5)
    assert ran.code is None and 0.5 <= ran.seconds < 120


def command_line(process: str) -> bytes:
    """Empty of a process that has ended, waited for or not."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_all_commands_are_ended_with_their_children(tmp_path: Path) -> None:
    child = "import os, time; open('new', 'w').write(str(os.getpid())); os.replace('new', 'child'); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    commands, made = Commands(), tmp_path / "child"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(commands, [sys.executable, "-c", parent], tmp_path, os.environ, 100.0)
        while not made.exists() and not running.done():
            time.sleep(0.02)
        commands.end()
        assert running.result().code == -signal.SIGKILL
    end = time.monotonic() + 60
    while time.monotonic() < end and command_line(made.read_text()):
        time.sleep(0.05)
    assert not command_line(made.read_text())


def test_after_the_end_no_command_starts(tmp_path: Path) -> None:
    commands = Commands()
    commands.end()
    assert commands([sys.executable, "-c", "open('x', 'w')"], tmp_path, os.environ, 30.0).code is None
    assert not (tmp_path / "x").exists()
