"""The attention layer and the hooks that feed it, with stand-ins for vLLM: the right keys of the right token, in decode
and prefill alike. On a CPU the reference stands in for the CUDA kernel."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm86.backend import warmup
from sm86.backend.attention import layer as layers
from sm86.backend.attention import native, reference
from sm86.backend.attention.reference import Source
from sm86.backend.hooks import compressor as compressor_hook
from sm86.backend.hooks import indexer_metadata, indexer_query, sparse_indexer
from sm86.backend.kernels import compress, indexer_logits, key_index, output_projection, pages
from sm86.backend.layout import indexer_page, main_page
from sm86.backend.quant import limits
from sm86.backend.refusal import Refused
from tests.backend.conftest import DEVICE
from tests.backend.test_kernels_compress import blank, build, rope_table

if DEVICE != "cpu":
    pytest.skip("the stand-ins are on the CPU", allow_module_level=True)

DECODE, PREFILL, HEADS = 2, 3, 8
TOKENS = DECODE + PREFILL
POOL_STRIDE = 1_039_680
SCALE = 512**-0.5


class DeepseekV4Attention:
    """vLLM's layer as far as ours goes: what its constructor leaves behind."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


class DeepseekV4FlashMLABackend:
    """vLLM's backend, of which only the name and the capability are ours."""

    @staticmethod
    def get_name() -> str:
        return "FLASHMLA_SPARSE_DSV4"


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """vLLM's forward context, in stand-ins for its modules; the CUDA kernel is the reference."""
    context = SimpleNamespace(attn_metadata=None)
    modules = {"vllm.forward_context": {"get_forward_context": lambda: context}}
    modules["vllm.models.deepseek_v4.sparse_mla"] = {"DeepseekV4FlashMLABackend": DeepseekV4FlashMLABackend}
    for name, values in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent) or types.ModuleType(parent))
        module = types.ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)

    def attend(query: Any, window: Source, extra: Source | None, sink: Any, scale: float, out: Any) -> None:
        out.copy_(reference.attend(query, [window, extra] if extra else [window], sink, scale))

    context.ready = []
    monkeypatch.setattr(native, "attend", attend)
    monkeypatch.setattr(native, "library", lambda: context.ready.append("library"))
    monkeypatch.setattr(native, "workspace", lambda device: context.ready.append(device))
    return context


def main_cache(blocks: int, entries: int) -> torch.Tensor:
    _, cache = pages.empty_cache(blocks, main_page(entries), POOL_STRIDE, 576)
    value = torch.randn(blocks * entries, 512)
    pages.write_main(cache, torch.arange(blocks * entries), value[:, :448].bfloat16().float(), value[:, 448:])
    return cache


def a_layer(ratio: int) -> tuple[Any, dict[str, Any], list[list[int]]]:
    """(layer, metadata, the compressed entries that each token must see)."""
    entries = 64 if ratio == 4 else 2
    window_cache, cache = main_cache(3, 64), main_cache(12, entries)
    table = torch.tensor([[5, 2, 7], [1, 0, 3], [9, 4, 6]], dtype=torch.int32)
    requests = torch.tensor([1, 0, 2, 2, 2], dtype=torch.int32)
    valid = torch.tensor([True, True, True, False, True])
    local = torch.full((TOKENS, 512 if ratio == 4 else 128), -1, dtype=torch.int32)
    for token, count in enumerate((4, 2, 5, 3, 6)):
        local[token, :count] = torch.randperm(3 * entries)[:count]
    seen = [
        [
            int(table[requests[token], key // entries]) * entries + key % entries
            for key in local[token].tolist()
            if key >= 0
        ]
        if valid[token]
        else []
        for token in range(TOKENS)
    ]
    swa = SimpleNamespace(
        num_decode_tokens=DECODE,
        num_prefill_tokens=PREFILL,
        decode_swa_indices=torch.randint(0, 192, (DECODE, 1, 128), dtype=torch.int32),
        decode_swa_lens=torch.tensor([7, 1], dtype=torch.int32),
        prefill_swa_indices=torch.randint(0, 192, (PREFILL, 1, 128), dtype=torch.int32),
        prefill_swa_lens=torch.tensor([1, 128, 9], dtype=torch.int32),
        token_to_req_indices=requests,
        is_valid_token=valid,
    )
    own = SimpleNamespace(block_table=table, block_size=256)
    if ratio == 128:
        width = max(map(len, seen))
        rows = [(row + [-1] * width)[:width] for row in seen[:DECODE]]
        own.c128a_global_decode_topk_indices = torch.tensor(rows, dtype=torch.int32).unsqueeze(1)
        own.c128a_decode_topk_lens = torch.tensor([len(row) for row in seen[:DECODE]], dtype=torch.int32)
        own.c128a_prefill_topk_indices = local[DECODE:]
    layer = layers.make_layer(DeepseekV4Attention)(
        attn_sink=torch.randn(HEADS),
        scale=SCALE,
        compress_ratio=ratio,
        prefix="own",
        kv_cache=cache,
        swa_cache_layer=SimpleNamespace(prefix="window", kv_cache=window_cache),
        topk_indices_buffer=local if ratio == 4 else None,
    )
    return layer, {"window": swa, "own": own}, seen


def by_hand(layer: Any, swa: Any, seen: list[list[int]], query: torch.Tensor) -> torch.Tensor:
    """Each token alone: softmax over its window, its compressed keys and the sink, from the entries' numbers."""
    rows = []
    for token in range(TOKENS):
        decode = token < DECODE
        at = token if decode else token - DECODE
        index = (swa.decode_swa_indices if decode else swa.prefill_swa_indices)[at, 0]
        length = int((swa.decode_swa_lens if decode else swa.prefill_swa_lens)[at])
        keys = [pages.read_main(layer.swa_cache_layer.kv_cache, index[:length].long())]
        if layer.compress_ratio > 1 and seen[token]:
            keys.append(pages.read_main(layer.kv_cache, torch.tensor(seen[token])))
        key = torch.cat(keys).double()
        logits = torch.cat((query[token].double() @ key.t() * SCALE, layer.attn_sink.double()[:, None]), 1)
        rows.append(torch.softmax(logits, 1)[:, :-1] @ key)
    return torch.stack(rows)


@pytest.mark.parametrize("ratio", [0, 1, 4, 128])
def test_every_token_sees_its_own_keys(ratio: int, forward: SimpleNamespace) -> None:
    layer, metadata, seen = a_layer(ratio)
    forward.attn_metadata = metadata if ratio > 1 else {"window": metadata["window"]}
    query = torch.randn(TOKENS + 2, HEADS, 512).to(torch.bfloat16)
    out = torch.full_like(query, 3.0)
    layer.forward_mqa(query, None, None, out)
    want = by_hand(layer, metadata["window"], seen, query)
    torch.testing.assert_close(out[:TOKENS].double(), want, rtol=1e-2, atol=1e-3)
    assert bool((out[TOKENS:] == 3.0).all()), "rows beyond the batch are nobody's"


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_a_batch_of_one_kind(kind: str, forward: SimpleNamespace) -> None:
    layer, metadata, seen = a_layer(4)
    swa = metadata["window"]
    query = torch.randn(TOKENS, HEADS, 512).to(torch.bfloat16)
    want, out = by_hand(layer, swa, seen, query), torch.zeros_like(query)
    forward.attn_metadata = metadata
    if kind == "decode":
        swa.num_prefill_tokens = 0
        layer.forward_mqa(query, None, None, out)
        torch.testing.assert_close(out[:DECODE].double(), want[:DECODE], rtol=1e-2, atol=1e-3)
        assert not out[DECODE:].any()
        return
    swa.num_decode_tokens = 0
    swa.token_to_req_indices, swa.is_valid_token = swa.token_to_req_indices[DECODE:], swa.is_valid_token[DECODE:]
    layer.topk_indices_buffer = layer.topk_indices_buffer[DECODE:]
    layer.forward_mqa(query[DECODE:], None, None, out[DECODE:])
    torch.testing.assert_close(out[DECODE:].double(), want[DECODE:], rtol=1e-2, atol=1e-3)


def test_a_profiling_run_leaves_numbers(forward: SimpleNamespace) -> None:
    layer, _, _ = a_layer(1)
    out = torch.full((2, HEADS, 512), float("nan"))
    layer.forward_mqa(out, None, None, out)
    assert not out.any() and forward.ready == ["library", layer.attn_sink.device], "before any capture"


def test_names_that_others_look_for(forward: SimpleNamespace) -> None:
    made = layers.make_layer(DeepseekV4Attention)
    assert made.__name__ in limits.CACHE_WRITERS and made.__name__ == "Sm86Attention", "warm-up and checks find it so"
    assert made.backend_cls.get_name() == "FLASHINFER_MLA_SPARSE_DSV4"
    capable = made.backend_cls.supports_compute_capability
    assert capable(SimpleNamespace(major=8)) and not capable(SimpleNamespace(major=9))
    assert made.use_fp8_ds_mla_layout is True
    padded = {heads: made.get_padded_num_q_heads(heads) for heads in (1, 8, 9, 16, 32, 64, 128)}
    assert padded == {1: 8, 8: 8, 9: 16, 16: 16, 32: 32, 64: 64, 128: 128}


def test_the_way_out(forward: SimpleNamespace) -> None:
    layer, _, _ = a_layer(1)
    table = rope_table(300, "cpu")
    weight = (torch.randn(2 * 16, HEADS * 512 // 2) * 0.05).to(torch.bfloat16)
    layer.rotary_emb, layer.wo_a = SimpleNamespace(cos_sin_cache=table), SimpleNamespace(weight=weight)
    layer.n_local_groups, layer.wo_b = 2, lambda z: z.double() * 2
    value, positions = torch.randn(4, HEADS, 512).to(torch.bfloat16), torch.tensor([0, 3, 70, 299])
    want = 2 * output_projection.reference(value, positions, table, weight, 2, torch.float64)
    got = layer._o_proj(value.clone(), positions)
    assert float((got - want).norm() / want.norm()) < 4e-3


@pytest.mark.parametrize("form", ["c4", "c128", "indexer"])
def test_the_compressor_keeps_its_state_and_writes_its_entries(form: str) -> None:
    window, cache, weight = build(form, [9, 130] if form != "c128" else [130], "cpu")
    want = blank(cache)
    table, width = rope_table(300, "cpu"), window.state.shape[-1] // 2
    compress.reference(window, want, table, weight, 1e-6)
    ready = window.state.clone()
    saved: dict[str, Any] = {}

    def save_partial_states(**given: Any) -> None:
        saved.update(given)
        given["state_cache"].copy_(ready)

    window.state.zero_()
    state_metadata = SimpleNamespace(
        slot_mapping=window.state_slots,
        block_size=window.state.shape[1],
        block_table=window.block_table,
        token_to_req_indices=window.requests,
    )
    context = SimpleNamespace(attn_metadata=None)
    module = SimpleNamespace(
        DeepseekCompressor=type("DeepseekCompressor", (), {}),
        get_forward_context=lambda: context,
        save_partial_states=save_partial_states,
    )
    compressor_hook.HOOK.apply(module)
    one = module.DeepseekCompressor()
    one.__dict__.update(
        coff=2 if window.overlap else 1,
        head_dim=weight.shape[0],
        state_cache=SimpleNamespace(prefix="state", kv_cache=window.state),
        k_cache_prefix="keys",
        ape="bias",
        compress_ratio=window.ratio,
        overlap=window.overlap,
        norm=SimpleNamespace(weight=weight),
        rms_norm_eps=1e-6,
        _static_forward_context={"keys": SimpleNamespace(kv_cache=cache)},
    )
    kv_score = torch.arange(2.0 * width).expand(len(window.positions), -1)
    rotary = SimpleNamespace(cos_sin_cache=table)
    assert one.forward(kv_score, window.positions, rotary) is None and not saved, "a profiling run has no metadata"
    context.attn_metadata = {"state": state_metadata, "keys": SimpleNamespace(slot_mapping=window.entry_slots)}
    one.forward(kv_score, window.positions, rotary)
    assert torch.equal(saved["kv"], kv_score[:, :width]) and torch.equal(saved["score"], kv_score[:, width:])
    assert saved["slot_mapping"] is window.state_slots and saved["positions"] is window.positions
    assert (saved["ape"], saved["state_width"], saved["compress_ratio"]) == ("bias", width, window.ratio)
    assert saved["block_size"] == window.state.shape[1]
    read = pages.read_indexer if weight.shape[0] == 128 else pages.read_main
    slots = window.entry_slots[window.entry_slots >= 0]
    got, expected = read(cache, slots), read(want, slots)
    assert bool(((got - expected).abs() <= expected.abs() / 8 + 1e-6).all()) and got.any()


@pytest.mark.parametrize("through", ["bf16", "e4m3"])
def test_the_indexer_query_takes_both_scales(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sm86.backend import settings
    from sm86.backend.kernels import indexer_query as kernel

    monkeypatch.setattr(settings, "settings", lambda: settings.Settings(indexer_query=through))
    module = SimpleNamespace()
    indexer_query.HOOK.apply(module)
    query, weights = torch.randn(3, 16, 128).to(torch.bfloat16), torch.randn(3, 16).to(torch.bfloat16)
    positions, table = torch.tensor([0, 9, 200]), rope_table(300, "cpu")
    got, scaled = module.fused_indexer_q_rope_quant(positions, query, table, weights, 0.5, 0.25)
    want, _ = kernel.reference(query, weights, positions, table, 1.0, through == "e4m3")
    assert float((got.float() != want.float()).float().mean()) < 2e-3
    torch.testing.assert_close(scaled, weights.float() * 0.125)
    with pytest.raises(Refused, match="Blackwell"):
        module.fused_indexer_q_rope_quant(positions, query, table, weights, 0.5, 0.25, use_fp4=True)


def test_deepgemm_is_absent_for_the_schedule_and_present_for_the_constructor() -> None:
    schedule = SimpleNamespace(has_deep_gemm=lambda: True)
    indexer_metadata.HOOK.apply(schedule)
    assert schedule.has_deep_gemm() is False
    step = SimpleNamespace(
        has_deep_gemm=lambda: False,
        SparseAttnIndexer=type("SparseAttnIndexer", (), {}),
        envs=SimpleNamespace(VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=1),
        eager_break_during_capture=lambda function: function,
        get_forward_context=lambda: SimpleNamespace(attn_metadata=None),
        current_workspace_manager=lambda: SimpleNamespace(get_simultaneous=lambda *specs: None),
    )
    sparse_indexer.HOOK.apply(step)
    assert step.has_deep_gemm() is True
    buffer = torch.zeros(2, 512)
    one = step.SparseAttnIndexer()
    one.__dict__.update(topk_indices_buffer=buffer, max_model_len=64)
    assert one.forward_cuda(torch.zeros(2, 8), None, None, None) is buffer, "a profiling run"


def warm(ratio: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[torch.Tensor], list[torch.Tensor]]:
    """(launches, the caches before, after) of the warm-up of one layer."""
    called: list[str] = []

    def spy(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def launch(*given: Any, **named: Any) -> Any:
            called.append(f"{module.__name__.rsplit('.', 1)[1]}.{name}")
            return original(*given, **named)

        monkeypatch.setattr(module, name, launch)

    for module, name in (
        (compress, "launch"),
        (key_index, "launch"),
        (warmup.indexer_query, "launch"),
        (indexer_logits, "launch_decode"),
        (indexer_logits, "launch_prefill"),
        (output_projection, "undo_rotation"),
        (native, "attend"),
    ):
        spy(module, name)
    layer, _, _ = a_layer(ratio)
    made = [layer.swa_cache_layer.kv_cache, layer.kv_cache]

    def a_compressor(form: str, cache: torch.Tensor) -> SimpleNamespace:
        window, _, weight = build(form, [130], "cpu")
        return SimpleNamespace(
            state_cache=SimpleNamespace(kv_cache=window.state),
            compress_ratio=window.ratio,
            overlap=window.overlap,
            norm=SimpleNamespace(weight=weight),
            rms_norm_eps=1e-6,
        )

    layer.__dict__.update(padded_heads=HEADS, n_local_heads=HEADS, window_size=128, compressor=None, indexer=None)
    layer.rotary_emb = SimpleNamespace(cos_sin_cache=rope_table(300, "cpu"))
    if ratio > 1:
        layer.compressor = a_compressor("c4" if ratio == 4 else "c128", layer.kv_cache)
    if ratio == 4:
        _, keys = pages.empty_cache(3, indexer_page(), POOL_STRIDE, fill=0x11)
        made.append(keys)
        layer.indexer = SimpleNamespace(
            compressor=a_compressor("indexer", keys), k_cache=SimpleNamespace(kv_cache=keys), n_head=64, topk_tokens=512
        )
    before = [cache.clone() for cache in made]
    warmup._warm_layer(layer)
    return called, before, made


@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_the_warm_up_launches_every_form_and_leaves_the_caches_alone(
    ratio: int, forward: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, before, after = warm(ratio, monkeypatch)
    want = {"native.attend", "output_projection.undo_rotation"}
    if ratio > 1:
        want |= {"compress.launch", "key_index.launch"}
    if ratio == 4:
        want |= {"indexer_query.launch", "indexer_logits.launch_decode", "indexer_logits.launch_prefill"}
    assert set(called) == want and called.count("compress.launch") == {1: 0, 4: 2, 128: 1}[ratio]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_the_warm_up_covers_every_kind_of_layer_and_batch(
    forward: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sm86.backend.diagnostics import nan_watch
    from sm86.backend.kernels import mhc_gemm

    config = types.ModuleType("vllm.config")
    config.CUDAGraphMode = SimpleNamespace(NONE="none")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.config", config)
    warmed: list[int] = []
    launched: list[str] = []
    monkeypatch.setattr(warmup, "_warm_layer", lambda layer: warmed.append(layer.compress_ratio))
    monkeypatch.setattr(mhc_gemm, "launch", lambda *given: launched.append("mhc"))
    monkeypatch.setattr(nan_watch, "count_bad_rows", lambda *given: launched.append("nan"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: launched.append("waited"))
    layer_class = layers.make_layer(DeepseekV4Attention)
    model = [layer_class(compress_ratio=r, hidden_size=64, attn_sink=torch.zeros(8)) for r in (0, 0, 4, 128, 4, 128)]
    runs: list[dict[str, Any]] = []
    tables: list[int] = []
    table = SimpleNamespace(compute_slot_mapping=lambda count, starts, positions: tables.append(count))
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(block_table=SimpleNamespace(block_tables=[table, table])),
        _dummy_run=lambda **given: runs.append(given),
    )
    worker = SimpleNamespace(
        get_model=lambda: SimpleNamespace(modules=lambda: [object(), *model]),
        model_runner=runner,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512),
    )
    warmup.warm_up(worker)
    assert warmed == [0, 4, 128] and launched == ["mhc", "nan", "waited"] and tables == [1, 1]
    assert [run["num_tokens"] for run in runs] == [1, 16, 17, 128, 512]
    assert all(run["force_attention"] and run["cudagraph_runtime_mode"] == "none" for run in runs)
    assert "warmup_s=" in capsys.readouterr().out
    worker.get_model = lambda: SimpleNamespace(modules=lambda: [object()])
    warmup.warm_up(worker)
    assert warmed == [0, 4, 128] and capsys.readouterr().out == "", "another model is left alone"
