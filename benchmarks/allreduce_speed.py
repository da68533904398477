"""The host-memory all-reduce beside NCCL with peer access off: both in one run, interleaved, on the GPUs at hand.

    python benchmarks/allreduce_speed.py [--gpus N] [--sizes 2,8,32,128] [--quick] [--budget-s S] [--json FILE]

One process per GPU. Every way is checked bit by bit before it is timed. Tables (us per call of the slowest rank, median
over replays and the middle half of them):

  graph     87 calls in a CUDA graph, replays of all ways in turn
  eager     87 calls launched one by one
  gap       what one call adds in a graph between pieces of other work (about 60 us)
  one of 8  the read load of one rank of eight: several logical ranks per GPU, one of which receives. Not eight GPUs'
            load on host memory

Exit code 0: measured; 1: a sum was wrong; 2: could not run (no GPU, no torch for CUDA, no library), or NCCL is not
known to have gone without peer access, or it was broken off (what was measured until then is written).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.backend.collectives.failure import SetupFailed  # noqa: E402
from sm86.backend.collectives.plan import NAMES, Plan, fits  # noqa: E402
from sm86.backend.testing.budget import Budget, add_option, budget_of, progress  # noqa: E402
from sm86.backend.testing.gpu_group import Group, begin_rank, gpus_for, say, tell, tell_part  # noqa: E402
from sm86.cli.guard import guard  # noqa: E402
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CouldNotRun  # noqa: E402
from sm86.files import write_atomic  # noqa: E402

KIB = 1024
WANTED = {8: (2.6, 3.0), 32: (1.9, 3.0)}
"""KiB -> ratio to NCCL on two GPUs that must be reached, and that is aimed for."""
GAP_SIZES, EIGHT_SIZES = (8, 32), (8, 16, 32, 64)
GAP_CYCLES = 100_000
TIMEOUT_S = 540.0
ENDING_S = 20.0
"""For the start of a rank, which its own clock does not see, and for its end."""
Table = dict[str, dict[str, Any]]


def plans_of(size: int) -> list[Plan]:
    """All three algorithms in every launch shape worth trying, two-shot at two ranks too."""
    plans = []
    for threads in (128, 256, 512):
        if threads > 128 and size // 16 <= threads // 2:
            continue
        for pause in (0, 300, 600, 1200):
            plans += [Plan(algorithm, threads, pause) for algorithm in range(len(NAMES))]
    return [plan for plan in plans if fits(plan, size)]


# ---- a rank ---------------------------------------------------------------------------------------------------------


def rank_main(rank: int, world: int, meet: Path, sizes: list[int], replays: int, budget_s: float | None) -> int:
    """Measure everything; every rank sees the same numbers, rank 0 tells them."""
    begin_rank()
    import torch

    from sm86.backend.collectives import trial
    from sm86.backend.collectives.communicator import HostAllReduce
    from sm86.backend.collectives.exchange import SocketExchange
    from sm86.backend.testing.nccl import Nccl

    rows = Rows(rank, Budget(budget_s))
    torch.cuda.set_device(0)
    rows.say("meeting the other ranks")
    rows.exchange = exchange = SocketExchange(meet, rank, world)
    rows.say("setting up host memory; the driver compiles the kernels for this GPU the first time")
    reduce = HostAllReduce(exchange, 0, timeout_s=60.0)
    rows.say("setting up NCCL")
    nccl = Nccl(exchange)
    facts = {
        "gpu": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "numa_node": reduce.numa_node,
        "read_ns": round(reduce.read_ns()),
    }
    result = rows.result
    result |= {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl.version,
        "ranks": exchange.gather(facts),
    }
    rows.say("checking every value")
    wrong = [text for text in exchange.gather(trial.check_values(reduce, sizes)) if text]
    result["wrong"] = wrong
    rows.told()
    if not wrong:
        measure = Measure(exchange, reduce, nccl, replays)
        table: dict[str, Table] = {}
        # what decides comes first: the sizes that have a wanted ratio, in all their tables
        first = [kib * KIB for kib in WANTED if kib * KIB in sizes]
        for size in [*first, *(size for size in sizes if size not in first)]:
            rows.add("graph", size, partial(measure.graph, size), into=table)
            if str(size) not in table:
                continue
            if size // KIB in GAP_SIZES:
                rows.add("gap", size, partial(measure.gap, size, table[str(size)]))
            rows.add("eager", size, partial(measure.eager, size, table[str(size)]))
    exchange.gather("done with the group of all ranks")
    reduce.close()
    if not wrong and 8 % world == 0 and world < 8 and not rows.over():
        try:
            rows.say("setting up the read load of one rank of eight")
            with HostAllReduce(exchange, 0, timeout_s=60.0, local_ranks=8 // world) as eight:
                texts = [text for text in exchange.gather(trial.check_values(eight, [8 * KIB, 32 * KIB])) if text]
                result["wrong"] = texts
                one = Measure(exchange, eight, None, replays)
                for kib in EIGHT_SIZES:
                    rows.add("one of 8", kib * KIB, partial(one.graph, kib * KIB, readers=1))
                exchange.gather("done with the group of eight")
        except SetupFailed as failed:
            # on all ranks or none; what was measured before stays
            result["one of 8 not made"] = failed.reason
    elif not wrong and 8 % world == 0 and world < 8:
        result["one of 8 not made"] = rows.budget.words()
    # told before NCCL's end, which waits for graphs and peers: what was measured must not wait for that
    tell(result if rank == 0 else "done")
    exchange.close()
    nccl.close()
    return EXIT_OK


class Rows:
    """The result as it grows: each row is announced, made if there is time for it, and told."""

    exchange: Any

    def __init__(self, rank: int, budget: Budget) -> None:
        self.rank, self.budget, self.longest = rank, budget, 0.0
        self.result: dict[str, Any] = {"left out": []}

    def say(self, words: str) -> None:
        if self.rank == 0:
            say(words)

    def told(self) -> None:
        if self.rank == 0:
            tell_part(self.result)

    def over(self) -> bool:
        """Whether another row would not fit. Collective: the ranks' clocks differ, their answer may not."""
        everybody = self.exchange.gather([not self.budget.allows(1.5 * self.longest)])
        return any(one[0] for one in everybody)

    def add(self, table: str, size: int, make: Callable[[], Table], into: dict[str, Table] | None = None) -> None:
        """One row of one table, unless the budget is spent. Collective."""
        if self.over():
            self.result["left out"].append(f"{table}, {size // KIB} KiB")
            return
        self.say(f"{table}, {size // KIB} KiB")
        began = time.monotonic()
        row = make()
        self.longest = max(self.longest, time.monotonic() - began)
        self.result.setdefault(table, {})[str(size)] = row
        if into is not None:
            into[str(size)] = row
        self.told()


class Measure:
    """The measurements of one group."""

    def __init__(self, exchange: Any, reduce: Any, nccl: Any, replays: int) -> None:
        self.exchange, self.reduce, self.nccl, self.replays = exchange, reduce, nccl, replays

    def _tensors(self, size: int) -> tuple[Any, Any]:
        import torch

        from sm86.backend.collectives.trial import message

        part = message(size, torch.bfloat16, torch.device("cuda", 0), 0, self.exchange.rank)
        return part.repeat(self.reduce.local_ranks), part.repeat(self.reduce.local_ranks)

    def graph(self, size: int, readers: int = 0) -> Table:
        """Every plan and NCCL in graphs of 87 calls."""
        from sm86.backend.collectives.trial import times_of

        source, target = self._tensors(size)
        calls: dict[str, Callable[[], Any]] = {
            plan.name: partial(self.reduce.all_reduce, source, target, plan, readers) for plan in plans_of(size)
        }
        if self.nccl is not None:
            calls["nccl"] = partial(self.nccl.all_reduce, source, target)
        return shown(times_of(self.exchange, calls, replays=self.replays, group=self.reduce))

    def _best(self, size: int, table: Table) -> dict[str, Callable[[], Any]]:
        source, target = self._tensors(size)
        by_name = {plan.name: plan for plan in plans_of(size)}
        calls: dict[str, Callable[[], Any]] = {}
        for algorithm in NAMES:
            found = best(table, algorithm)
            if found:
                calls[found] = partial(self.reduce.all_reduce, source, target, by_name[found])
        calls["nccl"] = partial(self.nccl.all_reduce, source, target)
        return calls

    def eager(self, size: int, table: Table) -> Table:
        """The best plan of each algorithm and NCCL, launched from the host one by one."""
        import torch

        from sm86.backend.collectives.trial import CALLS_PER_GRAPH, Times, _quartiles

        calls = self._best(size, table)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        took: dict[str, list[float]] = {name: [] for name in calls}
        for replay in range(self.replays // 2 + 2):
            for name, call in calls.items():
                call()
                begin.record()
                for _ in range(CALLS_PER_GRAPH):
                    call()
                end.record()
                end.synchronize()
                self.reduce.check_now()
                if replay >= 2:
                    took[name].append(begin.elapsed_time(end) * 1000 / CALLS_PER_GRAPH)
        everybody = self.exchange.gather({name: _quartiles(values) for name, values in took.items()})
        return shown({name: Times(*(max(one[name][k] for one in everybody) for k in range(3))) for name in calls})

    def gap(self, size: int, table: Table) -> Table:
        """A graph of 30 pieces of other work with a call behind each, less the same without calls."""
        import torch

        from sm86.backend.collectives.trial import times_of

        def behind_work(call: Callable[[], Any]) -> None:
            torch.cuda._sleep(GAP_CYCLES)
            call()

        calls = {name: partial(behind_work, call) for name, call in self._best(size, table).items()}
        calls["work alone"] = partial(torch.cuda._sleep, GAP_CYCLES)
        times = times_of(self.exchange, calls, 30, self.replays, self.reduce)
        alone = times.pop("work alone").median
        result = shown(times)
        for row in result.values():
            row.update({key: round(row[key] - alone, 2) for key in ("median", "low", "high")})
        return result


def shown(times: Any) -> Table:
    return {
        name: {"median": round(one.median, 3), "low": round(one.low, 3), "high": round(one.high, 3)}
        for name, one in times.items()
    }


def best(table: Table, algorithm: str) -> str | None:
    """The name of an algorithm's fastest plan."""
    names = [name for name in table if name.startswith(f"{algorithm}/")]
    return min(names, key=lambda name: table[name]["median"]) if names else None


# ---- the driver -----------------------------------------------------------------------------------------------------


def lines_of(title: str, table: dict[str, Table]) -> list[str]:
    """Markdown: one line per size."""
    lines = [f"\n{title}\n", "| size | packets | one-shot | two-shot | best | NCCL | ratio |", "|" + "---|" * 7]
    for size, ways in table.items():
        names = [best(ways, algorithm) for algorithm in NAMES]
        first = min((name for name in names if name), key=lambda name: ways[name]["median"])
        peer = ways.get("nccl")
        cells = [_cell(ways.get(name or "")) for name in names]
        ratio = f"{peer['median'] / ways[first]['median']:.2f}x" if peer else "-"
        lines.append(f"| {int(size) / KIB:g} KiB | {' | '.join(cells)} | {first} | {_cell(peer)} | {ratio} |")
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    return f"{row['median']:.2f} ({row['low']:.2f}-{row['high']:.2f})" if row else "-"


def words_of(result: dict[str, Any]) -> str:
    """The whole report."""
    ranks = result["ranks"]
    lines = [
        f"{len(ranks)} x {ranks[0]['gpu']} (SM {ranks[0]['capability']}), CUDA {result['cuda']}, "
        f"torch {result['torch']}, NCCL {result['nccl']}, told to leave peer access off",
        f"NCCL's channels by transport: {result.get('transports')}",
        "one read of host memory, ns: " + ", ".join(str(rank["read_ns"]) for rank in ranks),
    ]
    if result["wrong"]:
        return "\n".join([*lines, "WRONG SUMS:", *result["wrong"]])
    titles = {
        "graph": "87 calls in a CUDA graph, us per call",
        "eager": "launched one by one, us per call",
        "gap": "between pieces of other work in a graph, us that one call adds",
        "one of 8": "with the read load of one rank of eight, us per call",
    }
    for table, title in titles.items():
        if table in result:
            lines += lines_of(title, dict(sorted(result[table].items(), key=lambda row: int(row[0]))))
    if "one of 8 not made" in result:
        lines.append(f"\nthe read load of one rank of eight was not measured: {result['one of 8 not made']}")
    lines += [f"left out, the budget was spent: {row}" for row in result.get("left out", [])]
    if "broken off" in result:
        lines.append(f"BROKEN OFF: {result['broken off']}")
    for kib, (least, aim) in WANTED.items():
        ways = result.get("graph", {}).get(str(kib * KIB))
        if ways and len(ranks) == 2:
            mine = min(row["median"] for name, row in ways.items() if name != "nccl")
            ratio = ways["nccl"]["median"] / mine
            verdict = "reached" if ratio >= aim else "above the least" if ratio >= least else "BELOW the least"
            lines.append(f"{kib} KiB: {ratio:.2f}x NCCL (least {least}x, aim {aim}x): {verdict}; {mine:.2f} us")
    return "\n".join(lines)


def drive(arguments: argparse.Namespace, rank_arguments: list[str], budget: Budget) -> int:
    from sm86.backend.testing.nccl import transports

    gpus = gpus_for(arguments.gpus)

    def write(result: dict[str, Any]) -> None:
        if arguments.json:
            now = time.strftime("%FT%TZ", time.gmtime())
            document = {**result, "schema": "sm86.allreduce-speed", "version": 1, "time": now}
            write_atomic(Path(arguments.json), json.dumps(document, indent=1) + "\n")

    limit = min(TIMEOUT_S, budget.left())
    if budget.seconds is not None:
        # the ranks stop early enough to be heard
        rank_arguments = [*rank_arguments, "--budget-s", f"{max(limit - ENDING_S, 1.0):.0f}"]
    # what a rank tells on the way is on the disk before it goes on: a run that is broken off loses one row
    with Group(__file__, gpus, rank_arguments, limit_s=limit + ENDING_S, on_part=lambda _, part: write(part)) as group:
        results = group.wait(limit)
        said = [f"rank {rank}: {group.words(rank, 40)}" for rank in range(len(gpus))]
        result = results.get(0) or group.ranks[0].part
        why = f"out of time after {limit:.0f} s" if group.timed_out else "a rank ended early"
        if 0 not in results:
            progress("\n".join(said))
        if result is None:
            raise CouldNotRun(f"nothing was measured: {why}", "see what the ranks said, above")
        if 0 not in results:
            result["broken off"] = f"{why}; see what the ranks said"
        log = group.logs[0].read_text(errors="replace") if group.logs[0].exists() else ""
        result["transports"] = transports(log)
    write(result)
    print(words_of(result), flush=True)
    if result["wrong"]:
        return EXIT_FINDING
    return EXIT_OK if compared(result["transports"]) and 0 in results else EXIT_COULD_NOT_RUN


def compared(transports: dict[str, int]) -> bool:
    """Whether NCCL is known to have gone without peer access; says what is wrong otherwise."""
    if not transports:
        print("what NCCL used was not seen in its log: peer access may have been on", file=sys.stderr)
    elif "P2P" in transports:
        print("NCCL used peer access: this is not the comparison that was asked for", file=sys.stderr)
    return bool(transports) and "P2P" not in transports


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", type=int, help="how many; default: all visible, at most 8")
    parser.add_argument("--sizes", default="2,8,16,32,64,128", help="KiB, joined by commas")
    parser.add_argument("--quick", action="store_true", help="fewer replays")
    parser.add_argument("--json", help="also write all numbers to this file")
    add_option(parser)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    try:
        sizes = [int(text) * KIB for text in arguments.sizes.split(",")]
        if not all(fits(Plan(1, 128), size) for size in sizes):
            raise ValueError
    except ValueError:
        print(f"--sizes {arguments.sizes}: not KiB from 1 to 128\nuse for example --sizes 8,32", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    try:
        if arguments.rank is not None:
            replays = 15 if arguments.quick else 40
            rank, world, meet = arguments.rank, arguments.world, arguments.meet
            return rank_main(rank, world, meet, sizes, replays, arguments.budget_s)
        quick = ["--quick"] if arguments.quick else []
        return drive(arguments, ["--sizes", arguments.sizes, *quick], budget_of(arguments))
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN


if __name__ == "__main__":
    # a rank's own words, traceback and all, are what its driver shows
    sys.exit(main() if "--rank" in sys.argv else guard(main))
