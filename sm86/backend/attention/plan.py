"""How a launch is cut up: from shapes alone, so a captured graph keeps its grid whatever the lengths become. Pure."""

from __future__ import annotations

from dataclasses import dataclass

HEADS_PER_BLOCK = 8
MAX_SPLITS = 36
BLOCKS_PER_MULTIPROCESSOR = 2
"""The kernel is built for two blocks of 256 threads per multiprocessor of SM86."""

SINGLE, LAST_BLOCK, SHARED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Cut:
    """tile_keys: keys per tile (32 or 64); splits: blocks that share a token's keys; combine: how they meet.

    SINGLE: one split, nothing to combine. LAST_BLOCK: the last block of a token combines. SHARED: up to four blocks
    wait for the others and combine together, which needs all blocks resident at once.
    """

    tile_keys: int
    splits: int
    combine: int


def resident_blocks(multiprocessors: int) -> int:
    """Blocks that run at once on a GPU; also the most partial results a launch leaves in the workspace."""
    return BLOCKS_PER_MULTIPROCESSOR * multiprocessors


def choose(tokens: int, heads: int, width: int, multiprocessors: int) -> Cut:
    """The cut for `tokens` rows of `heads` heads whose index rows are `width` keys wide in all.

    Few rows: as many small tiles as there are multiprocessors, each key loaded once and early.
    Many rows: splits only while all blocks stay resident; then one block per row walks its keys alone.
    """
    rows = tokens * (heads // HEADS_PER_BLOCK)
    slots = resident_blocks(multiprocessors)
    small = -(-width // 32)
    if rows * small <= multiprocessors and small <= MAX_SPLITS:
        tile, splits = 32, max(1, small)
    else:
        tile, splits = 64, max(1, min(-(-width // 64), MAX_SPLITS, slots // rows))
    if splits == 1:
        return Cut(tile, 1, SINGLE)
    return Cut(tile, splits, SHARED if rows * splits <= slots else LAST_BLOCK)
