"""Where every byte of an fp8_ds_mla cache page lies: the numbers, and nothing that needs torch.

A page holds `entries` entries. First come the records of all entries, then the scales of all entries;
the page is padded. Pages of one layer lie `block stride` bytes apart (all layers share one allocation),
so a stride is always a parameter and never derived from the page's own size.

    main page     records of 576 bytes (448 e4m3 codes, then 64 bf16 RoPE values), then 8 scale bytes each
                  (seven UE8M0 exponents, one per 64 codes, and one zero)
    indexer page  records of 128 e4m3 codes, then one fp32 scale (a power of two) each

Source: the kernels of vLLM 0.26.0 that write and read these pages.
"""

from __future__ import annotations

from dataclasses import dataclass

NOPE_DIMS = 448
ROPE_DIMS = 64
HEAD_DIMS = NOPE_DIMS + ROPE_DIMS
SCALE_GROUP = 64
SCALE_GROUPS = NOPE_DIMS // SCALE_GROUP

E4M3_MAX = 448.0
MIN_ABSMAX = 1e-4
"""The writers never let a group's absolute maximum fall below this, so a scale exponent is at least -22."""

MAX_SCALE_BYTE = 134
"""Largest UE8M0 byte the bf16 decode of the attention represents (absmax 57344); larger ones are refused."""

PAGE_ALIGNMENT = 576


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Bytes of one page of `entries` entries; records first, then scales."""

    name: str
    record_bytes: int
    scale_bytes: int
    entries: int

    @property
    def entry_bytes(self) -> int:
        """What the cache tensor's last dimension says: record and scale together."""
        return self.record_bytes + self.scale_bytes

    @property
    def raw_bytes(self) -> int:
        """The page without its padding."""
        return self.entries * self.entry_bytes

    @property
    def padded_bytes(self) -> int:
        """The page rounded up to the cache's alignment of 576 bytes."""
        return -(-self.raw_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT

    def record_offset(self, entry: int) -> int:
        """First byte of an entry's record, from the start of its page."""
        return entry * self.record_bytes

    def scale_offset(self, entry: int) -> int:
        """First byte of an entry's scale, from the start of its page."""
        return self.entries * self.record_bytes + entry * self.scale_bytes


MAIN_RECORD_BYTES = NOPE_DIMS + 2 * ROPE_DIMS
MAIN_SCALE_BYTES = SCALE_GROUPS + 1
INDEXER_DIMS = 128
INDEXER_SCALE_BYTES = 4


def main_page(entries: int) -> PageLayout:
    """A page of keys: 64 entries for the window and C4 layers, 2 for C128."""
    return PageLayout("main", MAIN_RECORD_BYTES, MAIN_SCALE_BYTES, entries)


def indexer_page(entries: int = 64) -> PageLayout:
    """A page of indexer keys."""
    return PageLayout("indexer", INDEXER_DIMS, INDEXER_SCALE_BYTES, entries)
