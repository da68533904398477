"""`invoke plan` after its imports: one plan, and a search over a rig, against their limits.

    python benchmarks/plan_speed.py [--json]

Each case runs in fresh processes, with nothing cached, and is timed from the end of the imports to the printed answer
(its text is thrown away). One thread computes and hardly waits, so the limits (0.05 s for a plan, 2 s for the rest)
hold for its processor time, the median of RUNS: on a machine without other work that is the time a person waits, on a
busy one it is still the program's own. Exit code 1 when one is over. The time that passed stands beside it, and the
whole process, Python's start and the imports included.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 15
LOG = ROOT / "tests" / "verify" / "logs" / "recorded_kv1790.log"

BEGIN = """
import io, sys, time
sys.path.insert(0, {root!r})
import sm86.cli.plan as command
import sm86.report.plan_table, sm86.report.plan_answers, sm86.report.plan_words, sm86.fit.search, sm86.fit.what_if
import sm86.fit.envelope_toml, sm86.fit.check_log, sm86.fit.log_facts, sm86.cli.verify, sm86.files, tempfile
import rich.console, rich.table, rich.text
out, sys.stdout = sys.stdout, io.StringIO()
start, processor = time.perf_counter(), time.process_time()
command.plan({arguments})
seconds, processor = time.perf_counter() - start, time.process_time() - processor
said = sys.stdout.getvalue()
sys.stdout = out
assert len(said) > 200, said
print(seconds, processor)
"""

CASES = {
    "plan of one envelope": (0.05, "'sm86-262k'"),
    "plan of all envelopes": (0.05, ""),
    "plan --fit, 8x3090": (2.0, "fit=True, rig='8x3090', dry_run=True"),
    "plan --fit, 8x RTX A6000": (2.0, "fit=True, rig='8xa6000', dry_run=True"),
    "plan --fit, the most sequences of 32768 tokens": (2.0, "fit=True, rig='8xa6000', context=32768, dry_run=True"),
    "plan --what-if": (2.0, "what_if=True"),
    "plan --check": (2.0, f"check={str(LOG)!r}"),
}
"""Name -> limit in seconds, arguments of the command."""


def measure(arguments: str) -> list[tuple[float, float, float]]:
    """Seconds after imports, of processor time among them, and of the whole process; RUNS of them after one that fills
    the page cache."""
    program = BEGIN.format(root=str(ROOT), arguments=arguments)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RUNS + 1):
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120
            )
            whole = time.perf_counter() - start
            if done.returncode:
                sys.exit(f"plan({arguments}) failed:\n{done.stderr.strip()[-800:]}")
            after, processor = (float(number) for number in done.stdout.split())
            seconds.append((after, processor, whole))
    return seconds[1:]


def main() -> int:
    results = []
    for name, (limit, arguments) in CASES.items():
        after, processor, whole = zip(*measure(arguments), strict=True)
        used = statistics.median(processor)
        results.append(
            {
                "name": name,
                "processor_s": round(used, 4),
                "least_s": round(min(after), 4),
                "median_s": round(statistics.median(after), 4),
                "process_s": round(statistics.median(whole), 3),
                "limit_s": limit,
                "ok": used <= limit,
            }
        )
    if "--json" in sys.argv[1:]:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "runs": RUNS}
        print(json.dumps({"schema": "sm86.benchmark.plan", "version": 1, **machine, "results": results}, indent=2))
    else:
        for result in results:
            word = "ok" if result["ok"] else "OVER"
            used, least, median = (1000 * float(result[key]) for key in ("processor_s", "least_s", "median_s"))
            passed = f"passed: {least:.1f} ms at least, {median:.1f} ms median; process {result['process_s']} s"
            limit = f"limit {result['limit_s']} s: {word}"
            print(f"{result['name']}: {used:.1f} ms of processor time, {limit} ({RUNS} fresh processes, {passed})")
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
