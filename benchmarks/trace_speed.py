"""How fast a trace is attributed, and in how much memory, beside other readers of the same file.

    python benchmarks/trace_speed.py --megabytes 300 --hta-python /path/to/venv/bin/python

Writes a trace of known totals (see sm86/trace/testing), then starts every reader in a fresh process on
two cores and takes its wall time and its highest resident memory from the kernel. Every answer is
compared with the known totals. Time includes gunzip, import and start of the process. HolisticTraceAnalysis
is run by the Python that --hta-python names; without it, its row says "absent".
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.trace.testing.generator import Recipe, Truth, write  # noqa: E402

MEGABYTES_PER_STEP = 1.078
NOTHING = (float("nan"),)
LIMITS = {300: (3.0, 120.0), 1200: (13.0, 150.0)}

OURS = """
import json, sys
if {zlib}: sys.modules["isal"] = None
from pathlib import Path
from sm86.trace.analysis import analyse
from sm86.trace.as_json import trace_json
result = analyse(Path(sys.argv[1]), standard_json={standard})
view = result.steps
trace_json([result], None, [])
print(json.dumps({{
    "counts": result.expected_counts(),
    "buckets": {{row.bucket.key: [row.calls, row.total] for row in view.buckets}},
    "all_reduce": {{str(layer): round(time * view.units) for layer, time in view.all_reduce_per_layer}},
    "gpu_us": sum(t for _, _, _, t in result.outside) / 1000 + view.total / 1000,
}}))
"""

STANDARD = """
import gzip, json, sys
opener = gzip.open if sys.argv[1].endswith(".gz") else open
with opener(sys.argv[1]) as file:
    events = json.load(file)["traceEvents"]
launches = {e["args"]["correlation"] for e in events if e.get("name") == "cudaGraphLaunch"}
gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
inside = [e for e in gpu if e["args"]["correlation"] in launches]
print(json.dumps({"gpu_events": len(gpu), "graph_us": round(sum(e["dur"] for e in inside), 1)}))
"""

HTA = """
import json, sys, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
print(json.dumps({"kernel_us": float(kernels["sum (us)"].sum())}))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One reader's runs: wall and CPU seconds, highest resident MB, and what its answer was worth."""

    name: str
    seconds: tuple[float, ...]
    cpu: tuple[float, ...]
    megabytes: float
    verdict: str

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure(
    python: str, script: str, path: Path, cores: set[int], environment: dict[str, str]
) -> tuple[float, float, float, Any]:
    """(wall seconds, CPU seconds, highest resident MB, the JSON that it printed) of one fresh process."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            [python, "-c", script, str(path)],
            stdout=out,
            stderr=err,
            cwd=ROOT,
            env={**os.environ, **environment},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            err.seek(0)
            raise RuntimeError((err.read().strip().splitlines() or ["no words"])[-1])
        out.seek(0)
        return (
            seconds,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024,
            json.loads(out.read().strip().splitlines()[-1]),
        )


def repeated(
    name: str, python: str, script: str, path: Path, options: argparse.Namespace, check: Any, **env: str
) -> Run:
    cores = set(sorted(os.sched_getaffinity(0))[: options.cores])
    seconds: list[float] = []
    cpu: list[float] = []
    memory, verdict = 0.0, ""
    for _ in range(options.repeats if name.startswith("sm86") else 1):
        try:
            wall, busy, resident, answer = measure(python, script, path, cores, dict(env))
        except (RuntimeError, OSError, ValueError) as error:
            return Run(name, NOTHING, NOTHING, float("nan"), f"failed: {error}")
        seconds.append(wall)
        cpu.append(busy)
        memory = max(memory, resident)
        verdict = check(answer)
    return Run(name, tuple(seconds), tuple(cpu), memory, verdict)


def check_ours(truth: Truth) -> Any:
    first = 0 if truth.counts["launches"] > len(truth.whole) else 1
    all_reduce = {str(layer): time for layer, time in truth.per_layer("tp_all_reduce", first).items()}

    def check(answer: Any) -> str:
        wrong = [
            name
            for name, good in (
                ("counts", answer["counts"] == truth.counts),
                ("buckets", answer["buckets"] == truth.totals(first)),
                ("all-reduce per layer", answer["all_reduce"] == all_reduce),
            )
            if not good
        ]
        return "WRONG: " + ", ".join(wrong) if wrong else "every total exact"

    return check


def check_standard(truth: Truth) -> Any:
    def check(answer: Any) -> str:
        good = answer["gpu_events"] == truth.counts["gpu_events"]
        good = good and abs(answer["graph_us"] - truth.counts["graph_us"]) < 0.2
        return "counts and one sum right; no attribution" if good else f"WRONG: {answer}"

    return check


def check_hta(kernel_us: float) -> Any:
    return lambda answer: f"kernel time {answer['kernel_us'] / kernel_us - 1:+.2%}; no graphs, no layers"


def kernel_total_us(path: Path) -> float:
    """All GPU time in the file by a plain text search, to hold other readers' sums against."""
    import gzip
    import re

    pattern = re.compile(r'"dur": ([0-9.]+)')
    total, wanted = 0.0, False
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        for line in file:
            if '"cat": "' in line:
                wanted = '"cat": "kernel"' in line or '"cat": "gpu_mem' in line
            elif wanted and (match := pattern.search(line)):
                total += float(match[1])
                wanted = False
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300, help="size of the uncompressed trace")
    parser.add_argument("--hta-python", help="a Python in which HolisticTraceAnalysis is installed")
    parser.add_argument("--repeats", type=int, default=3, help="runs of our own reader; the median counts")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only-ours", action="store_true", help="leave the other readers out")
    parser.add_argument("--raw", action="store_true", help="read the uncompressed file instead of the .gz")
    parser.add_argument("--folder", type=Path, help="where the trace is written (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return report(folder, options)


def report(folder: Path, options: argparse.Namespace) -> int:
    steps = round(options.megabytes / MEGABYTES_PER_STEP)
    path = folder / ("rank0.json" if options.raw else "rank0.json.gz")
    print(f"writing {steps} steps to {path} ...", file=sys.stderr, flush=True)
    truth = write(path, Recipe(steps=steps, orphans=2, partial=2, host_events=340))
    check = check_ours(truth)
    runs = [
        repeated("sm86 (msgspec)", sys.executable, OURS.format(standard=False, zlib=False), path, options, check),
        repeated(
            "sm86 (msgspec, no isal)", sys.executable, OURS.format(standard=False, zlib=True), path, options, check
        ),
    ]
    if not options.only_ours:
        script = OURS.format(standard=True, zlib=False)
        runs.append(repeated("sm86 (standard json, same blocks)", sys.executable, script, path, options, check))
        runs.append(repeated("json.load, one sum", sys.executable, STANDARD, path, options, check_standard(truth)))
        runs.append(hta_run(path, options))
    conditions = {
        "trace": f"{events_text(truth)}, {file_size(path)}",
        "machine": f"{cpu_name()}, {options.cores} cores used, Python {platform.python_version()}, {libraries()}",
        "load": f"load average {os.getloadavg()[0]:.1f} at the end",
    }
    limit = LIMITS.get(options.megabytes)
    if options.json:
        rows = [
            {"reader": r.name, "seconds": r.seconds, "cpu_seconds": r.cpu, "rss_mb": r.megabytes, "answer": r.verdict}
            for r in runs
        ]
        print(
            json.dumps({"schema": "sm86.trace_speed", "version": 1, "conditions": conditions, "rows": rows}, indent=1)
        )
    else:
        for key, value in conditions.items():
            print(f"{key}: {value}")
        print(f"{'reader':36} {'s':>8} {'CPU s':>8} {'RSS MB':>8}  answer")
        for run in runs:
            spread = f" ({min(run.seconds):.2f}-{max(run.seconds):.2f})" if len(run.seconds) > 1 else ""
            numbers = f"{run.median:8.2f} {statistics.median(run.cpu):8.2f} {run.megabytes:8.0f}"
            print(f"{run.name:36} {numbers}  {run.verdict}{spread}")
    ours = runs[0]
    if "WRONG" in ours.verdict or "failed" in ours.verdict:
        return 1
    if limit and (ours.median > limit[0] or ours.megabytes > limit[1]):
        print(f"over the limit of {limit[0]} s and {limit[1]:.0f} MB", file=sys.stderr)
        return 1
    return 0


def hta_run(path: Path, options: argparse.Namespace) -> Run:
    name = "HolisticTraceAnalysis"
    if not options.hta_python:
        return Run(name, NOTHING, NOTHING, float("nan"), "absent: give --hta-python")
    probe = subprocess.run(
        [options.hta_python, "-c", "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode:
        return Run(name, NOTHING, NOTHING, float("nan"), f"absent from {options.hta_python}")
    return repeated(
        f"{name} {probe.stdout.strip()}", options.hta_python, HTA, path, options, check_hta(kernel_total_us(path))
    )


def events_text(truth: Truth) -> str:
    counts = truth.counts
    return f"{counts['events']:,} events, {counts['gpu_events']:,} of the GPU, {counts['launches']:,} graph launches"


def file_size(path: Path) -> str:
    if path.suffix != ".gz":
        return f"{path.stat().st_size / 1e6:.0f} MB"
    import zlib

    inflater, size = zlib.decompressobj(31), 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            size += len(inflater.decompress(data))
    return f"{size / 1e6:.0f} MB ({path.stat().st_size / 1e6:.0f} MB as .gz, which is read)"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def libraries() -> str:
    from importlib.metadata import PackageNotFoundError, version

    said = []
    for name in ("msgspec", "isal"):
        try:
            said.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            said.append(f"no {name}")
    return ", ".join(said)


if __name__ == "__main__":
    raise SystemExit(main())
