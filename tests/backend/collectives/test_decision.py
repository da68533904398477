"""Host memory or NCCL: every branch, from facts and times alone; and that all ranks take the same one."""

from __future__ import annotations

import pytest

from sm86.backend.collectives import plan as plans
from sm86.backend.collectives.decision import HOST, NCCL, choose, declined, sizes_of
from sm86.backend.collectives.plan import ONE_SHOT, PACKETS, TWO_SHOT, Plan
from sm86.backend.collectives.trial import Times, fastest

FACT = {"peer_access": False, "ubatches": False, "mode": "auto"}


def times(size: int, world: int, host: float, nccl: float, spread: float = 0.1) -> dict[str, Times]:
    """Every candidate `host` us, the second one a little faster; NCCL `nccl` us."""
    table = {
        one.name: Times(host - (0.01 if k == 1 else 0), host - spread, host + spread)
        for k, one in enumerate(plans.candidates(size, world))
    }
    return {**table, "nccl": Times(nccl, nccl - spread, nccl + spread)}


@pytest.mark.parametrize(
    ("mode", "facts", "words"),
    [
        ("0", [FACT] * 8, "SM86_HOST_ALLREDUCE=0"),
        ("auto", [FACT] * 9, "9 ranks"),
        ("auto", [FACT], "1 ranks"),
        ("auto", [FACT, {**FACT, "peer_access": True}], "peer access is there (ranks 1)"),
        ("1", [FACT, {**FACT, "ubatches": True}], "micro-batches"),
    ],
)
def test_reasons_not_to_set_up(mode: str, facts: list[dict], words: str) -> None:
    reason = declined(mode, facts)
    assert reason is not None and words in reason


def test_reasons_that_do_not_count() -> None:
    assert declined("auto", [FACT] * 8) is None
    assert declined("1", [FACT, {**FACT, "peer_access": True}]) is None, "asked for in spite of peer access"


def test_auto_takes_the_sizes_that_win_beyond_the_spread() -> None:
    table = {8192: times(8192, 8, 10, 50), 16384: times(16384, 8, 12, 12.1), 32768: times(32768, 8, 15, 60)}
    choice = choose("auto", 8, table)
    assert choice.way == HOST and sorted(choice.plans) == [8192, 32768]
    assert "8192, 32768" in choice.reason and "NCCL stays at 16384" in choice.reason
    assert choice.plan_for(8192) == choice.plan_for(1024) == plans.candidates(8192, 8)[1]
    assert choice.plan_for(12288) is None, "served like 16 KiB, which NCCL won"
    assert choice.plan_for(24576) == choice.plans[32768]
    assert choice.plan_for(65536) is None, "never timed"
    assert choice.plan_for(8190) is None, "no whole vectors"
    assert choice.table[0].ratio == pytest.approx(50 / 9.99)
    assert choice.table[0].entry()["ratio"] == 5.01


@pytest.mark.parametrize(("host", "nccl", "spread"), [(10, 10, 0.1), (10, 10.2, 0.01), (10, 11, 2), (12, 10, 0.1)])
def test_auto_leaves_what_is_not_clearly_faster_to_nccl(host: float, nccl: float, spread: float) -> None:
    choice = choose("auto", 2, {8192: times(8192, 2, host, nccl, spread)})
    assert choice.way == NCCL and not choice.plans and choice.plan_for(8192) is None and choice.table


def test_one_takes_every_size() -> None:
    choice = choose("1", 2, {8192: times(8192, 2, 20, 10)})
    assert choice.way == HOST and choice.plan_for(8192) is not None


def test_the_sizes_of_an_envelope() -> None:
    assert sizes_of(4096, 2, (1, 2, 4), 128 * 1024) == (8192, 16384, 32768)
    assert sizes_of(4096, 2, (1, 64), 128 * 1024) == (8192,)
    many = sizes_of(4096, 2, tuple(range(1, 17)), 128 * 1024)
    assert many == (8192, 16384, 32768, 65536, 131072)
    assert sizes_of(4096, 2, (), 128 * 1024) == ()


def test_candidates_fit_and_are_named_apart() -> None:
    for world in plans.RANKS:
        for size in (16, 1024, 8192, 32768, 65536, 131072):
            found = plans.candidates(size, world)
            assert found and all(plans.fits(one, size) for one in found)
            assert len({one.name for one in found}) == len(found)
            assert all(one.threads >= 128 for one in found)
            assert any(one.algorithm == TWO_SHOT for one in found) == (world > 2)
            assert plans.fits(plans.default(size, world), size)
    assert not any(one.algorithm == PACKETS for one in plans.candidates(65536, 8))


def test_what_cannot_go_this_way() -> None:
    assert plans.takes(16) and plans.takes(131072) and plans.takes(8192, 8192)
    assert not any(plans.takes(size) for size in (0, 8, 24, 131088, 1 << 20))
    assert not plans.takes(8208, 8192)
    assert plans.default(8192, 2).algorithm == ONE_SHOT and plans.default(32768, 8).algorithm == TWO_SHOT
    assert Plan(TWO_SHOT, 128, 600).name == "two-shot/128+600"


def test_the_fastest_plan_is_the_first_of_equals() -> None:
    table = {one.name: Times(5.0, 5.0, 5.0) for one in plans.candidates(8192, 2)}
    assert fastest(8192, 2, table) == plans.candidates(8192, 2)[0]
