"""The host-memory all-reduce beside NCCL with peer access off: both in one run, interleaved, on the GPUs at hand.

    python benchmarks/allreduce_speed.py [--gpus N] [--sizes 2,8,32,128] [--quick] [--json FILE]

One process per GPU. Every way is checked bit by bit before it is timed. Tables (us per call of the slowest rank, median
over replays and the middle half of them):

  graph     87 calls in a CUDA graph, replays of all ways in turn
  eager     87 calls launched one by one
  gap       what one call adds in a graph between pieces of other work (about 60 us)
  one of 8  the read load of one rank of eight: several logical ranks per GPU, one of which receives. Not eight GPUs'
            load on host memory

Exit code 0: measured; 1: a sum was wrong; 2: could not run (no GPU, no torch for CUDA, no library), or NCCL is not
known to have gone without peer access.
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
from sm86.backend.testing.gpu_group import Group, gpus_for, tell  # noqa: E402
from sm86.cli.guard import guard  # noqa: E402
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CouldNotRun  # noqa: E402
from sm86.files import write_atomic  # noqa: E402

KIB = 1024
WANTED = {8: (2.6, 3.0), 32: (1.9, 3.0)}
"""KiB -> ratio to NCCL on two GPUs that must be reached, and that is aimed for."""
GAP_SIZES, EIGHT_SIZES = (8, 32), (8, 16, 32, 64)
GAP_CYCLES = 100_000
TIMEOUT_S = 540.0
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


def rank_main(rank: int, world: int, meet: Path, sizes: list[int], replays: int) -> int:
    """Measure everything; every rank sees the same numbers, rank 0 tells them."""
    import torch

    from sm86.backend.collectives import trial
    from sm86.backend.collectives.communicator import HostAllReduce
    from sm86.backend.collectives.exchange import SocketExchange
    from sm86.backend.testing.nccl import Nccl

    torch.cuda.set_device(0)
    exchange = SocketExchange(meet, rank, world)
    reduce = HostAllReduce(exchange, 0, timeout_s=60.0)
    nccl = Nccl(exchange)
    facts = {
        "gpu": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "numa_node": reduce.numa_node,
        "read_ns": round(reduce.read_ns()),
    }
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl.version,
        "ranks": exchange.gather(facts),
    }
    wrong = [text for text in exchange.gather(trial.check_values(reduce, sizes)) if text]
    result["wrong"] = wrong
    if not wrong:
        measure = Measure(exchange, reduce, nccl, replays)
        result["graph"] = {str(size): measure.graph(size) for size in sizes}
        result["eager"] = {str(size): measure.eager(size, result["graph"][str(size)]) for size in sizes}
        result["gap"] = {
            str(kib * KIB): measure.gap(kib * KIB, result["graph"][str(kib * KIB)])
            for kib in GAP_SIZES
            if kib * KIB in sizes
        }
    reduce.close()
    if not wrong and 8 % world == 0 and world < 8:
        try:
            with HostAllReduce(exchange, 0, timeout_s=60.0, local_ranks=8 // world) as eight:
                texts = [text for text in exchange.gather(trial.check_values(eight, [8 * KIB, 32 * KIB])) if text]
                result["wrong"] = texts
                one = Measure(exchange, eight, None, replays)
                result["one of 8"] = {str(kib * KIB): one.graph(kib * KIB, readers=1) for kib in EIGHT_SIZES}
        except SetupFailed as failed:
            # on all ranks or none; what was measured before stays
            result["one of 8 not made"] = failed.reason
    nccl.close()
    tell(result if rank == 0 else "done")
    exchange.close()
    return EXIT_OK


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
    lines += lines_of("87 calls in a CUDA graph, us per call", result["graph"])
    lines += lines_of("launched one by one, us per call", result["eager"])
    lines += lines_of("between pieces of other work in a graph, us that one call adds", result["gap"])
    if "one of 8 not made" in result:
        lines.append(f"\nthe read load of one rank of eight was not measured: {result['one of 8 not made']}")
    if "one of 8" in result:
        lines += lines_of("with the read load of one rank of eight, us per call", result["one of 8"])
    for kib, (least, aim) in WANTED.items():
        ways = result["graph"].get(str(kib * KIB))
        if ways and len(ranks) == 2:
            mine = min(row["median"] for name, row in ways.items() if name != "nccl")
            ratio = ways["nccl"]["median"] / mine
            verdict = "reached" if ratio >= aim else "above the least" if ratio >= least else "BELOW the least"
            lines.append(f"{kib} KiB: {ratio:.2f}x NCCL (least {least}x, aim {aim}x): {verdict}; {mine:.2f} us")
    return "\n".join(lines)


def drive(arguments: argparse.Namespace, rank_arguments: list[str]) -> int:
    from sm86.backend.testing.nccl import transports

    gpus = gpus_for(arguments.gpus)
    with Group(__file__, gpus, rank_arguments) as group:
        results = group.wait(TIMEOUT_S)
        if 0 not in results:
            told = "\n".join(f"rank {rank}: {group.words(rank)}" for rank in range(len(gpus)))
            raise CouldNotRun(f"no result after {TIMEOUT_S:g} s or a rank ended early", f"see what they said:\n{told}")
        result = results[0]
        log = group.logs[0].read_text(errors="replace") if group.logs[0].exists() else ""
        result["transports"] = transports(log)
    result["schema"], result["version"], result["time"] = (
        "sm86.allreduce-speed",
        1,
        time.strftime("%FT%TZ", time.gmtime()),
    )
    print(words_of(result))
    if arguments.json:
        write_atomic(Path(arguments.json), json.dumps(result, indent=1) + "\n")
    if result["wrong"]:
        return EXIT_FINDING
    return EXIT_OK if compared(result["transports"]) else EXIT_COULD_NOT_RUN


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
            return rank_main(arguments.rank, arguments.world, arguments.meet, sizes, replays)
        return drive(arguments, ["--sizes", arguments.sizes, *(["--quick"] if arguments.quick else [])])
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN


if __name__ == "__main__":
    # a rank's own words, traceback and all, are what its driver shows
    sys.exit(main() if "--rank" in sys.argv else guard(main))
