"""A group's start on stand-ins: one branch for all ranks, the lines it says, NCCL where anything is missing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sm86.backend.collectives import startup, trial
from sm86.backend.collectives.exchange import SocketExchange
from sm86.backend.collectives.failure import PEER_GONE, CollectiveFailed, SetupFailed, Verdict
from sm86.manifest import parse_line
from tests.backend.collectives.test_decision import times

VERDICT = Verdict(PEER_GONE, 0, 7, (1,), None, 0)


class Reduce:
    """Stands for HostAllReduce."""

    def __init__(self, exchange: Any, device: int) -> None:
        self.exchange, self.closed, self.on_failure, self.timeout_s = exchange, False, None, 60.0

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Message:
    def __init__(self, size: int) -> None:
        self.size = size

    def numel(self) -> int:
        return self.size // 2

    def element_size(self) -> int:
        return 2


def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    mode: str = "auto",
    modes: dict[int, str] | None = None,
    peer_on: int = -1,
    wrong_on: int = -1,
    out_of_memory_on: int = -1,
    fails: bool = False,
    untimed: bool = False,
    alone: bool = False,
    nccl_us: float = 50.0,
    sizes: tuple[int, ...] = (8192, 32768),
    world: int = 3,
) -> list[tuple[Any, Any]]:
    """The group's results, (choice, communicator or None) by rank."""
    local = threading.local()
    made: dict[int, Reduce] = {}
    monkeypatch.setattr(startup, "has_peer_access", lambda device, environment: device == peer_on)

    def check_values(reduce: Any, sizes: Any) -> str | None:
        if reduce.exchange.rank == out_of_memory_on:
            raise RuntimeError("CUDA error: out of memory")
        return "two-shot, 8192 bytes" if reduce.exchange.rank == wrong_on else None

    monkeypatch.setattr(trial, "check_values", check_values)

    def best_plans(reduce: Any, sizes: Any, other: Any) -> Any:
        assert not alone, "nothing to compare with"
        if untimed:
            raise RuntimeError("CUDA error: out of memory")
        return {size: times(size, world, 10, nccl_us) for size in sizes}

    monkeypatch.setattr(trial, "best_plans", best_plans)

    def make(exchange: Any, device: int) -> Reduce:
        if fails:
            raise SetupFailed("registering the segment with the GPU (rank 1): operation not supported")
        made[exchange.rank] = Reduce(exchange, device)
        return made[exchange.rank]

    def one(rank: int) -> tuple[Any, Any]:
        local.rank = rank
        exchange = SocketExchange(tmp_path / "meet", rank, world)
        asked = (modes or {}).get(rank, mode)
        nccl: Any = None if alone else print
        group = startup.start(asked, exchange, rank, sizes, nccl, environment={}, make=make)  # type: ignore[arg-type]
        exchange.close()
        return group, made.get(rank)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    entries = [parse_line(line) for line in capsys.readouterr().out.splitlines()]
    assert entries and all(entry is not None and entry.section == "collectives" for entry in entries)
    return {entry.key: entry.value for entry in entries}  # type: ignore[union-attr]


def test_host_memory_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(tmp_path, monkeypatch)
    lines = said(capsys)
    assert lines["choice"] == "host" and lines["ranks"] == "3" and lines["peer_access"] == "false"
    assert lines["measured"]["ratio"] == 5.01 and set(lines["sizes"]) == {"8192", "32768"}
    for group, reduce in results:
        assert group.choice == results[0][0].choice
        assert not reduce.closed and reduce.on_failure is startup.end_worker, "armed once it serves"


@pytest.mark.parametrize(
    ("changes", "reason", "set_up"),
    [
        ({"mode": "0"}, "SM86_HOST_ALLREDUCE=0", False),
        ({"peer_on": 2}, "peer access is there (ranks 2)", False),
        ({"modes": {1: "0"}}, "told different things", False),
        ({"fails": True}, "set-up failed: registering the segment", False),
        ({"wrong_on": 1}, "the value check failed: two-shot, 8192 bytes", True),
        ({"out_of_memory_on": 2}, "could not be tried out: CUDA error: out of memory", True),
        ({"nccl_us": 10.0}, "NCCL is as fast", True),
        ({"untimed": True}, "could not be timed: CUDA error: out of memory", True),
        ({"sizes": ()}, "no decode message", True),
    ],
)
def test_nccl_takes_over_on_all_ranks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    reason: str,
    set_up: bool,
) -> None:
    results = run(tmp_path, monkeypatch, **changes)
    lines = said(capsys)
    assert lines["choice"] == "nccl" and reason in lines["reason"]
    for group, reduce in results:
        assert group.choice.way == "nccl" and not group.takes(Message(8192))
        assert reduce is None if not set_up else reduce.closed


def test_one_in_spite_of_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run(tmp_path, monkeypatch, mode="1", nccl_us=5.0, peer_on=0)
    assert said(capsys)["choice"] == "host" and all(group.choice.way == "host" for group, _ in results)


def test_without_nccl_nothing_is_timed_and_every_size_goes_by_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run(tmp_path, monkeypatch, mode="1", alone=True)
    lines = said(capsys)
    assert lines["choice"] == "host" and lines["values"] == "equal to the last bit" and "measured" not in lines
    assert "nothing was timed" in lines["reason"] and set(lines["sizes"]) == {"8192", "32768"}
    assert len({str(group.choice) for group, _ in results}) == 1


@pytest.mark.parametrize("changes", [{"wrong_on": 1}, {"fails": True}, {"out_of_memory_on": 0}, {"sizes": ()}])
def test_without_nccl_a_fault_is_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    assert all(group.choice.way == "nccl" for group, _ in run(tmp_path, monkeypatch, mode="1", alone=True, **changes))
    assert said(capsys)["choice"] == "nccl"


def test_a_failure_while_serving_is_told_and_ends_the_worker(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[int] = []
    startup.end_worker(CollectiveFailed(VERDICT, 60.0), ended.append, 0.0)
    assert ended == [startup.EXIT_CODE]
    text = said(capsys)["failed"]
    assert "the process of rank 1 has ended" in text and "\n" not in text


def test_words_of_every_verdict() -> None:
    late = Verdict(1, 0, 12, (2, 5), "two-shot", 8192)
    assert late.words(60.0) == "rank 0 waited 60 s for ranks (2, 5) in call 12 (two-shot, 8192 bytes)"
    assert "gave the group up" in Verdict(4, 3, 0, (), None, 0).words(1.0)
    assert "no record says why" in str(CollectiveFailed(None, 1.0))


def test_a_rank_that_cannot_measure_stops_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[int] = []

    class Group:
        def __init__(self, rank: int, broken: int) -> None:
            self.rank, self.broken = rank, broken

        def check_now(self) -> None:
            if self.rank == self.broken:
                raise CollectiveFailed(VERDICT, 60.0)

        def abort(self) -> None:
            aborted.append(self.rank)

    def replayed(calls: Any, per_graph: int, replays: int, group: Any) -> dict[str, list[float]]:
        group.check_now()
        return {name: [1.0, 2.0, 3.0, 4.0] for name in calls}

    monkeypatch.setattr(trial, "_replayed", replayed)

    def one(rank: int, broken: int) -> Any:
        exchange = SocketExchange(tmp_path / f"meet{broken}", rank, 2)
        try:
            return trial.times_of(exchange, {"a": print}, group=Group(rank, broken))  # type: ignore[arg-type]
        except RuntimeError as error:
            return str(error)
        finally:
            exchange.close()

    with ThreadPoolExecutor(2) as pool:
        words = list(pool.map(one, (0, 1), (1, 1)))
        assert words[0] == words[1] and "rank 1 has ended" in words[0]
        assert aborted == [1], "the others' waits end"
        fine = list(pool.map(one, (0, 1), (9, 9)))
    assert fine[0] == fine[1] == {"a": trial.Times(2.5, 1.25, 3.75)}
