"""The KV model against facts: the published rig's, and what real boots of vLLM 0.26.0 printed."""

import pytest

from sm86.plan import kv
from sm86.spec import load_all

M = 512


def test_bytes_of_a_block():
    assert kv.POOL_BYTES_PER_BLOCK == 1_039_680
    assert kv.PAGE_BYTES_CHARGED == 1_051_776


def test_393k_lies_between_the_two_counts_that_the_published_rig_tried():
    assert 1760 < kv.engine_minimum_blocks(393_216, M) <= 1792


def test_393k_to_the_block_as_booted():
    # two boots of vLLM 0.26.0 at m = 512: 1791 blocks started, 1790 were refused
    assert kv.engine_minimum_blocks(393_216, kv.scheduled_tokens(256, async_scheduling=True)) == 1791


@pytest.mark.parametrize("m, inside", [(433, False), (434, True), (513, True), (514, False)])
def test_the_roadmaps_two_counts_pin_m(m, inside):
    assert (1760 < kv.engine_minimum_blocks(393_216, m) <= 1792) is inside


def test_two_sequences_of_262k_need_at_least_2048():
    assert kv.needed_blocks(262_144, 2, M) >= 2048


def test_262k_seats():
    assert kv.needed_blocks(262_144, 1, M) == 1273


def test_asynchronous_scheduling_doubles_what_is_in_flight():
    assert kv.scheduled_tokens(512, False) == 512
    assert kv.scheduled_tokens(512, True) == 1024


@pytest.mark.parametrize("envelope", [e for e in load_all() if e.uses_gpu], ids=lambda e: e.name)
def test_every_override_follows_from_the_model(envelope):
    serve = envelope.serve
    m = kv.scheduled_tokens(serve.max_num_batched_tokens, serve.async_scheduling)
    assert serve.num_gpu_blocks_override == kv.block_override(serve.context, serve.sequences, m)


def test_more_of_anything_never_needs_fewer_blocks():
    for context in (256, 4096, 81_920, 262_144):
        for sequences in (1, 2, 4):
            here = kv.needed_blocks(context, sequences, M)
            assert kv.needed_blocks(context + 256, sequences, M) >= here
            assert kv.needed_blocks(context, sequences + 1, M) >= here
            assert kv.needed_blocks(context, sequences, M * 2) >= here
