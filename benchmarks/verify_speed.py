"""Verifying 100 MB logs, in fresh processes: wall time and peak memory against the limits.

    python benchmarks/verify_speed.py [--json] [--megabytes N]

Each log is a recorded boot followed by made-up, repeatable lines of one kind. Median of three runs each; exit code 1
when one is over its limit (2 s, 200 MB), or when what follows the boot changes what is found in it. The processor
time beside the wall time tells a slow program from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOT = ROOT / "tests" / "verify" / "logs" / "recorded_graph.log"
ENVELOPE = "sm86-80k-4seq"
RUNS = 3
LIMIT_S = 2.0
LIMIT_MB = 200

CHILD = """
import json, resource, sys, time
from sm86.cli.verify import _of_file
from sm86.spec import load_envelope
from sm86.verify.verify import verify_log
from pathlib import Path
began = time.perf_counter()
report = verify_log(load_envelope(sys.argv[1]), _of_file(Path(sys.argv[2])))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "wall_s": time.perf_counter() - began,
    "processor_s": usage.ru_utime + usage.ru_stime,
    "peak_mb": usage.ru_maxrss / 1024,
    "lines": report.lines,
    "states": {finding.rule: finding.state for finding in report.findings},
}))
"""

API = "(APIServer pid=1622) "


def serving(rng: random.Random) -> Iterator[str]:
    """What a busy server writes: requests, health checks, statistics, now and then a worker's warning."""
    paths = ("POST /v1/completions", "POST /v1/chat/completions", "GET /metrics", "GET /v1/models")
    while True:
        for _ in range(rng.randint(5, 60)):
            yield f'{API}INFO:     127.0.0.1:{rng.randint(32768, 60999)} - "{rng.choice(paths)} HTTP/1.1" 200 OK\n'
        yield f'{API}INFO:     127.0.0.1:{rng.randint(32768, 60999)} - "GET /health HTTP/1.1" 200 OK\n'
        yield (
            f"{API}INFO 11-30 15:5{rng.randint(0, 9)}:{rng.randint(10, 59)} [loggers.py:261] Engine 000: "
            f"Avg prompt throughput: {rng.random() * 4000:.1f} tokens/s, "
            f"Avg generation throughput: {rng.random() * 130:.1f} tokens/s, Running: {rng.randint(0, 4)} reqs, "
            f"Waiting: {rng.randint(0, 9)} reqs, GPU KV cache usage: {rng.random() * 100:.1f}%, "
            f"Prefix cache hit rate: {rng.random() * 100:.1f}%\n"
        )
        if rng.random() < 0.05:
            yield (
                f"(Worker_TP{rng.randint(0, 7)} pid={rng.randint(1700, 1800)}) (Worker_TP0 pid=1774) WARNING 11-30 "
                "15:51:38 [jit_monitor.py:135] Triton kernel JIT compilation during inference: _topk_kernel. This "
                "causes a latency spike; consider extending warmup to cover this shape/config.\n"
            )


def requests(rng: random.Random) -> Iterator[str]:
    """A server told to log every request: no two lines alike."""
    words = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "reads", "its", "prompt")
    while True:
        prompt = " ".join(rng.choices(words, k=rng.randint(5, 120)))
        yield (
            f"{API}INFO 11-30 15:51:38 [logger.py:40] Received request cmpl-{rng.getrandbits(128):032x}-0: prompt: "
            f"'{prompt}', params: SamplingParams(n=1, temperature={rng.random():.2f}, max_tokens=512), "
            "lora_request: None.\n"
        )


def bars(rng: random.Random) -> Iterator[str]:
    """Bars that rewrite one line for megabytes."""
    while True:
        total = rng.randint(2, 40)
        for step in range(rng.randint(1000, 20000)):
            done = min(step * total // 5000, total)
            yield (
                f"\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): {done * 100 // total:3}%|"
                f"{'█' * (done * 10 // total):<10}| {done}/{total} [00:{step % 60:02}<00:00,  2.{step % 10}it/s]"
            )
        yield "\n(Worker_TP0 pid=1774) "


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "a serving log": serving,
    "a log of every request": requests,
    "progress bars": bars,
}
"""Name -> maker of endless pieces of text."""


def write_log(path: Path, kind: str, size: int) -> None:
    pieces = KINDS[kind](random.Random(86))
    with path.open("wb") as file:
        written = file.write(BOOT.read_bytes())
        while written < size:
            block = "".join(next(pieces) for _ in range(2000)).encode()
            written += file.write(block)


@dataclass(frozen=True, slots=True)
class Run:
    """One fresh process: seconds, MB, physical lines, and the state of each rule."""

    wall_s: float
    processor_s: float
    peak_mb: float
    lines: int
    states: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """One kind of log: the median run against the limits."""

    name: str
    lines: int
    median_s: float
    spread_s: float
    processor_s: float
    limit_s: float
    peak_mb: float
    limit_mb: int
    changed_findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.median_s <= self.limit_s and self.peak_mb <= self.limit_mb and not self.changed_findings

    def words(self) -> str:
        changed = f"; findings changed: {', '.join(self.changed_findings)}" if self.changed_findings else ""
        return (
            f"{self.name}: median {self.median_s} s of {RUNS} fresh processes (spread {self.spread_s} s, processor "
            f"{self.processor_s} s), limit {self.limit_s} s; peak {self.peak_mb} MB, limit {self.limit_mb} MB; "
            f"{self.lines} lines: {'ok' if self.ok else 'OVER'}{changed}"
        )


def run(path: Path) -> Run:
    command = [sys.executable, "-c", CHILD, ENVELOPE, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"verify failed:\n{done.stderr.strip()[-800:]}")
    return Run(**json.loads(done.stdout))


def measure(kind: str, megabytes: int, boot: Run) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        write_log(path, kind, megabytes * 1_000_000)
        runs = [run(path) for _ in range(RUNS)]
    walls = [one.wall_s for one in runs]
    # bars that go on for ever stand somewhere else in the end, and are then rightly no longer complete
    free = {"graphs-captured"} if kind == "progress bars" else set()
    changed = {rule for rule, state in runs[0].states.items() if state != boot.states[rule]} - free
    return Result(
        name=kind,
        lines=runs[0].lines,
        median_s=round(statistics.median(walls), 3),
        spread_s=round(max(walls) - min(walls), 3),
        processor_s=round(statistics.median(one.processor_s for one in runs), 3),
        limit_s=LIMIT_S,
        peak_mb=round(max(one.peak_mb for one in runs), 1),
        limit_mb=LIMIT_MB,
        changed_findings=tuple(sorted(changed)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--megabytes", type=int, default=100, help="size of each log (default: 100)")
    options = parser.parse_args()
    boot = run(BOOT)
    results = [measure(kind, options.megabytes, boot) for kind in KINDS]
    if options.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "runs": RUNS}
        values = [{**asdict(result), "ok": result.ok} for result in results]
        print(json.dumps({"schema": "sm86.benchmark.verify", "version": 1, **machine, "results": values}, indent=2))
    else:
        print("\n".join(result.words() for result in results))
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
