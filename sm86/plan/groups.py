"""DeepSeek-V4's KV cache groups, pages and pool for any mix of layers, as vLLM 0.26.0 forms them. Pure.

Source: vLLM 0.26.0 `v1/core/kv_cache_utils.py` (group_and_unify_kv_cache_specs, _get_kv_cache_groups_uniform_groups,
_get_kv_cache_config_packed, _max_memory_usage_bytes_from_groups, get_max_concurrency_for_kv_cache_config),
`v1/kv_cache_interface.py` (page sizes) and `models/deepseek_v4/` (what each layer stores). Held to real boots by
`tests/plan` and `tests/fit`.

Every group draws block ids from one pool; an id costs the same bytes whichever group takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sm86.plan.shape import C4, C128, Shape
from sm86.plan.units import ceil_div

BLOCK_TOKENS = 256
"""Tokens in one block of the uncompressed coordinate; the only block size that the page layout holds for."""

ALIGNMENT = 576
"""The fp8_ds_mla layout rounds every page up to a multiple of this."""

_ENTRY = 584
"""Bytes of one key: 448 of e4m3, 128 of bf16 for RoPE, 8 of scales."""

_INDEX_ENTRY = 132
"""Bytes of one indexer key: 128 of e4m3 and one fp32 scale."""

_STATE_TOKENS = {C4: 4, C128: 8}
"""Tokens in one page of a compressor's state: fixed in vLLM so that its page matches a page of keys."""


def _page(raw: int) -> int:
    return ceil_div(raw, ALIGNMENT) * ALIGNMENT


MAIN_C4_PAGE = _page(BLOCK_TOKENS // C4 * _ENTRY)
MAIN_C128_PAGE = _page(BLOCK_TOKENS // C128 * _ENTRY)
INDEX_PAGE = _page(BLOCK_TOKENS // C4 * _INDEX_ENTRY)
WINDOW_TOKENS = 64
WINDOW_PAGE = _page(WINDOW_TOKENS * _ENTRY)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share block tables. layers: (page bytes, number of layers) of each kind of page in it;
    tokens: tokens of one page; window: tokens it looks back, 0 for all of the context."""

    name: str
    layers: tuple[tuple[int, int], ...]
    tokens: int
    window: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of all its layers together."""
        return sum(page * count for page, count in self.layers)

    @property
    def tuples(self) -> int:
        return max(count for _, count in self.layers)

    def pages(self, context: int, m: int) -> int:
        """Most pages that one sequence of `context` tokens holds with `m` tokens in flight."""
        if not self.window:
            return ceil_div(context, self.tokens)
        # the window may begin in the middle of a page, which costs one more
        return ceil_div(min(self.window - 1 + m, context), self.tokens) + 1


@dataclass(frozen=True, slots=True)
class Pool:
    """The groups of one model and what one block costs.

    bytes_per_block: what the pool really allocates; charged_per_page: what vLLM's start-up check charges for it.
    """

    groups: tuple[Group, ...]
    bytes_per_block: int
    charged_per_page: int

    def window_pages(self, context: int, m: int) -> int:
        """Pages of all groups that look back over a window only: keys of the window and compressor states."""
        return sum(group.pages(context, m) for group in self.groups if group.window)

    def pages(self, context: int, m: int) -> int:
        """Pages of one sequence that is still prefilling."""
        return sum(group.pages(context, m) for group in self.groups)

    def charged(self, context: int, m: int) -> int:
        """Bytes that vLLM's start-up check wants for one sequence."""
        return self.pages(context, m) * self.charged_per_page

    def minimum_blocks(self, context: int, m: int) -> int:
        """The fewest blocks with which the start-up check passes."""
        return ceil_div(self.charged(context, m), self.bytes_per_block)

    def resident_blocks(self, context: int, sequences: int, m: int, draft_tokens: int = 0) -> int:
        """Blocks with which `sequences` sequences of `context` tokens all stay resident; see `kv.resident_blocks`."""
        full = sequences * ceil_div(context, BLOCK_TOKENS)
        decoding = (sequences - 1) * self.window_pages(context, 2 + 2 * draft_tokens)
        return full + decoding + self.window_pages(context, m + draft_tokens) + 1

    def needed_blocks(self, context: int, sequences: int, m: int) -> int:
        """The fewest blocks that sequences of this context can do with."""
        return max(self.minimum_blocks(context, m), self.resident_blocks(context, sequences, m))

    def blocks_per_request(self, context: int, m: int) -> int:
        """vLLM's own figure behind "Maximum concurrency": one request's pages in units of a full block."""
        full, *_ = self.groups
        wanted = sum(group.pages(context, m) * group.page_bytes for group in self.groups)
        return ceil_div(wanted, full.page_bytes)


@cache
def pool_of(shape: Shape) -> Pool:
    """The pool of a model of this shape."""
    c4, c128, layers = shape.count(C4), shape.count(C128), shape.layers
    full = Group(
        "compressed keys",
        tuple((page, count) for page, count in ((MAIN_C4_PAGE, c4), (INDEX_PAGE, c4), (MAIN_C128_PAGE, c128)) if count),
        BLOCK_TOKENS,
    )
    # a state's page is padded to the page of keys whose memory it shares
    windowed = [
        Group("window keys", ((WINDOW_PAGE, layers),), WINDOW_TOKENS, shape.window),
        Group("C4 states", ((MAIN_C4_PAGE, c4), (INDEX_PAGE, c4)), _STATE_TOKENS[C4], 2 * C4),
    ]
    if c128:
        windowed.append(Group("C128 states", ((MAIN_C4_PAGE, c128),), _STATE_TOKENS[C128], C128))
    width = _least_padding([full.tuples, *(group.tuples for group in windowed)], full.tuples)
    groups = (full, *(part for group in windowed for part in _split(group, width)))
    sizes: dict[int, int] = {}
    for group in groups:
        for page, count in group.layers:
            sizes[page] = max(sizes.get(page, 0), count)
    return Pool(
        groups,
        sum(page * count for page, count in sizes.items()),
        max(group.tuples for group in groups) * sum(page for page, _ in full.layers),
    )


def _least_padding(counts: list[int], lowest: int) -> int:
    """The number of layers per group that pads least in all; of equals the largest."""
    paddings = {width: sum(-count % width for count in counts) for width in range(lowest, max(counts) + 1)}
    return min(paddings, key=lambda width: (paddings[width], -width))


def _split(group: Group, width: int) -> list[Group]:
    parts = ceil_div(group.tuples, width)
    if parts == 1:
        return [group]
    return [
        Group(
            f"{group.name} {part + 1}",
            tuple((page, len(range(part, count, parts))) for page, count in group.layers),
            group.tokens,
            group.window,
        )
        for part in range(parts)
    ]
