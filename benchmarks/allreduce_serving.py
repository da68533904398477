"""The all-reduce inside vLLM: the proof checkpoint served on two GPUs by NCCL and by host memory, one after the other.

    python -m sm86.backend.testing.checkpoint models/proof            # once, half a minute on a GPU
    python benchmarks/allreduce_serving.py --model models/proof [--modes 0,1,auto] [--budget-s S] [--json FILE]

Starts `sm86-proof-tp2` once for each mode of SM86_HOST_ALLREDUCE with peer access hidden from NCCL and with vLLM's own
custom all-reduce off, which would use peer access all the same. Asks the same greedy prompts, and says: what the log
chose, milliseconds of one decode step (one sequence and four; two lengths of answer are subtracted, so prompt and
request cost nothing), and where tokens part from mode 0's. They may: host memory rounds once where NCCL's ring rounds
at every hop. `python -m sm86.backend.testing.parity MODEL RUN.json` holds each mode's run file, written beside --json's
with its log, against the noise floor.

Exit code 0: measured; 1: a server died, or not what was asked for reduced; 2: could not run, or nothing was measured
in the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.backend.collectives.decision import HOST, NCCL  # noqa: E402
from sm86.backend.testing.ask import complete, prompts  # noqa: E402
from sm86.backend.testing.budget import Budget, add_option, budget_of, progress  # noqa: E402
from sm86.backend.testing.gpu_group import gpus_for  # noqa: E402
from sm86.cli.guard import guard, whole_number  # noqa: E402
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CheckFailed, CouldNotRun  # noqa: E402
from sm86.files import write_atomic  # noqa: E402
from sm86.manifest import Entry, parse_line  # noqa: E402
from sm86.spec.argv import serve_argv  # noqa: E402
from sm86.spec.load import load_envelope  # noqa: E402

ENVELOPE = "sm86-proof-tp2"
MODES = ("0", "1", "auto")
LENGTHS, VOCABULARY, GENERATE = [16, 40, 128, 300], 4096, 48
SHORT, LONG = 16, 144
BOOT_S, ANSWER_S = 900.0, 300.0
NCCL_ALONE = "['PYNCCL']"
Found = dict[str, Any]
LEAST_S = 60.0
"""What is left of a budget must hold a boot, or there is no use in starting one."""
TOLD_S = 20.0


class OutOfTime(Exception):
    """The budget ended before the server answered."""


def environment_of(mode: str, gpus: list[str], base: Mapping[str, str]) -> dict[str, str]:
    """A server's environment: what is there, the envelope's own, the mode, and no peer access for NCCL. Pure.

    This tree stands first on PYTHONPATH and what is there stays: the engine may be found by it alone.
    """
    path = [str(ROOT), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **base,
        **dict(load_envelope(ENVELOPE).environment),
        "SM86_HOST_ALLREDUCE": mode,
        "NCCL_P2P_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
    }


def command_of(model: str, port: int) -> list[str]:
    """The launcher's command: the envelope's arguments, and vLLM's custom all-reduce off. With peer access between two
    GPUs it would stand in NCCL's place, whatever NCCL is told."""
    argv = serve_argv(load_envelope(ENVELOPE), model, "127.0.0.1", port)
    return [
        sys.executable,
        "-P",
        "-m",
        "sm86.launch",
        "--envelope",
        ENVELOPE,
        "--",
        *argv,
        "--disable-custom-all-reduce",
    ]


class Server:
    """One server of one mode; a context manager that ends it."""

    running: ClassVar[set[int]] = set()

    def __init__(self, mode: str, model: str, gpus: list[str], log: Path, budget: Budget) -> None:
        self.mode, self.log, self.budget = mode, log, budget
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        own = environment_of(mode, gpus, os.environ)
        argv = command_of(model, self.port)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                argv, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.running.add(self.process.pid)

    def __enter__(self) -> Server:
        began = time.monotonic()
        end, told = began + BOOT_S, began
        try:
            while True:
                now = time.monotonic()
                if not self.budget.allows(0.0):
                    raise OutOfTime(f"it had not started after {now - began:.0f} s; its log ends: {self.tail(3)}")
                if self.process.poll() is not None or now > end:
                    what = f"the server with SM86_HOST_ALLREDUCE={self.mode} did not start"
                    raise CheckFailed(what, f"its log ends:\n{self.tail(40)}")
                if now > told + TOLD_S:
                    told = now
                    progress(f"mode {self.mode}: booting for {now - began:.0f} s; {self.tail(1)[-160:]}")
                try:
                    urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                    progress(f"mode {self.mode}: up after {now - began:.0f} s")
                    return self
                except OSError:
                    time.sleep(1.0)
        except BaseException:
            self.__exit__()
            raise

    def tail(self, lines: int) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __exit__(self, *_: object) -> None:
        # all of its processes: the engine's own outlive a front end that has died
        grace = 60.0 if self.budget.allows(60.0) else 5.0
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.running.discard(self.process.pid)

    @classmethod
    def end_all(cls) -> None:
        """For the watch: no time for grace."""
        for pid in tuple(cls.running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

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
            list(pool.map(lambda p: complete(server.url, ENVELOPE, p, count, False, _patience(server.budget)), asked))
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


def reducer_of(log: str) -> str | None:
    """What vLLM says it may reduce with besides this product's own, from its line; None where it says nothing. Pure."""
    found = re.findall(r"Using (\[[^\]]*\]) all-reduce backends[^\n]* for group 'tp:", log)
    return str(found[-1]) if found else None


def measure(mode: str, model: str, gpus: list[str], log: Path, budget: Budget, repeats: int, found: Found) -> None:
    """Fill `found`, piece by piece, so that what is there stays when the time is over."""
    with Server(mode, model, gpus, log, budget) as server:
        found["said"] = server.said()
        found["reducers"] = reducer_of(log.read_text(errors="replace"))
        if found["reducers"] not in (None, NCCL_ALONE):
            found["failed"] = f"vLLM reduces by {found['reducers']}: this is no comparison with NCCL"
        found["run"] = []
        for prompt in prompts(LENGTHS, VOCABULARY):
            _require(budget)
            answer = complete(server.url, ENVELOPE, prompt, GENERATE, True, _patience(budget))
            found["run"].append({"name": f"alone-{len(prompt)}", **answer})
            progress(f"mode {mode}: a prompt of {len(prompt)} tokens is answered")
        found["steps_ms"] = {}
        for count in (1, 4):
            _require(budget)
            found["steps_ms"][str(count)] = row = step_ms(server, count, repeats)
            progress(f"mode {mode}: {count} sequences, {row['median']:.3f} ms a step")
        found["said"] = server.said()


def _patience(budget: Budget) -> float:
    return max(1.0, min(ANSWER_S, budget.left()))


def _require(budget: Budget) -> None:
    if not budget.allows(1.0):
        raise OutOfTime("the server was up, and the time was over before all was asked")


def words_of(found: dict[str, Found]) -> str:
    """One line per mode, then where tokens part."""
    lines = ["| SM86_HOST_ALLREDUCE | choice | step, 1 sequence, ms | step, 4 sequences, ms |", "|---|---|---|---|"]
    for mode, one in found.items():
        rows = [one.get("steps_ms", {}).get(count) for count in ("1", "4")]
        cells = [f"{row['median']:.3f} ({row['low']:.3f}-{row['high']:.3f})" if row else "not measured" for row in rows]
        lines.append(f"| {mode} | {one.get('said', {}).get('choice', 'none said')} | {' | '.join(cells)} |")
    whole = found.get("0", {}).get("run", [])
    for mode, one in found.items():
        lines.append(f"{mode}: {one.get('said', {}).get('reason', 'no reason said')}; vLLM: {one.get('reducers')}")
        lines += [f"  {key}: {one[key]}" for key in ("failed", "left out") if key in one]
        both = min(len(whole), len(one.get("run", [])))
        if mode != "0" and both:
            for name, row in parted(one["run"][:both], whole[:both]).items():
                gap = f"log-probs within {row['largest_gap']:.4f}"
                lines.append(f"  {name}: {row['equal']} of {row['of']} tokens as with NCCL, {gap}")
    return "\n".join(lines)


def write(target: Path | None, found: dict[str, Found]) -> None:
    """All that is known so far."""
    if target is not None:
        document = {"schema": "sm86.allreduce-serving", "version": 1, "envelope": ENVELOPE, "modes": found}
        write_atomic(target, json.dumps(document, indent=1) + "\n")


def keep(target: Path | None, mode: str, log: Path, one: Found) -> None:
    """The mode's log and its run file, beside --json's; also of a server that died."""
    if target is None:
        return
    stem = target.with_suffix("")
    if log.exists():
        write_atomic(Path(f"{stem}.{mode}.log"), log.read_bytes())
    if one.get("run"):
        write_atomic(Path(f"{stem}.{mode}.run.json"), json.dumps(one["run"]))


def one_mode(mode: str, given: argparse.Namespace, gpus: list[str], log: Path, budget: Budget) -> Found:
    """A mode's findings, whatever becomes of its server."""
    found: Found = {}
    if not budget.allows(LEAST_S):
        return {"left out": budget.words()}
    progress(f"mode {mode}: starting the server")
    try:
        measure(mode, given.model, gpus, log, budget, given.repeats, found)
    except OutOfTime as late:
        found["left out"] = f"the budget was spent: {late}"
    except CheckFailed as fault:
        found["failed"] = fault.what
        progress(f"{fault.what}\n{fault.mend}")
    except (OSError, ValueError, KeyError) as error:
        # an answer that did not come or is none: the server's log says more
        found["failed"] = f"a request failed: {type(error).__name__}: {error}"
        progress(found["failed"])
    return found


def code_of(found: dict[str, Found]) -> int:
    """What was asked for must have served, and by what it was asked to. Pure."""
    served = {"0": NCCL, "1": HOST}
    for mode, one in found.items():
        choice = one.get("said", {}).get("choice")
        if "failed" in one or (mode in served and choice is not None and choice != served[mode]):
            return EXIT_FINDING
        if one.get("steps_ms") and mode == "1" and choice != HOST:
            return EXIT_FINDING
    return EXIT_OK if any(one.get("steps_ms") for one in found.values()) else EXIT_COULD_NOT_RUN


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="models/proof", help="the proof checkpoint's folder")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--repeats", type=int, default=7)
    add_option(parser)
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
        budget = budget_of(arguments, Server.end_all)
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return fault.exit_code
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in modes:
            log = Path(folder) / f"{mode}.log"
            found[mode] = one_mode(mode, arguments, gpus, log, budget)
            keep(arguments.json, mode, log, found[mode])
            write(arguments.json, found)
    print(words_of(found), flush=True)
    return code_of(found)


if __name__ == "__main__":
    sys.exit(guard(main))
