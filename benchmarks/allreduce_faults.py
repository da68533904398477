"""The host-memory all-reduce under everything that may happen to it, on real GPUs: values, skew, deaths, full memory.

    python benchmarks/allreduce_faults.py [--gpus N | --share-gpu [RANKS]] [--calls 10000] [--only "NAME;NAME"]
                                          [--budget-s S] [--json FILE]

One process per GPU and scenario. A scenario ends as pass, fail or not made (with the reason); the table says which.
Exit code 0: all that were made passed; 1: one failed; 2: none was made, or it could not run (no GPU, no torch for CUDA,
no library).

--share-gpu runs 2 (or RANKS) processes on the first visible GPU. The driver gives them time slices in turn, so every
exchange takes milliseconds: it proves function (values, deaths, late ranks, clean-up, the way through host memory), and
nothing about speed. --calls is the most then; each scenario says how many it made in its share of --budget-s.

--emulate LIBRARY runs the scenarios on CPU processes with the tests' CPU build of the library: the program's own
logic, marked emulated, and no word about a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.backend.collectives import binding  # noqa: E402
from sm86.backend.collectives.failure import PEER_GONE, TIMED_OUT, CollectiveFailed, SetupFailed  # noqa: E402
from sm86.backend.collectives.plan import NAMES, Plan  # noqa: E402
from sm86.backend.testing.budget import Budget, add_option, budget_of, progress  # noqa: E402
from sm86.backend.testing.gpu_group import Group, begin_rank, gpus_for, say, tell  # noqa: E402
from sm86.backend.testing.shared_gpu import NOTE, Part, Shares, asked, shared_gpus  # noqa: E402
from sm86.cli.guard import guard, whole_number  # noqa: E402
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CouldNotRun  # noqa: E402
from sm86.files import write_atomic  # noqa: E402

KIB = 1024
PASS, FAIL, NOT_MADE = "pass", "fail", "not made"
SHORT_S, LONG_S, STOPPED_S = 2.0, 60.0, 0.9
VICTIM = 1
LEAST_S = 20.0
"""What is left of a budget must hold a scenario's start, its waits and its end."""

# ---- a rank ---------------------------------------------------------------------------------------------------------


class Rank:
    """One rank of a scenario: its device, its communicator, and data that differ in every call."""

    def __init__(self, arguments: argparse.Namespace, local_ranks: int = 1, timeout_s: float = LONG_S) -> None:
        import torch

        from sm86.backend.collectives.communicator import HostAllReduce
        from sm86.backend.collectives.exchange import SocketExchange

        self.torch = torch
        self.emulated = arguments.emulate is not None
        self.device = torch.device("cpu") if self.emulated else torch.device("cuda", 0)
        if not self.emulated:
            torch.cuda.set_device(0)
        self.exchange = SocketExchange(arguments.meet, arguments.rank, arguments.world)
        self.calls = arguments.calls
        self.shared = arguments.calls_s is not None
        self.left_s: float = arguments.calls_s or 0.0
        library = self._emulated_library(arguments.emulate) if self.emulated else binding.library
        self.make: Callable[..., HostAllReduce] = lambda **more: HostAllReduce(
            self.exchange, 0, library=library, **{"timeout_s": timeout_s, "local_ranks": local_ranks, **more}
        )
        self.reduce = self.make()
        self.rank, self.world = self.exchange.rank, self.exchange.world
        self.step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.wrong = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.worst = torch.zeros(1, dtype=torch.float64, device=self.device)
        self.digest = torch.zeros(1, dtype=torch.int64, device=self.device)

    @staticmethod
    def _emulated_library(path: str) -> Callable[[], ctypes.CDLL]:
        return lambda: binding.declare(ctypes.CDLL(path))

    def sync(self) -> None:
        if not self.emulated:
            self.torch.cuda.synchronize()

    def paced(self, count: int, together: int, part: float = 1.0) -> Iterator[int]:
        """0 to count - 1; where ranks share a GPU, as far as `part` of the seconds for calls that are left reach.

        `together`: how many are made before the ranks look at the clock, at rank 0's, so that all of them end at one.
        """
        began = time.monotonic()
        given = self.left_s * part
        try:
            for number in range(count):
                yield number
                if self.shared and (number + 1) % together == 0 and number + 1 < count:
                    self.sync()
                    self.settle()
                    self.reduce.check()
                    if self.exchange.gather(time.monotonic() - began > given)[0]:
                        return
        finally:
            self.left_s = max(0.0, self.left_s - (time.monotonic() - began))

    def together(self) -> None:
        """All ranks have come this far, with the kernels loaded that a scenario of ends uses beside the library's."""
        bool(self.torch.ones(8, dtype=self.torch.bfloat16, device=self.device).isnan().all())
        self.sync()
        self.exchange.gather(True)

    def settle(self, reduce: Any = None) -> None:
        """Let the CPU build's stores leave, as a GPU's do by themselves."""
        if self.emulated:
            one = reduce or self.reduce
            settle = one._library.sm86_ar_settle
            settle.argtypes = [ctypes.c_void_p]
            settle(one._handle)

    def data(self, rank: int, count: int, dtype: Any) -> Any:
        """Values of this step: magnitudes from 2^-12 to 8, from the step's number on the device."""
        torch = self.torch
        index = torch.arange(count, device=self.device)
        h = (index + rank * 7919) * 2654435761 + self.step * 40503
        h = (h ^ (h >> 15)) * 2246822519 & 0x7FFFFFFF
        h = (h ^ (h >> 13)) * 3266489917 & 0x7FFFFFFF
        value = ((h >> 4) & 0xFFFF).double() / 32768 - 1
        return (value * 2.0 ** ((h & 15) - 12).clamp(max=3).double()).to(dtype)

    def checked(self, size: int, plan: Plan, dtype: Any, reduce: Any = None, readers: int = 0) -> None:
        """One call on new data, held against the ordered fp32 sum bit by bit and against float64. No host sync."""
        torch, reduce = self.torch, reduce or self.reduce
        self.step += 1
        count = size // torch.empty((), dtype=dtype).element_size()
        parts = [self.data(rank, count, dtype) for rank in range(reduce.world)]
        total, exact, absolute = parts[0].float(), parts[0].double(), parts[0].double().abs()
        for part in parts[1:]:
            total, exact, absolute = total + part.float(), exact + part.double(), absolute + part.double().abs()
        mine = torch.cat(parts[reduce.first_rank : reduce.first_rank + reduce.local_ranks])
        out = torch.full_like(mine, float("nan"))
        reduce.all_reduce(mine, out, plan, readers)
        rows = out.view(reduce.local_ranks, count)[: readers or reduce.local_ranks]
        bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
        want = total.to(dtype)
        self.wrong += (rows.view(bits) != want.view(bits)).sum()
        # beyond the bound of the fp32 additions only the one rounding is left, in units of the last place
        digits = 8 if dtype == torch.bfloat16 else 24
        unit = 2.0 ** (exact.abs().clamp(min=1e-30).log2().floor() - digits + 1)
        error = ((rows.double() - exact).abs() - reduce.world * absolute * 2.0**-24).clamp(min=0) / unit
        # in place, so that single calls and replays go on from each other
        self.worst.copy_(torch.maximum(self.worst, error.nan_to_num(nan=1e9).max().view(1)))
        self.digest.mul_(31).add_(rows[0].view(bits).long().sum())

    def verdict(self) -> dict[str, Any]:
        """What the checks found, and whether all ranks hold the same bits."""
        self.sync()
        self.reduce.check()
        self.settle()
        digests = self.exchange.gather(int(self.digest))
        return {
            "wrong": int(self.wrong),
            "ulp": round(float(self.worst), 4),
            "equal": len(set(digests)) == 1,
            "calls": int(self.step),
        }

    def graph(self, do: Callable[[], None], times: int) -> Callable[[], None]:
        """`do`, so many times, as one replay."""
        if self.emulated:
            return lambda: [do() for _ in range(times)] and None
        torch = self.torch
        do()
        self.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(times):
                do()
        return graph.replay

    def failure(self, within_s: float) -> dict[str, Any]:
        """The failure that this rank must meet, told; {"failed": None} when it does not come."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            try:
                self.reduce.check()
            except CollectiveFailed as failed:
                verdict = failed.verdict
                return {
                    "failed": [verdict.code, verdict.call, list(verdict.missing)] if verdict else [],
                    "words": str(failed),
                }
            time.sleep(0.02)
        return {"failed": None}

    def skew(self, number: int) -> None:
        """Now and then this rank is late, on the GPU or on the host."""
        chance = (number * 2654435761 + self.rank * 40503) % 97
        if chance < 8 and not self.emulated:
            self.torch.cuda._sleep(20_000 * (chance + 1))
        elif chance > 94:
            time.sleep(0.001)


def exact(rank: Rank, kind: str, local_ranks: int) -> dict[str, Any]:
    """`--calls` calls of one algorithm at 8 and 32 KiB, launched one by one and replayed, bf16 and fp32."""
    torch = rank.torch
    algorithm = NAMES.index(kind)
    per, parts = 20, 8
    for size in (8 * KIB, 32 * KIB) if not rank.emulated else (256, 512):
        for dtype in (torch.bfloat16, torch.float32):
            plan = Plan(algorithm, 256)
            if rank.rank == 0:
                say(f"{kind}, {size} bytes, {dtype}: at most {rank.calls} calls")
            for number in rank.paced(rank.calls // 2, 10, 1 / parts):
                rank.skew(number)
                rank.checked(size, plan, dtype)
            replay = rank.graph(lambda s=size, p=plan, d=dtype: rank.checked(s, p, d), per)
            for number in rank.paced(-(-rank.calls // 2 // per), 1, 1 / (parts - 1)):
                rank.skew(number)
                replay()
            parts = max(2, parts - 2)
    return rank.verdict()


def mixed(rank: Rank) -> dict[str, Any]:
    """All algorithms, sizes and types in changing order, replays and single calls in turn, every rank late at times."""
    torch = rank.torch
    sizes = [KIB, 8 * KIB, 2 * KIB, 32 * KIB, 128 * KIB, 16 * KIB] if not rank.emulated else [64, 256, 128, 512]

    def some(offset: int) -> Callable[[], None]:
        def do() -> None:
            for k in range(6):
                size = sizes[(offset + k * 5) % len(sizes)]
                algorithm = (offset + k * 7) % 3 if size <= 32 * KIB else 1 + (offset + k) % 2
                dtype = (torch.bfloat16, torch.float32)[(offset + k) % 2]
                rank.checked(size, Plan(algorithm, (128, 256, 512)[(offset + k) % 3]), dtype)

        return do

    replays = [rank.graph(some(offset), 2) for offset in range(4)]
    for number in rank.paced(rank.calls // 12 + 1, 2):
        rank.skew(number)
        replays[number % 4]()
        if number % 3 == 0:
            some(number)()
    return rank.verdict()


def special(rank: Rank) -> dict[str, Any]:
    """NaN words that look like "no data yet", infinities and minus zero arrive and nobody waits for them."""
    torch = rank.torch
    patterns = [0xFFFFFFFF, 0x80008000, 0x7F803F80, 0xFFFF3F80, 0]

    def words(who: int) -> Any:
        values = [patterns[(k + who) % 5] - (1 << 32 if patterns[(k + who) % 5] >> 31 else 0) for k in range(256)]
        return torch.tensor(values, dtype=torch.int32, device=rank.device).view(torch.bfloat16)

    want = sum((words(who).float() for who in range(1, rank.world)), words(0).float()).to(torch.bfloat16)
    wrong = 0
    for algorithm in range(len(NAMES)):
        for _ in range(9):
            out = rank.reduce.all_reduce(words(rank.rank), plan=Plan(algorithm, 128))
            rank.sync()
            same = (out == want) | (out.isnan() & want.isnan())
            wrong += int((~same).sum())
    rank.reduce.check()
    rank.settle()
    return {"wrong": wrong + sum(rank.exchange.gather(0)), "ulp": 0.0, "equal": True, "calls": 9 * len(NAMES)}


def two_groups(rank: Rank) -> dict[str, Any]:
    """A second communicator of the same processes, on another stream, at the same time."""
    torch = rank.torch
    with rank.make() as second:
        other = None if rank.emulated else torch.cuda.Stream()
        inputs = [rank.data(who, 4096 if not rank.emulated else 128, torch.bfloat16) for who in range(rank.world)]
        want = sum((part.float() for part in inputs[1:]), inputs[0].float()).to(torch.bfloat16)
        wrong = calls = 0
        looks = 5 if rank.shared else 50
        rank.sync()
        for number in rank.paced(min(rank.calls, 2000), looks):
            plan = Plan((0, 1, 2)[number % 3], 128)
            first = rank.reduce.all_reduce(inputs[rank.rank], plan=plan)
            if other is None:
                rank.settle()
                again = second.all_reduce(inputs[rank.rank], plan=plan)
                rank.settle(second)
            else:
                with torch.cuda.stream(other):
                    again = second.all_reduce(inputs[rank.rank], plan=plan)
            calls += 2
            if number % looks == 0:
                rank.sync()
                wrong += sum(int((out.view(torch.int16) != want.view(torch.int16)).sum()) for out in (first, again))
        rank.sync()
        rank.exchange.gather(True)
    return {"wrong": wrong, "ulp": 0.0, "equal": True, "calls": calls}


def one_call(rank: Rank, plan: Plan | None = None) -> Any:
    size = 4096 if not rank.emulated else 128
    tensor = rank.torch.ones(size, dtype=rank.torch.bfloat16, device=rank.device)
    return rank.reduce.all_reduce(tensor, plan=plan or Plan(1, 128))


def killed(rank: Rank, when: str) -> dict[str, Any]:
    """The victim ends itself before, in or after a call; everybody else must hear so, and no stream hangs.

    In a call: every rank makes one after the other without waiting for the GPU, and the end comes at some time then.
    """
    rank.together()
    for _ in range(9):
        one_call(rank)
    rank.sync()
    rank.settle()
    rank.exchange.gather(True)
    if rank.rank == VICTIM:
        if when == "in":
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                one_call(rank)
        if when == "after":
            one_call(rank)
            rank.sync()
            rank.settle()
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    last: deque[Any] = deque(maxlen=64)
    told = False
    try:
        for _ in range({"before": 1, "in": 10**9, "after": 2}[when]):
            last.append(None)
            last[-1] = one_call(rank)
            if time.monotonic() - began > 30.0:
                break
        rank.sync()
    except CollectiveFailed:
        told = True  # even before the launch, which then was not made
    found = rank.failure(20.0)
    rank.sync()
    results = [out for out in last if out is not None]
    if when == "in":
        # the calls until the end are right, those after it are not made: in none is anything else
        nan = told and all(bool((out.isnan() | (out == rank.world)).all()) for out in results)
    else:
        nan = last[-1] is None or bool(last[-1].isnan().all())
    return {**found, "seconds": round(time.monotonic() - began, 2), "nan": nan}


def absent(rank: Rank) -> dict[str, Any]:
    """The victim lives but makes no call; the limit ends the wait, in one record."""
    rank.together()
    if rank.rank == VICTIM:
        rank.exchange.gather(True)
        return {"failed": "victim"}
    began = time.monotonic()
    out = one_call(rank, Plan(2, 128))
    rank.sync()
    seconds = time.monotonic() - began
    found = {**rank.failure(5.0), "seconds": round(seconds, 2), "nan": bool(out.isnan().all())}
    rank.exchange.gather(True)
    return found


def stopped(rank: Rank) -> dict[str, Any]:
    """The victim's process is stopped for a second in the middle; nothing fails."""
    stood = 0.0
    for number in range(60):
        if number == 30 and rank.rank == VICTIM:
            rank.sync()
            began = time.monotonic()
            os.kill(os.getpid(), signal.SIGSTOP)
            stood = time.monotonic() - began
        rank.checked(8 * KIB if not rank.emulated else 128, Plan(number % 3, 128), rank.torch.bfloat16)
    rank.settle()
    stood = rank.exchange.gather(stood)[VICTIM]
    return {**rank.verdict(), "stopped_s": round(stood, 2)}


def crashed(rank: Rank) -> dict[str, Any]:
    """All ranks are killed in the middle of calls."""
    one_call(rank)
    tell("up")
    for _ in range(1_000_000):
        one_call(rank)
    return {}


Scenario = tuple[str, dict[str, Any], Callable[[Rank], dict[str, Any]]]
SCENARIOS: dict[str, Scenario] = {
    **{f"values {kind}": ("values", {}, lambda rank, k=kind: exact(rank, k, 1)) for kind in NAMES},
    **{
        f"values of 8 logical ranks, {kind}": ("values", {"eight": True}, lambda rank, k=kind: exact(rank, k, 8))
        for kind in NAMES
    },
    "mixed calls with random skew": ("values", {}, mixed),
    "special values": ("values", {}, special),
    "two groups at once": ("values", {}, two_groups),
    "a rank stopped for a second": ("values", {}, stopped),
    "a rank killed before a call": ("gone", {}, lambda rank: killed(rank, "before")),
    "a rank killed in a call": ("gone", {}, lambda rank: killed(rank, "in")),
    "a rank killed after a call": ("gone", {}, lambda rank: killed(rank, "after")),
    "a living rank that does not come": ("late", {"timeout_s": SHORT_S}, absent),
    "nothing left after a crash": ("crash", {}, crashed),
    "shared memory full": ("shm", {}, lambda rank: exact(rank, "one-shot", 1)),
}

FIXED = Part(0.0)
PARTS: dict[str, Part] = {
    **{f"values {kind}": Part(2.0 + (kind == "two-shot")) for kind in NAMES},
    **{f"values of 8 logical ranks, {kind}": Part(2.0 + (kind == "two-shot")) for kind in NAMES},
    "mixed calls with random skew": Part(4.0),
    "two groups at once": Part(1.0),
    "a rank stopped for a second": Part(0.0, 2.0),
    "a rank killed in a call": Part(0.0, 1.0),
    "a living rank that does not come": Part(0.0, SHORT_S),
    "shared memory full": Part(0.5),
}
"""What the scenarios need where ranks share a GPU; FIXED: the others."""
FIRST = ("special values", "a rank stopped for a second")
"""They show what a start takes, before the first scenario whose calls are given what the starts leave."""


def rank_main(arguments: argparse.Namespace) -> int:
    begin_rank()
    _, options, run = SCENARIOS[arguments.scenario]
    if options.get("eight"):
        if 8 % arguments.world:
            tell({"not made": f"8 ranks do not divide among {arguments.world} processes"})
            return EXIT_OK
        options = {"local_ranks": 8 // arguments.world}
    try:
        rank = Rank(arguments, **options)
    except SetupFailed as failed:
        tell({"setup": failed.reason})
        return EXIT_FINDING
    tell({**run(rank), "spent_s": round((arguments.calls_s or 0.0) - rank.left_s, 1)})
    rank.reduce.close()
    return EXIT_OK


# ---- the driver -----------------------------------------------------------------------------------------------------


def judged(kind: str, results: dict[int, Any], world: int) -> tuple[str, str]:
    """A scenario's verdict and the words for it, from the ranks' results."""
    told = [result for result in results.values() if isinstance(result, dict)]
    for result in told:
        if "not made" in result:
            return NOT_MADE, result["not made"]
        if "setup" in result:
            return FAIL, f"set-up failed: {result['setup']}"
    if kind in ("gone", "late"):
        others = {rank: result for rank, result in results.items() if rank != VICTIM}
        if len(others) < world - 1:
            return FAIL, f"only ranks {sorted(others)} came back"
        records = {json.dumps(result.get("failed")) for result in others.values()}
        if len(records) != 1:
            return FAIL, f"the ranks tell different records: {sorted(records)}"
        record = json.loads(records.pop())
        code = PEER_GONE if kind == "gone" else TIMED_OUT
        if not record or record[0] != code or record[2] != [VICTIM]:
            return FAIL, f"the record is {record}, not code {code} with rank {VICTIM} missing"
        slowest = max(result["seconds"] for result in others.values())
        if not all(result["nan"] for result in others.values()):
            return FAIL, "a result of the broken call is not NaN"
        return PASS, f"{next(iter(others.values()))['words']}; the stream came back after {slowest:g} s"
    if len(results) < world:
        return FAIL, f"only ranks {sorted(results)} came back"
    calls = {result["calls"] for result in told}
    if len(calls) != 1 or 0 in calls:
        return FAIL, f"the ranks made {sorted(calls)} calls"
    stood = max((result["stopped_s"] for result in told if "stopped_s" in result), default=None)
    if stood is not None and stood < STOPPED_S:
        return FAIL, f"the rank stood still for {stood:g} s only"
    wrong = sum(result["wrong"] for result in told)
    ulp = max(result["ulp"] for result in told)
    equal = all(result["equal"] for result in told)
    state = PASS if not wrong and ulp <= 0.51 and equal else FAIL
    words = f"{wrong} elements wrong in {calls.pop()} calls, at most {ulp:g} units from float64"
    stopped = "" if stood is None else f", stopped for {stood:g} s"
    return state, f"{words}, ranks {'equal' if equal else 'DIFFER'}{stopped}"


def run_one(
    name: str,
    arguments: argparse.Namespace,
    gpus: list[str],
    budget: Budget,
    most_s: float,
    calls_s: float | None = None,
    enough_s: float | None = None,
) -> tuple[str, str, float]:
    """State, words, and the seconds of calls, where ranks share a GPU: at most about `calls_s` are meant for them.

    most_s: when it is broken off. enough_s (most_s): who has not ended then hangs, whatever the budget.
    """
    kind = SCENARIOS[name][0]
    extra = ["--scenario", name, "--calls", str(arguments.calls)]
    if arguments.emulate:
        extra += ["--emulate", arguments.emulate]
    if calls_s is not None:
        extra += ["--calls-s", f"{calls_s:.1f}"]
    before = set(os.listdir("/dev/shm"))
    filler: int | str | None = None
    if kind == "shm":
        filler = fill_shared_memory()
        if isinstance(filler, str):
            return NOT_MADE, filler, 0.0
    limit = min(most_s, budget.left())
    try:
        with Group(__file__, gpus, extra, limit_s=limit + 10.0) as group:
            survivors = [rank for rank in range(len(gpus)) if not (kind == "gone" and rank == VICTIM)]
            results = group.wait(limit, survivors)
            if kind == "crash":
                return *_crashed(group, results, before), 0.0
            state, words = judged("values" if kind == "shm" else kind, results, len(gpus))
            if state == FAIL and group.timed_out and limit < (enough_s or most_s):
                state, words = NOT_MADE, f"{budget.words()} in the middle of it"
            elif state == FAIL and group.timed_out:
                words += f"; not at its end after {limit:g} s"
            if state != PASS:
                words += "".join(f"\n    rank {rank}: {group.words(rank, 30)}" for rank in range(len(gpus)))
            spent = (result.get("spent_s", 0.0) for result in results.values() if isinstance(result, dict))
            return state, words, max(spent, default=0.0)
    finally:
        if isinstance(filler, int):
            os.close(filler)


def run_shared(
    names: list[str], arguments: argparse.Namespace, gpus: list[str], budget: Budget, shares: Shares
) -> tuple[str, str]:
    """The first of `names`, which are all still to come, with ranks that share a GPU."""
    parts = [PARTS.get(name, FIXED) for name in names]
    if not shares.fits(parts[0]):
        return NOT_MADE, budget.words()
    calls_s = shares.calls_s(parts)
    most_s = min(arguments.limit, shares.limit_s(parts[0], calls_s))
    began = time.monotonic()
    state, words, spent_s = run_one(
        names[0], arguments, gpus, budget, most_s, calls_s, shares.enough_s(parts[0], calls_s)
    )
    shares.took(time.monotonic() - began, parts[0], spent_s)
    if parts[0].weight and state == PASS:
        words += f" ({spent_s:.1f} s of calls, its share was {calls_s:.1f} s; at most {arguments.calls} of each form)"
    return state, words


def _crashed(group: Group, results: dict[int, Any], before: set[str]) -> tuple[str, str]:
    """All ranks killed in the middle of calls: what is left behind."""
    time.sleep(0.5)
    group.kill()
    for rank in group.ranks:
        rank.process.wait()
    left = {entry for entry in set(os.listdir("/dev/shm")) - before if "sm86" in entry}
    if len(results) < len(group.ranks):
        said = "".join(f"\n    rank {rank}: {group.words(rank, 30)}" for rank in range(len(group.ranks)))
        return FAIL, f"only ranks {sorted(results)} came up{said}"
    return (FAIL if left else PASS), f"left in /dev/shm: {sorted(left) or 'nothing'}"


def fill_shared_memory() -> int | str:
    """A nameless file that takes all of /dev/shm, as a descriptor; or why not."""
    room = os.statvfs("/dev/shm")
    free = room.f_bavail * room.f_frsize
    if free > 2 << 30:
        return f"/dev/shm has {free >> 30} GiB free, too much to fill; give the container a small one (--shm-size 64m)"
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, max(free, 1))
    except OSError as error:
        os.close(fd)
        return f"/dev/shm cannot be filled: {error}"
    return fd


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", type=int, help="how many; default: all visible, at most 8")
    shared = "so many processes (2) on the first visible GPU, in turn: proves function, never speed"
    parser.add_argument("--share-gpu", type=int, nargs="?", const=2, metavar="RANKS", help=shared)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each kind")
    parser.add_argument("--only", help="scenarios, joined by semicolons")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds for one scenario")
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--emulate", metavar="LIBRARY", help="CPU processes with the tests' build; proves no GPU")
    add_option(parser)
    for name, kind in (("rank", int), ("world", int), ("meet", Path), ("scenario", str), ("calls-s", float)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.rank is not None:
        return rank_main(arguments)
    names = [name.strip() for name in arguments.only.split(";")] if arguments.only else list(SCENARIOS)
    if arguments.share_gpu:
        names.sort(key=lambda name: name not in FIRST)
    try:
        unknown = [name for name in names if name not in SCENARIOS]
        if unknown:
            raise CouldNotRun(f"there is no scenario {unknown[0]!r}", f"the scenarios are: {'; '.join(SCENARIOS)}")
        whole_number(arguments.calls, "calls", 1, 10**9)
        whole_number(arguments.gpus, "gpus", 2, 8)
        whole_number(arguments.share_gpu, "share-gpu", 2, 8)
        if arguments.gpus is not None and arguments.share_gpu is not None:
            raise CouldNotRun(
                "--gpus and --share-gpu are both given", "give one: GPUs with a rank each, or ranks of one GPU"
            )
        if not 1 <= arguments.limit <= 86_400:
            raise CouldNotRun(f"--limit is {arguments.limit:g}", "give seconds from 1 to 86400")
        if arguments.emulate and not Path(arguments.emulate).is_file():
            raise CouldNotRun(f"there is no library {arguments.emulate}", "give the path of the tests' CPU build")
        if arguments.emulate:
            gpus = [""] * (arguments.gpus or arguments.share_gpu or 2)
        else:
            gpus = shared_gpus(arguments.share_gpu) if arguments.share_gpu else gpus_for(arguments.gpus)
        budget = budget_of(arguments)
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    if arguments.emulate:
        print("EMULATED on CPU processes: says nothing about a GPU")
    if arguments.share_gpu:
        print(NOTE, flush=True)
    device = asked(gpus[0], "name,driver_version") if arguments.share_gpu and not arguments.emulate else None
    shares = Shares(budget, arguments.limit / 2)
    found: dict[str, tuple[str, str]] = {}
    for number, name in enumerate(names):
        progress(f"{name} ...")
        began = time.monotonic()
        if arguments.share_gpu:
            found[name] = run_shared(names[number:], arguments, gpus, budget, shares)
        elif budget.allows(LEAST_S):
            found[name] = run_one(name, arguments, gpus, budget, arguments.limit)[:2]
        else:
            found[name] = NOT_MADE, budget.words()
        state, words = found[name]
        print(f"{state:9} {name} ({time.monotonic() - began:.0f} s): {words}", flush=True)
        write(arguments, len(gpus), found, device)
    if arguments.share_gpu:
        print(NOTE)
    return code_of([state for state, _ in found.values()])


def write(
    arguments: argparse.Namespace, ranks: int, found: dict[str, tuple[str, str]], device: str | None = None
) -> None:
    """What is known so far, after every scenario."""
    if not arguments.json:
        return
    shared = {"ranks": ranks, "device": device, "note": NOTE} if arguments.share_gpu else {}
    document = {
        "schema": "sm86.allreduce-faults",
        "version": 1,
        "emulated": arguments.emulate is not None,
        "shared_gpu": arguments.share_gpu is not None,
        **shared,
        "gpus": 1 if arguments.share_gpu else ranks,
        "calls": arguments.calls,
        "time": time.strftime("%FT%TZ", time.gmtime()),
        "scenarios": {name: {"state": state, "words": words} for name, (state, words) in found.items()},
    }
    write_atomic(Path(arguments.json), json.dumps(document, indent=1) + "\n")


def code_of(states: list[str]) -> int:
    """The exit code: what was not made is no pass."""
    if FAIL in states:
        return EXIT_FINDING
    return EXIT_OK if PASS in states else EXIT_COULD_NOT_RUN


if __name__ == "__main__":
    # a rank's own words, traceback and all, are what its driver shows
    sys.exit(main() if "--rank" in sys.argv else guard(main))
