"""When a boot is given up, and when it must not be."""

import pytest

from sm86.boot import phases
from sm86.boot.deadline import (
    LIMIT,
    NCCL_STALL,
    NCCL_STALL_S,
    SILENCE,
    SILENCE_S,
    UNREADY,
    UNREADY_S,
    Deadline,
    Expired,
)


def test_the_whole_boot_is_bounded_however_much_is_said():
    deadline = Deadline(100, ranks=8)
    for second in range(100):
        deadline.life(second)
        assert deadline.expired(phases.LOAD, second) is None
    deadline.life(100)
    assert deadline.expired(phases.LOAD, 100) == Expired(LIMIT, 100)


@pytest.mark.parametrize("phase", phases.ALL)
def test_silence_is_bounded_in_every_phase(phase):
    deadline = Deadline(1e6, ranks=1, at=10)
    deadline.life(50)
    assert deadline.expired(phase, 50 + SILENCE_S[phase] - 1) is None
    assert deadline.expired(phase, 50 + SILENCE_S[phase]) == Expired(SILENCE, SILENCE_S[phase])
    deadline.life(50 + SILENCE_S[phase])
    assert deadline.expired(phase, 50 + SILENCE_S[phase] + 1) is None


def test_a_first_boot_may_compile_for_many_minutes_without_a_word():
    deadline = Deadline(1e6, ranks=8)
    assert deadline.expired(phases.PROFILE, 15 * 60) is None


def test_a_log_that_ends_at_the_nccl_version_is_a_stall_after_three_minutes():
    deadline = Deadline(1e6, ranks=8)
    deadline.nccl_named(10)
    assert deadline.expired(phases.START, 10 + NCCL_STALL_S - 1) is None
    assert deadline.expired(phases.START, 10 + NCCL_STALL_S) == Expired(NCCL_STALL, NCCL_STALL_S)


def test_ranks_that_went_on_do_not_stall():
    deadline = Deadline(1e6, ranks=8)
    deadline.nccl_named(10)
    deadline.life(20)
    assert deadline.expired(phases.START, 20 + NCCL_STALL_S) is None


def test_one_gpu_has_no_one_to_wait_for():
    deadline = Deadline(1e6, ranks=1)
    deadline.nccl_named(10)
    assert deadline.expired(phases.START, 10 + NCCL_STALL_S) is None


def test_a_server_that_says_it_is_up_has_to_answer_soon():
    deadline = Deadline(1e6, ranks=1)
    deadline.server_says_ready(100)
    deadline.server_says_ready(150)
    assert deadline.expired(phases.READY, 100 + UNREADY_S - 1) is None
    assert deadline.expired(phases.READY, 100 + UNREADY_S) == Expired(UNREADY, UNREADY_S)
