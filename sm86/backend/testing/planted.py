"""Judge the GPU tests of the CUDA sources: plant one mistake after the other, and see that a test fails.

    python -m sm86.backend.testing.planted [--only NAME] [--jobs N] [--budget-s S] [--json FILE]

Needs a GPU, nvcc and a clone (the tests are part of it). For each fault of `planted_faults.FAULTS` the package and its
tests are copied, the fault is planted in the copy, its library is built by the copy's own command, and that library's
tests run against it: several faults at once on one GPU. The unchanged sources go the same way first, and must pass.

A fault is found when a test fails, when the tests' process dies, or when they hang (four times as long as the unchanged
source needed, at least a minute). Exit code 0: every fault was found; 1: one was not; 2: one was not judged or run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sm86.backend.nvcc import find_nvcc
from sm86.backend.testing.budget import Budget, add_option, budget_of, progress
from sm86.backend.testing.planted_faults import Fault, Subject, chosen
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CouldNotRun
from sm86.files import write_atomic

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("sm86", "tests/__init__.py", "tests/conftest.py", "tests/backend", "pyproject.toml")
UNCHANGED = "\n// the unchanged source: another hash, so that nothing but the copy's own library is loaded\n"
LEAST_LIMIT_S = 60.0
BUILD_LIMIT_S = 300.0
UNCHANGED_LIMIT_S = 900.0

FOUND, NOT_FOUND, NO_BUILD, BROKEN, NOT_RUN = "found", "not found", "does not compile", "could not run", "not run"


@dataclass(frozen=True, slots=True)
class Ran:
    """One command. code: its exit code, negative for a signal, None where it was ended at its limit."""

    code: int | None
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one fault. by: the test that found it; words: how it failed, or why there is no answer."""

    name: str
    subject: str
    state: str
    by: str = ""
    words: str = ""
    build_s: float = 0.0
    test_s: float = 0.0


@dataclass(slots=True)
class Commands:
    """Runs commands, each in a process group of its own, so that all of them can be ended."""

    _live: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: bool = False

    def __call__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float) -> Ran:
        begun = time.monotonic()
        # into a file: a grandchild that outlives its parent must not hold a pipe open
        with tempfile.TemporaryFile() as out:
            with self._lock:
                if self._over:
                    return Ran(None, "", 0.0)
                child = subprocess.Popen(
                    argv, cwd=folder, env=dict(env), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
                self._live.add(child.pid)
            code: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(max(limit_s, 0.1))
            with self._lock:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                self._live.discard(child.pid)
            if code is None:
                # one that the driver holds in the kernel must not hold this program too
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5)
            out.seek(0)
            text = out.read().decode("utf-8", "replace")
        return Ran(code, text, time.monotonic() - begun)

    def end(self) -> None:
        """End all that run; start no more."""
        with self._lock:
            self._over = True
            for group in self._live:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


Run = Callable[[Sequence[str], Path, Mapping[str, str], float], Ran]

_RESULT = re.compile(r"^(tests/\S+(?:\[.*?\])?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)", re.M)
_STARTED = re.compile(r"^(tests/\S+(?:\[.*?\])?) ?$", re.M)
_REASON = re.compile(r"^E +(\S.*)$", re.M)


def results_of(output: str) -> list[tuple[str, str]]:
    """pytest -v's lines -> (test, PASSED or FAILED and so on), in order. Pure."""
    return [(found[1].partition("::")[2], found[2]) for found in _RESULT.finditer(output)]


def passes(ran: Ran) -> bool:
    """Whether tests ran and every one passed: one that was skipped judges nothing. Pure."""
    results = results_of(ran.output)
    return ran.code == 0 and bool(results) and all(result == "PASSED" for _, result in results)


def judged(ran: Ran, by_budget: bool) -> tuple[str, str, str]:
    """(state, by which test, words) of a fault's tests. by_budget: the limit was the budget's end. Pure."""
    results = results_of(ran.output)
    failed = [test for test, result in results if result in ("FAILED", "ERROR")]
    reason = _REASON.search(ran.output)
    words = reason[1][:200] if reason else ""
    if failed and ran.code in (1, None):
        return FOUND, failed[0], words
    if ran.code is None:
        begun = _STARTED.findall(ran.output)
        if by_budget or not begun:
            return NOT_RUN, "", f"not at its end after {ran.seconds:.0f} s"
        return FOUND, begun[-1].partition("::")[2], f"hangs: ended after {ran.seconds:.0f} s"
    if ran.code < 0:
        return FOUND, "", f"the tests' process died of signal {-ran.code}"
    if passes(ran):
        return NOT_FOUND, "", f"{len(results)} tests passed"
    return BROKEN, "", f"pytest ended with {ran.code}: {ran.output.strip()[-300:]}"


class Trial:
    """All faults of one run, in folders below `work`. run: how a command is run (tests give stand-ins)."""

    def __init__(self, root: Path, work: Path, budget: Budget, run: Run) -> None:
        self.root, self.work, self.budget, self.run = root, work, budget, run
        self._ready: dict[str, threading.Event] = {}
        self._limits: dict[str, float] = {}

    def _copy(self, subject: Subject, name: str, text: str) -> Path:
        copy = self.work / name
        for part in COPIED:
            source, target = self.root / part, copy / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                # a library beside the module would be loaded in place of the copy's own
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.log"))
            else:
                shutil.copy(source, target)
        (copy / subject.source).write_text(text)
        return copy

    def _environment(self, subject: Subject, copy: Path) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if key not in ("PYTEST_ADDOPTS", "PYTHONSAFEPATH")}
        env.pop("SM86_NATIVE_LIBRARY", None)
        env.pop("SM86_COLLECTIVES_LIBRARY", None)
        path = os.pathsep.join(part for part in (str(copy), env.get("PYTHONPATH", "")) if part)
        return env | {
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",  # several at once on the same cores
            "XDG_CACHE_HOME": str(copy / "cache"),
            "SM86_TEST_DEVICE": "cuda",
            subject.variable: str(copy / "library.so"),
        }

    def _build(self, subject: Subject, copy: Path) -> Ran:
        argv = [sys.executable, "-m", subject.module, str(copy / "library.so")]
        return self.run(argv, copy, self._environment(subject, copy), min(BUILD_LIMIT_S, self.budget.left()))

    def _test(self, subject: Subject, copy: Path, limit_s: float) -> Ran:
        argv = [sys.executable, "-m", "pytest", "-x", "-v", "--tb=short", "-p", "no:cacheprovider", *subject.tests]
        return self.run(argv, copy, self._environment(subject, copy), min(limit_s, self.budget.left()))

    def unchanged(self, subject: Subject) -> None:
        """Build and test the source as it is, and set the limit of its faults. Raises CouldNotRun if it fails."""
        try:
            text = (self.root / subject.source).read_text() + UNCHANGED
            copy = self._copy(subject, f"unchanged-{subject.name}", text)
            ran, what = self._build(subject, copy), "compile"
            fine = ran.code == 0
            if fine:
                ran, what = self._test(subject, copy, UNCHANGED_LIMIT_S), "pass its tests"
                fine = passes(ran)
            if not fine:
                raise CouldNotRun(
                    f"the unchanged {subject.source} does not {what}, so its faults cannot be judged",
                    "see the words above; it needs a GPU, nvcc, torch, and a budget that lets it end",
                    tuple(ran.output.strip().splitlines()[-12:]),
                )
            self._limits[subject.name] = max(LEAST_LIMIT_S, 4 * ran.seconds)
            progress(f"unchanged {subject.name}: {len(results_of(ran.output))} tests pass in {ran.seconds:.0f} s")
        finally:
            self._ready[subject.name].set()

    def fault(self, fault: Fault) -> Outcome | None:
        """Plant, build, wait for the unchanged source, test."""
        subject, name = fault.subject, fault.name
        why = self.budget.words() if self.budget.seconds is not None else f"not built in {BUILD_LIMIT_S:.0f} s"
        left_out = Outcome(name, subject.name, NOT_RUN, words=why)
        if not self.budget.allows(1.0):
            return left_out
        copy = self._copy(subject, name, fault.planted((self.root / subject.source).read_text()))
        try:
            build = self._build(subject, copy)
            if build.code is None:
                return left_out
            if build.code:
                return Outcome(name, subject.name, NO_BUILD, words=build.output.strip()[-300:], build_s=build.seconds)
            self._ready[subject.name].wait()
            limit = self._limits.get(subject.name)
            if limit is None or not self.budget.allows(1.0):
                return left_out
            by_budget = self.budget.left() < limit
            ran = self._test(subject, copy, limit)
            state, by, words = judged(ran, by_budget)
            return Outcome(name, subject.name, state, by, words, build.seconds, ran.seconds)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def all(self, faults: Sequence[Fault], jobs: int, told: Callable[[Outcome], None]) -> None:
        """Every fault, `jobs` at a time; `told` of each when it ends. Raises CouldNotRun of an unchanged source."""
        subjects = {fault.subject.name: fault.subject for fault in faults}
        self._ready = {name: threading.Event() for name in subjects}
        with ThreadPoolExecutor(jobs) as pool:
            # first in the queue, so that a fault never waits for one that has not begun
            waited: list[Future[Outcome | None]] = []
            waited += [pool.submit(self.unchanged, subject) for subject in subjects.values()]
            waited += [pool.submit(self.fault, fault) for fault in faults]
            try:
                for future in as_completed(waited):
                    outcome = future.result()
                    if outcome is not None:
                        told(outcome)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(self.run, Commands):
                    self.run.end()
                raise


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 if a fault was not found; else 2 if one was not judged or run, or none was asked for; else 0. Pure."""
    counts = Counter(outcome.state for outcome in outcomes)
    if counts[NOT_FOUND]:
        return EXIT_FINDING
    return EXIT_OK if counts[FOUND] and counts[FOUND] == len(outcomes) else EXIT_COULD_NOT_RUN


def document(outcomes: Sequence[Outcome], asked: int, unchanged: str, seconds: float) -> str:
    """The JSON text. unchanged: what became of the unchanged sources."""
    counts = Counter(outcome.state for outcome in outcomes)
    body = {
        "schema": "sm86.planted-faults",
        "version": 1,
        "faults": asked,
        "unchanged": unchanged,
        "counts": dict(sorted(counts.items())),
        "seconds": round(seconds, 1),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    return json.dumps(body, indent=1) + "\n"


def planted(faults: Sequence[Fault], jobs: int, budget: Budget, run: Run, root: Path, json_file: Path | None) -> int:
    """Try `faults` and tell of them; the exit code. Raises CouldNotRun where nothing can be judged."""
    if not all((root / part).exists() for part in COPIED):
        raise CouldNotRun(f"there are no tests beside the package ({root})", "run it in a clone of the repository")
    for fault in faults:
        fault.planted((root / fault.subject.source).read_text())
    begun, unchanged = time.monotonic(), "not at its end"
    outcomes: list[Outcome] = []

    def write() -> None:
        if json_file is not None:
            write_atomic(json_file, document(outcomes, len(faults), unchanged, time.monotonic() - begun))

    def told(outcome: Outcome) -> None:
        outcomes.append(outcome)
        by = f" by {outcome.by}" if outcome.by else ""
        progress(f"{len(outcomes)}/{len(faults)} {outcome.name}: {outcome.state}{by}; {outcome.words}")
        write()

    with tempfile.TemporaryDirectory(prefix="sm86-planted-", ignore_cleanup_errors=True) as work:
        try:
            Trial(root, Path(work), budget, run).all(faults, jobs, told)
            unchanged = "passes"
        except CouldNotRun as fault:
            unchanged = fault.what
            raise
        finally:
            write()
    for outcome in outcomes:
        if outcome.state != FOUND:
            print(f"{outcome.name}: {outcome.state}; {outcome.words}")
    counts = Counter(outcome.state for outcome in outcomes)
    print(f"{len(faults)} planted faults: " + ", ".join(f"{count} {state}" for state, count in counts.most_common()))
    hung = sum(outcome.words.startswith("hangs") for outcome in outcomes)
    if hung:
        print(f"{hung} of those found hang")
    return exit_code(outcomes)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.backend.testing.planted", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="this fault alone")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1), metavar="N", help="faults at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found, after every fault")
    add_option(parser)
    given = parser.parse_args(arguments)
    run = Commands()
    try:
        if not 1 <= given.jobs <= 64:
            raise CouldNotRun(f"--jobs is {given.jobs}", "give a number from 1 to 64")
        faults = chosen(given.only)
        if find_nvcc() is None:
            raise CouldNotRun("there is no nvcc", "run it where CUDA 12.3 or newer is installed")
        budget = budget_of(given, run.end)
        return planted(faults, given.jobs, budget, run, ROOT, given.json)
    except CouldNotRun as fault:
        print("\n".join((*fault.evidence, fault.what, fault.mend)), file=sys.stderr)
        return fault.exit_code
    finally:
        run.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
