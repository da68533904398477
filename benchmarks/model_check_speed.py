"""`invoke model.check` of checkpoints as large as the published one, in fresh processes: wall time against the limit.

    python benchmarks/model_check_speed.py [--json]

The headers are made here, with real names, types and shapes; the tensors are holes in sparse files. Two checkpoints:
34,000 tensors (the layout with fewer experts), and the published layout whole. Median of five runs each, from the
start of the check (imports excluded) to its last word; exit code 1 when one takes longer than 2 s for every 34,000
tensors, or finds something wrong. The processor time beside the wall time tells a slow program from a busy machine.
Beside them, on the same files: the safetensors library opens every file and names every tensor, and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RUNS = 5
LIMIT_S = 2.0
LIMIT_TENSORS = 34_000

CHILD = """
import contextlib, io, json, resource, sys, time
from sm86.cli.model import check
words = io.StringIO()
began, processor = time.perf_counter(), time.process_time()
with contextlib.redirect_stdout(words):
    code = check(sys.argv[1], json=True)
values = json.loads(words.getvalue())
# fewer experts than the family's are the benchmark's own doing
wrong = [f["rule"] for f in values["findings"] if f["state"] not in ("pass", "not applicable")]
print(json.dumps({
    "wall_s": time.perf_counter() - began,
    "processor_s": time.process_time() - processor,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "tensors": values["tensors"],
    "wrong": [rule for rule in wrong if rule != "config-values" or sys.argv[2] == "whole"],
}))
"""

PEER = """
import json, sys, time
from pathlib import Path
from safetensors import safe_open
began, processor = time.perf_counter(), time.process_time()
names = 0
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    with safe_open(path, framework="np") as file:
        names += len(list(file.keys()))
print(json.dumps({"wall_s": time.perf_counter() - began, "processor_s": time.process_time() - processor,
                  "tensors": names}))
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One checkpoint: the median run against the limit, and the library's median beside it (None: not installed)."""

    name: str
    tensors: int
    files: int
    median_s: float
    spread_s: float
    processor_s: float
    peak_mb: float
    limit_s: float
    library_s: float | None
    wrong: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.median_s <= self.limit_s and not self.wrong

    def words(self) -> str:
        wrong = f"; wrongly judged: {', '.join(self.wrong)}" if self.wrong else ""
        peer = f"; the library names them in {self.library_s} s" if self.library_s is not None else ""
        return (
            f"{self.name}: {self.tensors:,} tensors in {self.files} files: median {self.median_s} s of {RUNS} fresh "
            f"processes (spread {self.spread_s} s, processor {self.processor_s} s), limit {self.limit_s} s; peak "
            f"{self.peak_mb} MB{peer}: {'ok' if self.ok else 'OVER'}{wrong}"
        )


def run(code: str, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-800:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(name: str, folder: Path, kind: str) -> Result:
    runs = [run(CHILD, str(folder), kind) for _ in range(RUNS)]
    try:
        peer = statistics.median(float(str(run(PEER, str(folder))["wall_s"])) for _ in range(3))
    except RuntimeError:
        peer = None
    walls = [float(str(one["wall_s"])) for one in runs]
    return Result(
        name=name,
        tensors=int(str(runs[0]["tensors"])),
        files=len(list(folder.glob("*.safetensors"))),
        median_s=round(statistics.median(walls), 3),
        spread_s=round(max(walls) - min(walls), 3),
        processor_s=round(statistics.median(float(str(one["processor_s"])) for one in runs), 3),
        peak_mb=round(max(float(str(one["peak_mb"])) for one in runs), 1),
        limit_s=round(LIMIT_S * max(1.0, int(str(runs[0]["tensors"])) // LIMIT_TENSORS), 1),
        library_s=None if peer is None else round(peer, 3),
        wrong=tuple(str(rule) for rule in runs[0]["wrong"]),  # type: ignore[attr-defined]
    )


def main() -> int:
    from tests.weights import checkpoints

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as place:
        for name, experts, kind in (("34,000 tensors", 84, "fewer"), ("the published layout", 256, "whole")):
            folder = checkpoints.write(Path(place) / kind, checkpoints.config(experts=experts), shards=31)
            results.append(measure(name, folder, kind))
    if options.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "runs": RUNS}
        values = [{**asdict(result), "ok": result.ok} for result in results]
        print(
            json.dumps({"schema": "sm86.benchmark.model-check", "version": 1, **machine, "results": values}, indent=2)
        )
    else:
        print("\n".join(result.words() for result in results))
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
