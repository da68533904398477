"""DeepSeek-V4's hybrid KV cache, to the block, as vLLM 0.26.0 counts it.

All layers share one pool of block ids; an id costs the same whichever group takes it. The model
reproduces what real boots of vLLM 0.26.0 printed (1791 blocks seat 393216 tokens at m = 512, 1790 do
not) and the published rig's facts (1760 blocks too few, 1792 enough).

Source of the formulas: vLLM 0.26.0 `v1/core/kv_cache_utils.py` and `v1/kv_cache_interface.py`; the
group sizes follow from the model's `compress_ratios` (2 layers with a sliding window only, 21 with a
4-fold and 20 with a 128-fold compression); `sm86.plan.groups` forms them for any mix of layers.

Terms: L = context in tokens; m = tokens that may be scheduled before the first one is freed
(max_num_batched_tokens, twice that with asynchronous scheduling).
"""

from __future__ import annotations

from math import ceil

from sm86.plan.groups import BLOCK_TOKENS, pool_of
from sm86.plan.shape import FLASH

__all__ = [
    "BLOCK_STEP",
    "BLOCK_TOKENS",
    "PAGE_BYTES_CHARGED",
    "POOL_BYTES_PER_BLOCK",
    "block_override",
    "engine_minimum_blocks",
    "needed_blocks",
    "resident_blocks",
    "scheduled_tokens",
    "window_pages",
]

POOL = pool_of(FLASH)

POOL_BYTES_PER_BLOCK = POOL.bytes_per_block
"""Bytes one block id costs on every GPU: 22 x 37440 + 21 x 8640 + 20 x 1728 = 1,039,680."""

PAGE_BYTES_CHARGED = POOL.charged_per_page
"""Bytes vLLM's start-up check charges for a page: 22 x (37440 + 8640 + 1728) = 1,051,776, 1.2 % more than it costs."""

BLOCK_STEP = 32
"""Overrides are multiples of this: the published rig moved in such steps (1760 = 55 x 32, 1792 = 56 x 32)."""


def scheduled_tokens(max_num_batched_tokens: int, async_scheduling: bool) -> int:
    """m: tokens in flight before anything is freed (one batch; two with asynchronous scheduling)."""
    return max_num_batched_tokens * (2 if async_scheduling else 1)


def window_pages(context: int, m: int) -> int:
    """Pages of the sliding-window and compressor-state groups for one sequence that is still prefilling."""
    return POOL.window_pages(context, m)


def engine_minimum_blocks(context: int, m: int) -> int:
    """The fewest blocks with which vLLM's start-up check lets one sequence of `context` tokens pass."""
    return POOL.minimum_blocks(context, m)


def resident_blocks(context: int, sequences: int, m: int, draft_tokens: int = 0) -> int:
    """Blocks with which `sequences` sequences of `context` tokens all stay resident.

    All but the last decode while the last one still prefills, which is the fullest moment of a run of
    equal sequences. A decoding sequence is counted with two tokens in flight: at a page boundary the
    next page is taken before the old one is freed. One more block is the null block. With drafting a step
    schedules `draft_tokens` more for each sequence and keeps as many slots ahead; the draft layer itself joins a
    group that has room. The drafting terms follow from the scheduler's source and were not seen on a boot.
    """
    return POOL.resident_blocks(context, sequences, m, draft_tokens)


def needed_blocks(context: int, sequences: int, m: int, draft_tokens: int = 0) -> int:
    """The fewest blocks an envelope can do with: what the engine demands, and what its sequences occupy."""
    return max(engine_minimum_blocks(context, m), resident_blocks(context, sequences, m, draft_tokens))


def block_override(context: int, sequences: int, m: int) -> int:
    """`num_gpu_blocks_override` for an envelope: what it needs, in steps of BLOCK_STEP."""
    return ceil(needed_blocks(context, sequences, m) / BLOCK_STEP) * BLOCK_STEP
