"""`invoke doctor` on this machine and on recorded facts, in fresh processes: wall time against the limits.

    python benchmarks/doctor_speed.py [--json]

Median of five runs each; exit code 1 when one is over its limit. On a machine without GPUs the whole doctor may take
3 s, judging facts from a file 1 s. With GPUs the driver is asked, too, which may start them first: that is shown and
not limited. The processor time beside it tells a slow program from a busy machine.
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
FACTS = ROOT / "tests/doctor/rigs/8x3090_bad.json"
DOCTOR = [sys.executable, "-m", "invoke", "doctor", "--json"]

CASES = {
    "this machine": (3.0, DOCTOR),
    "facts of 8x 3090": (1.0, [*DOCTOR, "--from", str(FACTS)]),
}
"""Name -> limit in seconds, command run in the clone's root."""


def measure(command: list[str]) -> tuple[list[tuple[float, float]], bool]:
    """(wall, processor) seconds of RUNS fresh processes after one that fills the caches; whether there were GPUs."""
    seconds, gpus = [], False
    for _ in range(RUNS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append((wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime))
        # 1 is a finding, and the doctor's work is done
        if done.returncode not in (0, 1) or not done.stdout:
            sys.exit(f"{' '.join(command[2:])} failed:\n{done.stderr.strip()[-800:]}")
        gpus = bool(json.loads(done.stdout)["facts"]["gpus"])
    return seconds[1:], gpus


def main() -> int:
    results = []
    for name, (limit, command) in CASES.items():
        seconds, gpus = measure(command)
        walls, processor = zip(*seconds, strict=True)
        median = statistics.median(walls)
        judged = not (gpus and command is DOCTOR)
        results.append(
            {
                "name": name,
                "median_s": round(median, 3),
                "spread_s": round(max(walls) - min(walls), 3),
                "processor_s": round(statistics.median(processor), 3),
                "limit_s": limit if judged else None,
                "passed": median <= limit if judged else None,
            }
        )
    passed = all(result["passed"] is not False for result in results)
    if "--json" in sys.argv[1:]:
        machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
        print(json.dumps({"schema": "sm86.benchmark", "version": 1, "machine": machine, "results": results}, indent=2))
    else:
        for result in results:
            limit = f"limit {result['limit_s']} s" if result["limit_s"] else "no limit: this machine has GPUs"
            print(
                f"{result['name']:<20}{result['median_s']:.3f} s, spread {result['spread_s']:.3f}, "
                f"processor {result['processor_s']:.3f} ({limit})"
            )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
