"""Does CUPTI lose kernels at the start of a profiler session? An experiment for a machine with an NVIDIA GPU.

    python3 -P benchmarks/cupti_start.py [--out FILE.json] [--repeats 5] [--idle 0,2,10,30] [--budget-s S]

A CUDA graph of NODES kernels is replayed while torch's profiler starts and stops; every recorded launch must then have
NODES kernels with a time. Each condition runs in processes of its own, `repeats` times:

    busy            replays go on while the session starts (how `invoke trace.capture` does it)
    idle-S          the GPU has idled for S seconds; then the session starts, then the replays
    again           the second session of one process, started while busy
    warmed          as idle, with one throw-away session before it

Told for each: recorded launches, whole ones, launches that lost kernels and how many, kernels without a time, and which
launches of the session they were. Exit code 0: nothing was lost anywhere; 1: something was; 2: no GPU or no torch.
Nothing here decides by itself: the analysis of traces leaves the first unit of a session out either way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.backend.testing.budget import Budget, add_option, budget_of, progress  # noqa: E402
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CouldNotRun  # noqa: E402
from sm86.files import write_atomic  # noqa: E402

NODES = 200
REPLAYS = 60
LAUNCHES = ("cudaGraphLaunch", "cudaGraphLaunch_ptsz", "cuGraphLaunch")
RUN_S = 300.0
LEAST_S = 45.0
"""What is left of a budget must hold a process's start and its session, besides the idling."""


@dataclass(frozen=True)
class Session:
    """What one session recorded. launches: graph launches in the trace, in the order of their calls; lost: for each
    launch that is not whole its place (from 0) and how many kernels it lacks; untimed: kernels with no time; orphans:
    kernels of launches that are not in the trace; cut: launches without any kernel at the session's end."""

    launches: int
    whole: int
    lost: tuple[tuple[int, int], ...]
    untimed: int
    orphans: int
    cut: int


def judge(events: Sequence[Mapping[str, Any]], nodes: int = NODES) -> Session:
    """Count what a trace's events hold. Pure.

    A launch at the end whose kernels are all absent is cut by the session's end and not lost; one that lacks some, or
    one before a whole launch that lacks all, has lost them.
    """
    calls: dict[int, float] = {}
    kernels: Counter[int] = Counter()
    untimed = 0
    for event in events:
        correlation = (event.get("args") or {}).get("correlation")
        if event.get("ph") != "X" or correlation is None:
            continue
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and event.get("name") in LAUNCHES:
            calls[correlation] = float(event["ts"])
        elif event.get("cat") == "kernel":
            timed = float(event.get("ts") or 0) > 0 and float(event.get("dur") or 0) > 0
            kernels[correlation] += timed
            untimed += not timed
    order = sorted(calls, key=lambda one: calls[one])
    last_whole = max((at for at, one in enumerate(order) if kernels[one] >= nodes), default=-1)
    lost, cut = [], 0
    for at, one in enumerate(order):
        missing = nodes - kernels[one]
        if missing == nodes and at > last_whole:
            cut += 1
        elif missing > 0:
            lost.append((at, missing))
    orphans = sum(count for one, count in kernels.items() if one not in calls and count > 1)
    return Session(len(order), sum(kernels[one] == nodes for one in order), tuple(lost), untimed, orphans, cut)


def conditions(idle: Sequence[float]) -> tuple[str, ...]:
    return ("busy", *(f"idle-{seconds:g}" for seconds in idle), "again", "warmed")


def record(condition: str) -> dict[str, Any]:
    """One session in this process. Effects: GPU."""
    import time

    import torch
    from torch.profiler import ProfilerActivity, profile

    place = torch.zeros(4096, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        place.add_(1)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(NODES):
            place.add_(1)

    def replay(count: int) -> None:
        with torch.cuda.stream(stream):
            for _ in range(count):
                graph.replay()

    def session(busy: bool) -> list[dict[str, Any]]:
        profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        if busy:
            replay(REPLAYS)
        profiler.start()
        replay(REPLAYS)
        torch.cuda.synchronize()
        profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]

    replay(10)
    torch.cuda.synchronize()
    if condition in ("again", "warmed"):
        session(busy=condition == "again")
    time.sleep(_idles(condition))
    events = session(busy=condition in ("busy", "again"))
    return {
        **asdict(judge(events)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(0),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Does CUPTI lose kernels at the start of a profiler session?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--idle", default="0,2,10,30")
    add_option(parser)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(record(options.one)))
        return 0
    reason = _unable()
    if reason is not None:
        print(f"cupti_start: {reason}", file=sys.stderr)
        return 2
    try:
        idle = _seconds(options.idle)
        if options.repeats < 1:
            raise CouldNotRun(f"--repeats is {options.repeats}", "give a whole number from 1 on")
        budget = budget_of(options)
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return fault.exit_code
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in conditions(idle)}
    for repeat in range(options.repeats):
        # interleaved: what drifts meets all conditions alike
        for name, each in runs.items():
            progress(f"repeat {repeat + 1} of {options.repeats}: {name}")
            each.append(_in_own_process(name, budget))
            if options.out is not None:
                document = {"nodes": NODES, "replays": REPLAYS, "runs": runs}
                write_atomic(options.out, json.dumps(document, indent=1) + "\n")
    lines, lost = table(runs)
    print("\n".join(lines), flush=True)
    if lost:
        return EXIT_FINDING
    return EXIT_OK if any("failed" not in run for each in runs.values() for run in each) else EXIT_COULD_NOT_RUN


def _seconds(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= 3600 for one in found):
        raise CouldNotRun(f"--idle is {text!r}", "give seconds from 0 to 3600 joined by commas, such as 0,2,10")
    return found


def _unable() -> str | None:
    try:
        import torch
    except ImportError:
        return "this Python has no torch"
    return None if torch.cuda.is_available() else "no NVIDIA GPU answers on this machine; nothing was measured"


def _in_own_process(condition: str, budget: Budget) -> dict[str, Any]:
    if not budget.allows(LEAST_S + _idles(condition)):
        return {"failed": budget.words()}
    argv = [sys.executable, "-P", str(Path(__file__).resolve()), "--one", condition]
    limit = min(RUN_S, budget.left())
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not at its end after {limit:.0f} s"}
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no words"])[-1]
        return {"failed": words}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"failed": "it gave no answer"}


def _idles(condition: str) -> float:
    """Seconds for which a condition leaves the GPU alone."""
    if condition.startswith("idle") or condition == "warmed":
        return float(condition.partition("-")[2] or 10)
    return 0.0


def table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[list[str], bool]:
    """The lines to print, and whether anything was lost. Pure."""
    good = [run for each in runs.values() for run in each if "failed" not in run]
    lines = [f"{run['gpu']}, torch {run['torch']}, CUDA {run['cuda']}" for run in good[:1]]
    heads = ("sessions", "launches", "whole", "lossy", "kernels", "untimed")
    lines.append(f"{'condition':<10} {' '.join(f'{head:>8}' for head in heads)}  where")
    any_lost = False
    for name, each in runs.items():
        failed = [run["failed"] for run in each if "failed" in run]
        told = [run for run in each if "failed" not in run]
        lost = [tuple(pair) for run in told for pair in run["lost"]]
        places = Counter(at for at, _ in lost)
        where = ", ".join(f"launch {at}: {count}x" for at, count in sorted(places.items())[:6])
        untimed = sum(run["untimed"] for run in told)
        any_lost = any_lost or bool(lost) or untimed > 0
        launches, whole = (sum(run[key] for run in told) for key in ("launches", "whole"))
        counts = (len(told), launches, whole, len(lost), sum(count for _, count in lost), untimed)
        lines.append(f"{name:<10} {' '.join(f'{count:>8}' for count in counts)}  {where}")
        lines += [f"{'':<10} failed: {words}" for words in failed]
    lines.append("kernels were lost" if any_lost else "nothing was lost" if good else "nothing was measured")
    return lines, any_lost


if __name__ == "__main__":
    sys.exit(main())
