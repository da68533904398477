"""Groups, pages and blocks of any layer mix, and the engine's lines: against what real boots of vLLM 0.26.0 printed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm86.plan import kv
from sm86.plan.engine_lines import longest_context, predict
from sm86.plan.groups import INDEX_PAGE, MAIN_C4_PAGE, MAIN_C128_PAGE, WINDOW_PAGE, pool_of
from sm86.plan.shape import FLASH
from sm86.plan.units import GIB
from tests.plan.plan_shapes import DEEP, GRAPH, PIECEWISE, ratios

POOL = pool_of(FLASH)


def test_pages_by_the_byte():
    assert (MAIN_C4_PAGE, MAIN_C128_PAGE, INDEX_PAGE, WINDOW_PAGE) == (37_440, 1_728, 8_640, 37_440)


def test_groups_of_the_served_model():
    assert [(group.name, group.tokens, group.window) for group in POOL.groups] == [
        ("compressed keys", 256, 0),
        ("window keys 1", 64, 128),
        ("window keys 2", 64, 128),
        ("C4 states", 4, 8),
        ("C128 states", 8, 128),
    ]
    assert [group.layers for group in POOL.groups] == [
        ((37440, 21), (8640, 21), (1728, 20)),
        ((37440, 22),),
        ((37440, 21),),
        ((37440, 21), (8640, 21)),
        ((37440, 20),),
    ]
    assert sum(count for group in POOL.groups[1:3] for _, count in group.layers) == 43
    assert POOL.bytes_per_block == 1_039_680 and POOL.charged_per_page == 1_051_776


@pytest.mark.parametrize(("blocks", "starts"), [(1760, False), (1790, False), (1791, True), (1792, True)])
def test_the_engines_minimum_at_393216(blocks: int, starts: bool):
    lines = predict(POOL, 393_216, 512, blocks, None)
    assert lines.passes is starts and lines.minimum == 1791
    assert (lines.refusal is None) is starts


def test_two_sequences_of_262144_need_2048_blocks_and_one_seats():
    assert POOL.needed_blocks(262_144, 2, 512) >= 2048
    assert POOL.needed_blocks(262_144, 1, 512) == 1273


@pytest.mark.parametrize(
    ("blocks", "longest"),
    [(1273, 262_144), (1536, 328_704), (1760, 385_280), (1792, 393_472), (2048, 458_240), (2309, 524_288)],
)
def test_the_longest_context_of_a_pool(blocks: int, longest: int):
    assert longest_context(POOL, blocks, 512, 1_048_576) == longest


def test_the_refused_boot_to_the_word():
    # recorded_kv1790.log, 256 batched tokens, asynchronous
    said = predict(POOL, 393_216, 512, 1790, round(5.65 * GIB))
    assert said.refusal == (
        "To serve at least one request with the model's max seq len (393216), (1.73 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (1.73 GiB). Based on the available memory, the estimated maximum "
        "model length is 392960."
    )
    assert said.size is None and said.concurrency is None


@pytest.mark.parametrize(
    ("shape", "context", "m", "override", "size", "times"),
    [
        (DEEP, 393_216, 512, 1791, 404_508, "1.03"),
        (DEEP, 393_216, 512, 1792, 404_734, "1.03"),
        (GRAPH, 32_768, 512, 864, 83_025, "2.53"),
    ],
)
def test_pinned_pools_as_booted(shape, context, m, override, size, times):
    lines = predict(pool_of(shape), context, m, override, None)
    assert lines.size == f"GPU KV cache size: {size:,} tokens"
    assert lines.concurrency == f"Maximum concurrency for {context:,} tokens per request: {times}x"


@pytest.mark.parametrize(
    ("shape", "gib", "size", "times"),
    [(GRAPH, 66.09, 17_359_567, 1059.54), (PIECEWISE, 24.95, 18_849_842, 1150.50)],
)
def test_pools_that_vllm_sized_itself_as_booted(shape, gib, size, times):
    """The log gives the pool to two decimals; within them one number of blocks gives exactly the printed tokens."""
    low, high = (predict(pool_of(shape), 16_384, 1024, None, round((gib + d) * GIB)) for d in (-0.005, 0.005))
    assert low.tokens <= size <= high.tokens
    assert round(low.times, 2) <= times <= round(high.times, 2)
    request = pool_of(shape).blocks_per_request(16_384, 1024)
    assert [n for n in range(low.blocks, high.blocks + 1) if int(n / request * 16_384) == size]


@pytest.mark.parametrize(
    ("shape", "gib", "replaced"),
    [(DEEP, 57.52, 59_400), (DEEP, 5.65, 5834), (DEEP, 6.69, 6908), (GRAPH, 35.22, 263_674)],
)
def test_the_number_that_an_override_replaces_as_booted(shape, gib, replaced):
    per_block = pool_of(shape).bytes_per_block
    assert (gib - 0.005) * GIB // per_block <= replaced <= (gib + 0.005) * GIB // per_block


def test_the_override_line():
    said = predict(POOL, 262_144, 512, 1280, 3 * GIB)
    assert said.override == "Overriding num_gpu_blocks=3098 with num_gpu_blocks_override=1280"


def test_a_pool_of_no_known_size_is_a_fault():
    with pytest.raises(ValueError, match="neither"):
        predict(POOL, 262_144, 512, None, None)


def test_not_even_one_token():
    assert longest_context(POOL, 3, 512, 393_216) == 0
    refusal = predict(POOL, 393_216, 512, 3, None).refusal
    assert refusal is not None and "estimated maximum model length" not in refusal


@pytest.mark.parametrize("layers", [3, 4, 5, 8, 12, 42, 43, 44])
def test_every_layer_has_its_pages(layers: int):
    shape = replace(FLASH, ratios=ratios(layers))
    pool = pool_of(shape)
    assert sum(count for group in pool.groups if "window" in group.name for _, count in group.layers) == layers
    for group in pool.groups:
        assert group.page_bytes <= pool.bytes_per_block
    assert pool.charged_per_page >= pool.bytes_per_block - 37_440


@given(
    context=st.integers(1, 1_048_576),
    m=st.integers(1, 40_000),
    blocks=st.integers(1, 20_000),
)
def test_minimum_and_longest_context_agree(context: int, m: int, blocks: int):
    starts = predict(POOL, context, m, blocks, None).passes
    assert starts is (blocks >= POOL.minimum_blocks(context, m))
    longest = longest_context(POOL, blocks, m, 1_048_576)
    assert starts is (context <= longest)


@given(context=st.integers(1, 1_048_576), m=st.integers(1, 40_000))
def test_the_older_counts_are_the_same(context: int, m: int):
    assert kv.engine_minimum_blocks(context, m) == POOL.minimum_blocks(context, m)
    assert kv.resident_blocks(context, 3, m) == POOL.resident_blocks(context, 3, m)
    # as written down from the sources the first time: one sequence's pages of the windowed groups
    wanted = 2 * (-(-min(127 + m, context) // 64) + 1) + (-(-min(7 + m, context) // 4) + 1)
    assert kv.window_pages(context, m) == wanted + (-(-min(127 + m, context) // 8) + 1)
