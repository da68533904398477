"""What fits a rig: the found fits, a step more does not, and what does not fit at all says why and what would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.errors import CheckFailed, CouldNotRun
from sm86.fit.memory_plan import FITS, NO_FIT, UNCERTAIN, plan
from sm86.fit.search import STEP_TOKENS, Wish, possible_ranks, search, used_bytes, with_context
from sm86.plan import memory
from sm86.plan.groups import pool_of
from sm86.plan.memory import Server
from sm86.plan.shape import FLASH
from sm86.plan.units import total
from tests.fit.fit_rigs import RIG, RIGS, rig_of


@pytest.mark.parametrize("name", sorted(set(RIGS) - {"4x3090"}))
def test_every_rig_that_can_serve_has_candidates_whose_plans_pass(name: str):
    found = search(RIGS[name])
    assert found.candidates and found.idle == RIGS[name].count - found.ranks
    for candidate in found.candidates:
        assert candidate.plan.verdict in (FITS, UNCERTAIN)
        assert candidate.plan.passed is candidate.sure
        assert candidate.server.context % STEP_TOKENS == 0
        assert candidate.server.blocks % 32 == 0 and candidate.server.blocks >= candidate.plan.needed_blocks


@pytest.mark.parametrize("name", ["8x3090", "4xa6000", "10xa5000"])
def test_one_step_more_would_not_fit_for_sure(name: str):
    for candidate in search(RIGS[name]).candidates:
        if candidate.server.context == FLASH.positions:
            continue
        longer = with_context(FLASH, candidate.server, candidate.server.context + STEP_TOKENS)
        assert plan("x", longer, RIGS[name]).verdict != FITS


def test_more_sequences_get_shorter_contexts():
    contexts = [candidate.server.context for candidate in search(RIG).candidates]
    assert contexts == sorted(contexts, reverse=True) and len(set(contexts)) == len(contexts)


def test_ten_gpus_use_eight_and_say_why():
    found = search(RIGS["10x3090"])
    assert (found.ranks, found.idle) == (8, 2) and "1, 2, 4 or 8 GPUs" in found.why_idle


def test_four_large_gpus_serve_the_whole_context():
    best = search(RIGS["4xa6000"]).best
    assert best.server.ranks == 4 and best.server.context == FLASH.positions and best.sure


def test_eight_of_20_gib_are_uncertain_and_get_the_smallest_server():
    found = search(RIGS["8x3080-20g"])
    assert not any(candidate.sure for candidate in found.candidates)
    assert found.best.server.context == 8192 and found.best.plan.left.low < 0 < found.best.plan.left.high


def test_a_wished_context_gets_the_most_sequences():
    found = search(RIG, Wish(context=65_536))
    most = max(candidate.server.sequences for candidate in found.candidates)
    assert all(candidate.server.context == 65_536 for candidate in found.candidates)
    again = search(RIG, Wish(context=65_536, sequences=most + 1, batched_tokens=512)) if most < 64 else None
    assert again is None or not again.best.sure


def test_a_smaller_batch_is_taken_where_the_published_one_does_not_fit():
    found = search(RIG, Wish(context=524_288, sequences=1))
    assert found.best.sure and found.best.server.batched_tokens == 256


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(context=1_048_576), ("1 x 1048576 tokens do not fit", "the nearest that fits: 1 x")),
        (Wish(context=393_216, sequences=4), ("4 x 393216", "the nearest that fits: 4 x", "1 x 393216")),
        (Wish(sequences=200), ("200 x 8192", "the nearest that fits: 1 x")),
        (Wish(context=1_048_576, tensor_parallel=8), ("weights alone take 18,974",)),
    ],
)
def test_an_impossible_wish_names_the_reason_and_the_nearest(wish: Wish, words):
    with pytest.raises(CheckFailed) as refused:
        search(RIG, wish)
    said = f"{refused.value.what} | {refused.value.mend}"
    for word in words:
        assert word in said, said


def test_the_nearest_really_fits():
    with pytest.raises(CheckFailed) as refused:
        search(RIG, Wish(context=1_048_576))
    context = int(refused.value.mend.split("1 x ")[1].split()[0])
    assert search(RIG, Wish(context=context, sequences=1)).best.sure


def test_a_rig_too_small_for_the_weights_says_how_much_is_needed():
    with pytest.raises(CheckFailed) as refused:
        search(RIGS["4x3090"])
    assert "weights alone take 36,907" in refused.value.what and "38 GiB or more" in refused.value.mend
    assert search(rig_of(4, 40)).best.plan.verdict != NO_FIT


def test_one_gpu():
    with pytest.raises(CheckFailed):
        search(rig_of(1, 48))
    assert search(rig_of(1, 180)).best.server.ranks == 1


@pytest.mark.parametrize(
    "wish", [Wish(context=2_000_000), Wish(tensor_parallel=3), Wish(tensor_parallel=16), Wish(context=0)]
)
def test_a_wish_that_no_rig_fulfils_is_refused(wish: Wish):
    with pytest.raises(CouldNotRun):
        search(RIG, wish)


def test_tensor_parallel_of_more_gpus_than_there_are():
    with pytest.raises(CouldNotRun, match="has 4 GPU"):
        search(RIGS["4xa6000"], Wish(tensor_parallel=8))


def test_possible_ranks():
    assert possible_ranks(FLASH, 10) == (8, 4, 2, 1)
    assert possible_ranks(replace(FLASH, heads=48, output_groups=16), 16) == (16, 8, 4, 2, 1)


def test_gpus_held_by_others_get_less():
    free, held = search(RIG).best, search(rig_of(8, 23.69, used_mib=1500)).best
    assert held.server.context < free.server.context and held.utilization < free.utilization


def test_loading_counts_where_it_takes_more_than_serving():
    server = with_context(FLASH, Server(0, 1, 8, 128, False, 0, ()), 8192)
    loading = memory.loading_peak(FLASH, server, 82)
    parts = total(part.size for part in memory.parts(FLASH, pool_of(FLASH), server, 82))
    assert loading.low > parts.low
    used = used_bytes(FLASH, server, 82)
    assert (used.low, used.high) == (loading.low, max(parts.high, loading.high))


def test_what_fits_for_sure_comes_first():
    """Where more sequences may fit and fewer do for sure, with a smaller batch."""
    mixed = 0
    for mib in range(24_258, 20_000, -64):
        try:
            found = search(rig_of(8, mib / 1024), Wish(context=131_072))
        except CheckFailed:
            break
        sure = [candidate.sure for candidate in found.candidates]
        assert sure == sorted(sure, reverse=True), mib
        mixed += len(set(sure)) == 2
    assert mixed


def test_what_others_hold_is_the_first_mend_where_it_is_enough():
    with pytest.raises(CheckFailed) as told:
        search(rig_of(8, 23.69, used_mib=21_000))
    assert "end what holds 21,000 MiB" in told.value.mend
    with pytest.raises(CheckFailed) as told:
        search(rig_of(8, 12, used_mib=1000))
    assert "use GPUs with" in told.value.mend and "at most 8" in told.value.mend
