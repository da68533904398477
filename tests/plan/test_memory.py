"""Parts beside weights and cache: by the byte where they are arithmetic, bounded by facts where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.plan import memory
from sm86.plan.groups import pool_of
from sm86.plan.memory import KINDS, SM86, STOCK, Server, parts
from sm86.plan.shape import FLASH
from sm86.plan.units import GIB, MIB, Bytes, exactly, gib_as_printed, total
from tests.plan.plan_shapes import GRAPH

POOL = pool_of(FLASH)
USABLE = round(23.69 * GIB)
"""Total capacity that PyTorch prints of an RTX 3090."""

LONG = Server(393_216, 1, 8, 512, False, 1792, (1,))
SERVED = Server(262_144, 1, 8, 512, False, 1280, (1,))


def used(server: Server, stack: str) -> Bytes:
    return total(part.size for part in parts(FLASH, POOL, server, 82, stack))


def size(server: Server, name: str, stack: str = SM86) -> Bytes:
    return next(part.size for part in parts(FLASH, POOL, server, 82, stack) if part.name == name)


def test_the_published_rigs_two_facts_lie_within_the_estimates():
    """393216 tokens missed by about 30 MiB there, so its need was the GPU's memory and 30 MiB; 262144 served."""
    need = USABLE + 30 * MIB
    assert used(LONG, STOCK).low < need < used(LONG, STOCK).high
    assert used(SERVED, STOCK).low < USABLE


@pytest.mark.parametrize("context", [65_536, 262_144, 393_216, 524_288, 1_048_576])
def test_rope_tables_by_the_byte(context: int):
    server = replace(SERVED, context=context)
    assert size(server, "RoPE tables", STOCK) == exactly(512 * MIB)
    assert size(server, "RoPE tables") == exactly(2 * min(1_048_576, context + 256) * 64 * 4)


def test_393216_tokens_give_back_320_mib_of_rope_tables():
    saved = size(LONG, "RoPE tables", STOCK).low - size(LONG, "RoPE tables").low
    assert round(saved / MIB) == 320


def test_workspaces_of_vllms_own_path():
    # 40 contexts of indexer keys: 346 MB at 262144, 519 MB at 393216, 692 MB at 524288
    for context, million in ((262_144, 346), (393_216, 519), (524_288, 692)):
        gather = memory.gather_bytes(FLASH, replace(SERVED, context=context)) - memory.TOPK_WORKSPACE_BYTES
        assert round(gather / 1e6) == million


def test_buffers_by_the_byte():
    assert memory.load_buffer_bytes(FLASH, 512) == 512 * (512 * 4 + 4 * 4096 * 2)
    # about 2.7 MB on a 3090, as the backend says of its own
    assert memory.attention_workspace_bytes(82) == 2 * 82 * 8 * 514 * 4 + 4 * 82 * 4
    assert memory.logits_bytes(LONG, SM86) == 512 * 98_304 * 4
    assert memory.logits_bytes(LONG, STOCK) == 512 * MIB
    assert memory.logits_bytes(replace(LONG, batched_tokens=8192), SM86) == 512 * MIB
    assert memory.logits_bytes(replace(LONG, max_logits_mib=64), SM86) == 64 * MIB


def test_what_was_measured_lies_within_its_interval():
    """The proof boot on an H200 (8 layers, 32768 tokens, 512 batched, sizes 1,2,4): GiB as printed."""
    server = Server(32_768, 4, 1, 512, False, 864, (1, 2, 4))
    found = {part.name: part.size for part in parts(GRAPH, pool_of(GRAPH), server, 132)}
    activations = found["indexer's logits"] + found["forward pass, sampler"]
    assert activations.low <= 0.29 * GIB <= activations.high
    assert found["CUDA graphs"].low <= 0.11 * GIB <= found["CUDA graphs"].high
    assert found["kernels, libraries"].low <= 0.25 * GIB <= 0.36 * GIB <= found["kernels, libraries"].high
    assert found["CUDA context"].low <= (139.8 - 139.29) * GIB <= found["CUDA context"].high
    assert found["NCCL"] == exactly(0)


def test_every_estimate_says_so_and_every_part_has_a_source():
    for stack in (SM86, STOCK):
        for part in parts(FLASH, POOL, LONG, 82, stack):
            assert part.source and part.kind in KINDS
            if not part.size.exact:
                assert "estimate" in part.source or "MiB" in part.source, part.name
            if part.kind in ("weights", "KV pool", "tables and buffers"):
                assert part.size.exact


def test_no_graphs_cost_nothing():
    assert size(replace(LONG, capture_sizes=()), "CUDA graphs") == exactly(0)
    many = size(replace(LONG, capture_sizes=(1, 2, 4, 8, 16)), "CUDA graphs")
    assert many.high > size(LONG, "CUDA graphs").high


@pytest.mark.parametrize(
    "more",
    [
        {"context": 524_288},
        {"sequences": 4},
        {"batched_tokens": 1024},
        {"blocks": 2000},
        {"capture_sizes": (1, 2, 4, 8, 16)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_more_of_anything_never_takes_less(more):
    for stack in (SM86, STOCK):
        before, after = used(LONG, stack), used(replace(LONG, **more), stack)
        assert after.low >= before.low and after.high >= before.high and after != before


def test_98_percent_of_24_gib_leaves_no_sure_room_at_start():
    room = memory.start_check(USABLE, 0, 0.98, 8)
    assert room.low < 0 and memory.start_check(USABLE, 0, 0.95, 8).low > 0
    assert memory.start_check(USABLE, 2 * GIB, 0.95, 8).high < 0


def test_intervals():
    assert Bytes(1, 3) + Bytes(10, 20) == Bytes(11, 23)
    assert exactly(5) + -Bytes(1, 3) == Bytes(2, 4)
    assert total([]) == exactly(0)
    with pytest.raises(ValueError, match="interval"):
        Bytes(2, 1)
    assert gib_as_printed(round(0.3 * GIB)) == "0.3" and gib_as_printed(2 * GIB) == "2.0"
