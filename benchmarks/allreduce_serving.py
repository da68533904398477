"""The all-reduce inside vLLM: the proof checkpoint served on two GPUs by NCCL and by host memory, one after the other.

    python -m sm86.backend.testing.checkpoint models/proof            # once, half a minute on a GPU
    python benchmarks/allreduce_serving.py --model models/proof [--modes 0,1,auto] [--json FILE]

Starts `sm86-proof-tp2` once for each mode of SM86_HOST_ALLREDUCE with peer access hidden from NCCL, asks the same
greedy prompts, and says: what the log chose, milliseconds of one decode step (one sequence and four; two lengths of
answer are subtracted, so prompt and request cost nothing), and where tokens part from mode 0's. They may: host memory
rounds once where NCCL's ring rounds at every hop. `python -m sm86.backend.testing.parity MODEL RUN.json` holds each
mode's run file, written beside --json's, against the noise floor.

Exit code 0: measured; 1: a server died or asked-for host memory did not serve; 2: could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.backend.testing.ask import complete, prompts  # noqa: E402
from sm86.backend.testing.gpu_group import gpus_for  # noqa: E402
from sm86.cli.guard import guard, whole_number  # noqa: E402
from sm86.errors import EXIT_FINDING, EXIT_OK, CheckFailed, CouldNotRun  # noqa: E402
from sm86.files import write_atomic  # noqa: E402
from sm86.manifest import Entry, parse_line  # noqa: E402

ENVELOPE = "sm86-proof-tp2"
MODES = ("0", "1", "auto")
LENGTHS, VOCABULARY, GENERATE = [16, 40, 128, 300], 4096, 48
SHORT, LONG = 16, 144
BOOT_S, ANSWER_S = 900.0, 300.0


class Server:
    """One server of one mode; a context manager that ends it."""

    def __init__(self, mode: str, model: str, gpus: list[str], log: Path) -> None:
        self.mode, self.log = mode, log
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        own = {
            **os.environ,
            "SM86_HOST_ALLREDUCE": mode,
            "NCCL_P2P_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "SM86_FORCE": "1",
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "PYTHONPATH": str(ROOT),
        }
        argv = [sys.executable, "-P", "-m", "sm86.launch", "--envelope", ENVELOPE, "--model-path", model]
        argv += ["--host", "127.0.0.1", "--port", str(self.port)]
        self.url = f"http://127.0.0.1:{self.port}"
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                argv, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Server:
        end = time.monotonic() + BOOT_S
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
                raise CheckFailed(f"the server with SM86_HOST_ALLREDUCE={self.mode} did not start", f"its log:\n{tail}")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except (OSError, urllib.error.URLError):
                time.sleep(1.0)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def said(self) -> dict[str, Any]:
        """The `[sm86] collectives` lines; `measured` as a list."""
        return collectives_of(self.log.read_text(errors="replace"))


def collectives_of(log: str) -> dict[str, Any]:
    """What a log's collectives lines say. Pure."""
    found: dict[str, Any] = {"measured": []}
    for line in log.splitlines():
        _, mark, rest = line.partition("[sm86] ")
        entry = parse_line(mark + rest) if mark else None
        if isinstance(entry, Entry) and entry.section == "collectives":
            if entry.key == "measured":
                found["measured"].append(entry.value)
            else:
                found[entry.key] = entry.value
    return found


def step_ms(server: Server, sequences: int, repeats: int) -> dict[str, float]:
    """Milliseconds of one decode step of so many sequences: median, least and most of the repeats."""
    asked = prompts([16] * sequences, VOCABULARY)

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        with ThreadPoolExecutor(sequences) as pool:
            list(pool.map(lambda p: complete(server.url, ENVELOPE, p, count, False, ANSWER_S), asked))
        return time.perf_counter() - begin

    seconds(LONG)
    times = [(seconds(LONG) - seconds(SHORT)) / (LONG - SHORT) * 1000 for _ in range(repeats)]
    return {"median": statistics.median(times), "low": min(times), "high": max(times)}


def parted(mine: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """By prompt: how many tokens are equal from the start, and the largest log-prob difference on them. Pure."""
    result = {}
    for a, b in zip(mine, other, strict=True):
        pairs = list(zip(a["generated"], b["generated"], strict=True))
        equal = next((k for k, (x, y) in enumerate(pairs) if x != y), len(pairs))
        gaps = [abs(x - y) for x, y in zip(a["logprobs"][:equal], b["logprobs"][:equal], strict=True)]
        result[a["name"]] = {"equal": equal, "of": len(pairs), "largest_gap": max(gaps, default=0.0)}
    return result


def measure(mode: str, model: str, gpus: list[str], log: Path, repeats: int) -> dict[str, Any]:
    with Server(mode, model, gpus, log) as server:
        run = [
            {"name": f"alone-{len(p)}", **complete(server.url, ENVELOPE, p, GENERATE, True, ANSWER_S)}
            for p in prompts(LENGTHS, VOCABULARY)
        ]
        steps = {str(count): step_ms(server, count, repeats) for count in (1, 4)}
        return {"said": server.said(), "steps_ms": steps, "run": run}


def words_of(found: dict[str, dict[str, Any]]) -> str:
    """One line per mode, then where tokens part."""
    lines = ["| SM86_HOST_ALLREDUCE | choice | step, 1 sequence, ms | step, 4 sequences, ms |", "|---|---|---|---|"]
    for mode, one in found.items():
        cells = [f"{row['median']:.3f} ({row['low']:.3f}-{row['high']:.3f})" for row in one["steps_ms"].values()]
        lines.append(f"| {mode} | {one['said'].get('choice', 'none said')} | {' | '.join(cells)} |")
    for mode, one in found.items():
        lines.append(f"{mode}: {one['said'].get('reason', 'no reason said')}")
        if mode != "0" and "0" in found:
            for name, row in parted(one["run"], found["0"]["run"]).items():
                gap = f"log-probs within {row['largest_gap']:.4f}"
                lines.append(f"  {name}: {row['equal']} of {row['of']} tokens as with NCCL, {gap}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="models/proof", help="the proof checkpoint's folder")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all numbers here, and run files beside it")
    arguments = parser.parse_args(argv)
    modes = arguments.modes.split(",")
    try:
        if not set(modes) <= set(MODES):
            raise CouldNotRun(f"--modes {arguments.modes}: not of {', '.join(MODES)}", "use for example --modes 0,1")
        whole_number(arguments.repeats, "repeats", 1, 1000)
        gpus = gpus_for(2)
        if not (Path(arguments.model) / "config.json").is_file():
            mend = f"make it: python -m sm86.backend.testing.checkpoint {arguments.model}"
            raise CouldNotRun(f"there is no checkpoint in {arguments.model}", mend)
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            for mode in modes:
                log = Path(folder) / f"{mode}.log"
                found[mode] = measure(mode, arguments.model, gpus, log, arguments.repeats)
                if arguments.json:
                    stem = arguments.json.with_suffix("")
                    write_atomic(Path(f"{stem}.{mode}.log"), log.read_bytes())
                    write_atomic(Path(f"{stem}.{mode}.run.json"), json.dumps(found[mode]["run"]))
    except (CouldNotRun, CheckFailed) as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return fault.exit_code
    print(words_of(found))
    if arguments.json:
        document = {"schema": "sm86.allreduce-serving", "version": 1, "envelope": ENVELOPE, "modes": found}
        write_atomic(arguments.json, json.dumps(document, indent=1) + "\n")
    served = found.get("1", {"said": {"choice": "host"}})["said"].get("choice") == "host"
    return EXIT_OK if served else EXIT_FINDING


if __name__ == "__main__":
    sys.exit(guard(main))
