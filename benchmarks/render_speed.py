"""Rendering everything, and `invoke --list`, in fresh processes: wall time against the limits.

    python benchmarks/render_speed.py [--json]

Median of five runs each; exit code 1 when one is over its limit (0.5 s for rendering, 0.4 s for the list). The
processor time beside it tells a slow program from a busy machine.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5

RENDER = (
    "from sm86.render import render_all; from sm86.spec import load_all, load_pins; render_all(load_all(), load_pins())"
)

CASES = {
    "render everything": (0.5, [sys.executable, "-c", RENDER]),
    "invoke --list": (0.4, [sys.executable, "-m", "invoke", "--list"]),
}
"""Name -> limit in seconds, command run in the clone's root."""


def measure(command: list[str]) -> list[tuple[float, float]]:
    """(wall, processor) seconds of RUNS fresh processes, after one that fills the page and bytecode caches."""
    seconds = []
    for _ in range(RUNS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append((wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime))
        if done.returncode:
            sys.exit(f"{' '.join(command[:3])} failed:\n{done.stderr.strip()[-800:]}")
    return seconds[1:]


def main() -> int:
    results = []
    for name, (limit, command) in CASES.items():
        walls, processor = zip(*measure(command), strict=True)
        median = statistics.median(walls)
        results.append(
            {
                "name": name,
                "median_s": round(median, 3),
                "spread_s": round(max(walls) - min(walls), 3),
                "processor_s": round(statistics.median(processor), 3),
                "limit_s": limit,
                "ok": median <= limit,
            }
        )
    if "--json" in sys.argv[1:]:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "runs": RUNS}
        print(json.dumps({"schema": "sm86.benchmark.render", "version": 1, **machine, "results": results}, indent=2))
    else:
        for result in results:
            word = "ok" if result["ok"] else "OVER"
            print(
                f"{result['name']}: median {result['median_s']} s of {RUNS} fresh processes "
                f"(spread {result['spread_s']} s, processor {result['processor_s']} s), "
                f"limit {result['limit_s']} s: {word}"
            )
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
