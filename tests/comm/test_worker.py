"""A rank's arithmetic and a whole run on CPU processes (emulated: gloo in NCCL's place). Needs torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.comm import answer, driver, matrix, worker
from sm86.comm.plan import CPU, Plan

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
CPU_DEVICE = torch.device("cpu")


def sums(ranks: int, turn: int = 0, calls: int = 4, numbers: int = 1024):
    """What a right all-reduce gives: added in rank order, each partial sum rounded to bf16, as a ring does."""
    rows = []
    for call in range(calls):
        total = worker.values(0, call, turn, numbers, CPU_DEVICE)
        for rank in range(1, ranks):
            total = total + worker.values(rank, call, turn, numbers, CPU_DEVICE)
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_that_rounds_at_every_hop_is_within_the_bound(ranks: int) -> None:
    assert worker._check(sums(ranks), ranks, 0) <= 1.0


@pytest.mark.parametrize("ranks", [2, 8])
def test_faults_are_found(ranks: int) -> None:
    right = sums(ranks)
    stale = right.clone()
    stale[2, 512:520] = sums(ranks, turn=1)[2, 512:520]
    neighbour = right.clone()
    neighbour[1] = right[0]
    short = right.clone()
    short[3, -8:] -= worker.values(ranks - 1, 3, 0, 1024, CPU_DEVICE)[-8:]
    no_number = right.clone()
    no_number[0, 7] = float("nan")
    for name, planted in (("stale", stale), ("neighbour", neighbour), ("a rank missing", short), ("nan", no_number)):
        assert worker._check(planted, ranks, 0) > 1.0, name
    assert worker._check(right, ranks, 1) > 1.0, "the other turn's values"


def test_every_rank_can_make_every_others_values() -> None:
    one = worker.values(3, 5, 1, 4096, CPU_DEVICE)
    assert torch.equal(one, worker.values(3, 5, 1, 4096, CPU_DEVICE))
    for other in ((4, 5, 1), (3, 6, 1), (3, 5, 0)):
        same = (one == worker.values(*other, 4096, CPU_DEVICE)).float().mean()
        assert same < 0.05, other
    assert one.abs().max() <= 1.0 and one.float().std() > 0.4


def plan(**more) -> Plan:
    base = {"repeats": 1, "replays": 2, "warm": 1, "limit_s": 100.0}
    return Plan(2, CPU, (2048, 8192), 3, matrix.emulated_settings(), **{**base, **more})


def test_a_whole_run_on_cpu_processes() -> None:
    done = driver.run(plan(), matrix.emulated_settings()[0], 0)
    assert done.state == answer.MEASURED, done.why
    assert set(done.cells) == {2048, 8192}
    assert all(cell.us > 0 and cell.error <= 1.0 and cell.bit_equal for cell in done.cells.values())
    assert all("emulated" in cell.ran for cell in done.cells.values())


def test_a_way_that_is_not_there_is_a_row_that_says_so() -> None:
    host = next(s for s in matrix.emulated_settings() if s.path == matrix.HOST)
    done = driver.run(plan(), host, 0)
    assert (done.state, done.why) == (answer.UNAVAILABLE, "it runs on GPUs only")


def test_the_products_own_is_opened_by_its_name_and_takes_what_it_says(monkeypatch) -> None:
    """The contract with sm86.backend.collectives, which itself runs on GPUs only."""
    import types

    from sm86.comm import paths

    class Ours:
        max_bytes = 65536

        def all_reduce(self, tensor):
            return tensor * 2

        def words(self, size: int) -> str:
            return f"one-shot/{size}"

        def close(self) -> None:
            self.closed = True

    opened = []
    module = types.SimpleNamespace(open_all_reduce=lambda *given: opened.append(given) or Ours())
    monkeypatch.setitem(sys.modules, "sm86.backend.collectives", module)
    device = types.SimpleNamespace(type="cuda")
    path = paths._Host("group", device, 1 << 22)
    assert opened == [("group", device, 1 << 22)]
    assert path.takes(65536) and not path.takes(131072)
    assert path.ran(8192) == "one-shot/8192" and path.all_reduce(3) == 6
    monkeypatch.setitem(sys.modules, "sm86.backend.collectives", types.SimpleNamespace())
    with pytest.raises(paths.Unavailable, match="has no all-reduce of its own"):
        paths._Host("group", device, 1)


def test_values_that_are_wrong_in_a_run_are_found(tmp_path: Path) -> None:
    faulty = tmp_path / "rank.py"
    faulty.write_text(
        "import sys\n"
        "from sm86.comm import paths, worker\n"
        "right = paths._Gloo.all_reduce\n"
        "def wrong(self, tensor):\n"
        "    made = right(self, tensor)\n"
        "    made[5] += 1.0\n"
        "    return made\n"
        "paths._Gloo.all_reduce = wrong\n"
        "sys.exit(worker.main())\n"
    )
    done = driver.run(plan(), matrix.emulated_settings()[0], 0, [sys.executable, str(faulty)])
    assert done.state == answer.WRONG


def test_a_rank_without_its_peers_ends_in_its_time(tmp_path: Path) -> None:
    """The limit of the rank itself: a driver that hangs does not keep it alive."""
    order = (
        '{"rank": 0, "ranks": 2, "device": "cpu", "path": "gloo", "sizes": [2048], "calls": 2, "warm": 1, '
        f'"replays": 1, "limit_s": 3.0, "store": "{tmp_path}/store"}}\n'
    )
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "sm86.comm.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
    )
    try:
        assert child.stdin is not None
        child.stdin.write(order.encode())
        child.stdin.flush()
        assert child.wait(90) == worker.OUT_OF_TIME
    finally:
        child.kill()
