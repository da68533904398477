"""The attention reference against a plain softmax, and on a GPU the CUDA kernel against the reference."""

from __future__ import annotations

import pytest
import torch

from sm86.backend.attention import plan
from sm86.backend.attention.reference import Source, attend
from sm86.backend.kernels import pages
from sm86.backend.layout import main_page

SCALE = 512**-0.5
POOL_STRIDE = 1_039_680


def random_cache(blocks: int, entries: int, stride: int, device: str, offset: int = 0) -> torch.Tensor:
    """A pool of random entries; `offset` moves the layer inside the pool."""
    pool, cache = pages.empty_cache(blocks, main_page(entries), stride, offset)
    count = blocks * entries
    value = torch.randn(count, 512) * (0.2 + torch.rand(count, 1) * 3)
    pages.write_main(cache, torch.arange(count), value[:, :448].bfloat16().float(), value[:, 448:])
    return torch.as_strided(pool.to(device), cache.shape, cache.stride(), offset)


def random_source(cache: torch.Tensor, tokens: int, width: int, lengths: list[int]) -> Source:
    count = cache.shape[0] * cache.shape[1]
    index = torch.randint(0, count, (tokens, width), dtype=torch.int32, device=cache.device)
    index[torch.rand(tokens, width, device=cache.device) < 0.05] = -1
    index[0, 0] = count - 1
    length = torch.tensor((lengths * tokens)[:tokens], dtype=torch.int32, device=cache.device)
    return Source(cache, index, length)


def test_reference_is_softmax_with_a_sink() -> None:
    cache = random_cache(4, 64, 37440, "cpu")
    source = random_source(cache, 6, 40, [40, 0, 1, 17, 1000, -5])
    query = torch.randn(6, 8, 512).to(torch.bfloat16)
    sink = torch.randn(8)
    sink[2] = float("-inf")
    got = attend(query, [source], sink, SCALE)
    for token in range(6):
        kept = source.index[token, : max(0, min(40, int(source.length[token])))]
        keys = pages.read_main(cache, kept[kept >= 0].long()).double()
        logits = torch.cat((query[token].double() @ keys.t() * SCALE, sink.double()[:, None]), 1)
        share = torch.softmax(logits, 1).nan_to_num()
        torch.testing.assert_close(got[token], share[:, :-1] @ keys, rtol=1e-9, atol=1e-9)
    assert float(got[1].abs().max()) == 0.0, "no keys: nothing but the sink"


def test_two_sources_are_one_set_of_keys() -> None:
    cache = random_cache(4, 64, 37440, "cpu")
    query, sink = torch.randn(3, 8, 512).to(torch.bfloat16), torch.randn(8)
    one = random_source(cache, 3, 40, [40])
    halves = [Source(cache, one.index[:, :16].contiguous(), one.length), Source(cache, one.index[:, 16:], one.length)]
    torch.testing.assert_close(attend(query, [one], sink, SCALE), attend(query, halves, sink, SCALE))


def needs_gpu(device: str) -> None:
    if device != "cuda":
        pytest.skip("the CUDA kernel needs a GPU (SM86_TEST_DEVICE=cuda)")


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    error = (got.double() - want).flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1).clamp_min(1e-9)
    return float(error.max())


@pytest.mark.parametrize("heads", [8, 16, 64])
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_kernel_against_float64(heads: int, kind: str, device: str) -> None:
    needs_gpu(device)
    from sm86.backend.attention import native

    window_cache = random_cache(300, 64, POOL_STRIDE if kind == "c4" else 37440, device, 37440)
    extra = None
    if kind == "c4":
        extra_cache = torch.as_strided(window_cache, window_cache.shape, window_cache.stride(), 37440)
        extra = random_source(extra_cache, 7, 512, [512, 0, 3, 511, 1, 17, 261])
    elif kind == "c128":
        extra = random_source(random_cache(4000, 2, 1728, device), 7, 2048, [2048, 0, 3, 2047, 1, 17, 1029])
    window = random_source(window_cache, 7, 128, [128, 0, 1, 77, 128, 2**30, -9])
    wide = torch.randn(7, heads + 8, 512, device=device).to(torch.bfloat16) * 2
    query = wide[:, :heads]
    sink = torch.randn(heads, device=device) * 3
    sink[1], sink[3] = float("-inf"), 20.0
    want = attend(query, [window, extra] if extra else [window], sink, SCALE)
    width = 128 + (extra.index.shape[1] if extra else 0)
    slots = plan.resident_blocks(native.workspace(query.device).multiprocessors)
    cuts = [None, plan.Cut(64, 1, plan.SINGLE), plan.Cut(32, 1, plan.SINGLE)]
    for tile in (32, 64):
        for splits in (2, 3, min(36, -(-width // tile))):
            if 7 * heads // 8 * splits <= slots:
                cuts += [plan.Cut(tile, splits, plan.LAST_BLOCK), plan.Cut(tile, splits, plan.SHARED)]
    for cut in cuts:
        results = []
        for _ in range(2):
            out = torch.full((7, heads + 8, 512), float("nan"), dtype=torch.bfloat16, device=device)[:, :heads]
            native.attend(query, window, extra, sink, SCALE, out, cut)
            results.append(out)
        assert relative(results[0], want) < 6e-3, cut
        assert torch.equal(results[0], results[1]), f"{cut} does not repeat bit for bit"
    assert int(native.workspace(query.device).counters.abs().sum()) == 0


def test_kernel_decodes_every_code_exactly(device: str) -> None:
    """One key and no sink: the output is the decoded entry itself, bit for bit."""
    needs_gpu(device)
    from sm86.backend.attention import native

    pool, cache = pages.empty_cache(32, main_page(64), 37440)
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    flat = torch.as_strided(pool, (32, 64, 576), (37440, 576, 1))
    flat[..., :448] = torch.cat((codes, codes.flip(0)[:192]))
    flat[..., 448:] = torch.randn(32, 64, 64).bfloat16().view(torch.uint8)
    scales = torch.as_strided(pool, (32, 64, 8), (37440, 8, 1), 64 * 576)
    scales[..., :7] = (90 + torch.arange(32 * 64 * 7) % 45).view(32, 64, 7).to(torch.uint8)
    cache = torch.as_strided(pool.to(device), cache.shape, cache.stride())
    index = torch.full((2048, 128), -1, dtype=torch.int32, device=device)
    index[:, 0] = torch.arange(2048, device=device, dtype=torch.int32)
    length = torch.ones(2048, dtype=torch.int32, device=device)
    query = torch.randn(2048, 8, 512, device=device).to(torch.bfloat16)
    out = torch.empty_like(query)
    sink = torch.full((8,), float("-inf"), device=device)
    native.attend(query, Source(cache, index, length), None, sink, SCALE, out)
    want = pages.read_main(cache, torch.arange(2048, device=device), torch.bfloat16)
    assert torch.equal(out, want.unsqueeze(1).expand_as(out))


def test_kernel_in_a_graph_follows_the_lengths(device: str) -> None:
    needs_gpu(device)
    from sm86.backend.attention import native

    cache = random_cache(300, 64, POOL_STRIDE, device)
    window, extra = random_source(cache, 4, 128, [128]), random_source(cache, 4, 512, [512])
    query, sink = torch.randn(4, 8, 512, device=device).to(torch.bfloat16), torch.randn(8, device=device)
    out = torch.empty_like(query)
    native.attend(query, window, extra, sink, SCALE, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        native.attend(query, window, extra, sink, SCALE, out)
    for step in range(20):
        extra.length.copy_(torch.randint(0, 513, (4,), device=device))
        window.length.copy_(torch.randint(0, 129, (4,), device=device))
        if step in (5, 6, 7):
            extra.length.fill_((-7, 1 << 30, 0)[step - 5])
        out.fill_(float("nan"))
        graph.replay()
        assert relative(out, attend(query, [window, extra], sink, SCALE)) < 6e-3, step
    assert int(native.workspace(query.device).counters.abs().sum()) == 0


def far_source(cache: torch.Tensor, tokens: int, width: int) -> Source:
    """Indices of the first and the last blocks alone, in rows of a wider tensor whose rest must not count."""
    blocks, entries = cache.shape[:2]
    few = min(blocks // 2, 512 // entries)
    slots = torch.cat((torch.arange(few * entries), torch.arange((blocks - few) * entries, blocks * entries)))
    value = torch.randn(len(slots), 512) * (0.2 + torch.rand(len(slots), 1) * 3)
    nope, rope = value[:, :448].bfloat16().float(), value[:, 448:]
    pages.write_main(cache, slots.to(cache.device), nope.to(cache.device), rope.to(cache.device))
    wide = slots[torch.randint(0, len(slots), (tokens, width + 24))].int()
    wide[torch.rand(wide.shape) < 0.05] = -1
    wide[1] = -1
    wide[2, : width // 2] = -1
    wide[0, 0], wide[0, width - 1] = slots[-1], slots[0]
    length = torch.full((tokens,), width, dtype=torch.int32)
    return Source(cache, wide.to(cache.device)[:, :width], length.to(cache.device))


@pytest.mark.parametrize("kind", ["c4", "c128"])
def test_kernel_reads_what_lies_far_and_apart(kind: str, device: str) -> None:
    """Blocks beyond 2^31 bytes, two caches at other places of a pool or of other pages, index rows further apart than
    wide, a token without any key and one whose first tiles have none."""
    needs_gpu(device)
    from sm86.backend.attention import native

    apart = 37440
    pool, window_cache = pages.empty_cache(2400, main_page(64), POOL_STRIDE, apart, device)
    if kind == "c4":
        extra_cache = torch.as_strided(pool, window_cache.shape, window_cache.stride(), 0)
    else:
        _, extra_cache = pages.empty_cache(4000, main_page(2), 1728, 0, device)
    window, extra = far_source(window_cache, 5, 128), far_source(extra_cache, 5, 512)
    query, sink = torch.randn(5, 8, 512, device=device).to(torch.bfloat16) * 2, torch.randn(8, device=device)
    sink[1] = float("-inf")
    want = attend(query, [window, extra], sink, SCALE)
    assert float(want[1].abs().max()) == 0.0 < float(want[2].abs().max())
    for cut in (
        None,
        plan.Cut(64, 1, plan.SINGLE),
        plan.Cut(32, 1, plan.SINGLE),
        plan.Cut(64, 3, plan.LAST_BLOCK),
        plan.Cut(32, 5, plan.SHARED),
    ):
        out = torch.full_like(query, float("nan"))
        native.attend(query, window, extra, sink, SCALE, out, cut)
        assert relative(out, want) < 6e-3, cut
        assert float(out[1].abs().max()) == 0.0, cut
    assert int(native.workspace(query.device).counters.abs().sum()) == 0


@pytest.mark.parametrize("fault", ["heads", "stride", "index", "dtype", "entries"])
def test_misfits_are_refused(fault: str, device: str) -> None:
    from sm86.backend.attention import native

    cache = random_cache(2, 64, 37440, device)
    if fault == "stride":
        pool = torch.zeros(80000, dtype=torch.uint8, device=device)
        cache = torch.as_strided(pool, (2, 64, 584), (37441, 584, 1))
    if fault == "entries":
        cache = cache[:, :3]
    source = random_source(cache, 2, 128, [5])
    if fault == "index":
        source = Source(cache, source.index.long(), source.length)
    query = torch.randn(2, 12 if fault == "heads" else 8, 512, device=device).to(torch.bfloat16)
    if fault == "dtype":
        query = query.float()
    with pytest.raises(ValueError):
        native.attend(query, source, None, torch.zeros(64, device=device), SCALE, torch.empty_like(query))
