"""The setting to use: only where it was measured, only beyond the spread, the simplest of equals."""

from __future__ import annotations

from sm86.comm.answer import FAILED
from sm86.comm.numbers import rows_of
from sm86.comm.recommend import dotenv_lines, recommend
from sm86.comm.step import PREFILL_BYTES
from tests.comm.made import lost, repeated, some

SLOW, FAST, MIDDLE = (10.0, 10.4, 10.1), (3.6, 3.5, 3.7), (6.0, 6.2, 6.1)


def found(times, sizes=(8192,), mark=""):
    runs = [one for name, us in times.items() for one in repeated(name, us)]
    return recommend(rows_of(some(*times), runs, 3), sizes, 87, mark)


def test_the_winner_is_written_as_env_takes_it() -> None:
    made = found({"nccl": {8192: SLOW}, "nccl-tree-ll": {8192: FAST}, "nccl-channels-1": {8192: MIDDLE}})
    assert made.setting == "nccl-tree-ll"
    assert dotenv_lines(made) == ("NCCL_ALGO=AllReduce:Tree", "NCCL_PROTO=AllReduce:LL")
    assert made.gains[0].calls == 87


def test_of_equals_the_one_with_fewer_variables_is_taken() -> None:
    made = found({"nccl": {8192: SLOW}, "nccl-tree-ll": {8192: (3.4, 3.5, 3.6)}, "nccl-channels-1": {8192: FAST}})
    assert dotenv_lines(made) == ("NCCL_MAX_NCHANNELS=1",)
    assert any("within the spread of it: nccl-tree-ll" in reason for reason in made.reasons)


def test_nccl_is_left_alone_where_nothing_is_faster_beyond_the_spread() -> None:
    made = found({"nccl": {8192: SLOW}, "nccl-tree-ll": {8192: (9.9, 10.2, 10.0)}})
    assert made.setting == "nccl" and made.known
    assert dotenv_lines(made)[0].startswith("# leave NCCL alone")


def test_it_must_lead_at_every_size_of_the_envelope() -> None:
    times = {
        "nccl": {8192: SLOW, 32768: SLOW},
        "nccl-tree-ll": {8192: FAST, 32768: MIDDLE},
        "nccl-ring-ll": {8192: MIDDLE, 32768: FAST},
    }
    made = found(times, (8192, 32768))
    assert made.setting == "nccl" and "no one setting leads" in made.reasons[0]
    assert found(times, (8192,)).setting == "nccl-tree-ll"


def test_flashinfer_is_never_written_since_vllm_leaves_it_aside_on_sm86() -> None:
    made = found({"nccl": {8192: SLOW}, "flashinfer-trtllm": {8192: FAST}})
    assert made.setting == "nccl"
    made = found({"nccl": {8192: SLOW}, "flashinfer-trtllm": {8192: FAST}, "sm86-host": {8192: MIDDLE}})
    assert made.setting == "sm86-host", "what cannot be used does not hide what can"


def test_emulated_numbers_and_a_lost_baseline_recommend_nothing() -> None:
    times = {"nccl": {8192: SLOW}, "nccl-tree-ll": {8192: FAST}}
    assert not found(times, mark="CPU, emulated").known
    runs = [*(lost("nccl", at, FAILED, "it broke") for at in range(3)), *repeated("nccl-tree-ll", {8192: FAST})]
    made = recommend(rows_of(some("nccl", "nccl-tree-ll"), runs, 3), (8192,), 87)
    assert not made.known and "it broke" in made.reasons[0]
    assert not found({"nccl": {8192: SLOW[:2]}, "nccl-tree-ll": {8192: FAST[:2]}}).known
    assert not found(times, sizes=(4096,)).known


def test_what_it_costs_in_prefill_is_said() -> None:
    times = {
        "nccl": {8192: SLOW, PREFILL_BYTES: (900.0, 905.0, 902.0)},
        "nccl-tree-ll": {8192: FAST, PREFILL_BYTES: (1900.0, 1910.0, 1905.0)},
    }
    made = found(times)
    assert made.setting == "nccl-tree-ll"
    assert made.prefill_ms == 87 * (1905.0 - 902.0) / 1000
    assert any("87.3 ms longer" in reason for reason in made.reasons)
