"""The kernels against vLLM 0.26.0's native ones on the same inputs: FlashMLA, DeepGEMM, the e4m3 Triton compressors.

Needs an SM90 GPU and vLLM 0.26.0 with the plugin inactive (SM86_FORCE unset).
"""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace

import pytest
import torch

from sm86.backend.kernels import compress, e4m3, indexer_logits, pages
from tests.backend.test_attention_reference import POOL_STRIDE, SCALE, random_cache, random_source
from tests.backend.test_kernels_compress import FORMS, build, rope_table, written


@pytest.fixture(autouse=True)
def native_only(device: str) -> None:
    if device != "cuda" or importlib.util.find_spec("vllm") is None or os.environ.get("SM86_FORCE"):
        pytest.skip("needs an SM90 GPU and vLLM 0.26.0, not forced")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("vLLM's native kernels are for SM90")


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("tokens", [1, 4, 64])
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_attention_against_flashmla(kind: str, tokens: int, device: str) -> None:
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache, get_mla_metadata

    from sm86.backend.attention import native

    cache = random_cache(300, 64, POOL_STRIDE, device)
    window = random_source(cache, tokens, 128, [128, 77, 128, 5])
    extra = None
    if kind == "c4":
        extra = random_source(cache, tokens, 512, [512, 300])
    elif kind == "c128":
        extra = random_source(random_cache(1500, 2, 1728, device), tokens, 2048, [2048, 1000, 17])
    query = torch.randn(tokens, 64, 512, device=device).to(torch.bfloat16)
    sink = torch.randn(64, device=device)
    out, ours = torch.empty_like(query), torch.empty_like(query)
    more = {}
    if extra is not None:
        more = {
            "extra_k_cache": extra.cache.unsqueeze(-2),
            "extra_indices_in_kvcache": extra.index.unsqueeze(1),
            "extra_topk_length": extra.length,
        }
    flash_mla_with_kvcache(
        q=query.unsqueeze(1),
        k_cache=window.cache.unsqueeze(-2),
        block_table=None,
        head_dim_v=512,
        tile_scheduler_metadata=get_mla_metadata()[0],
        cache_seqlens=None,
        is_fp8_kvcache=True,
        indices=window.index.unsqueeze(1),
        topk_length=window.length,
        softmax_scale=SCALE,
        attn_sink=sink,
        out=out.unsqueeze(1),
        **more,
    )
    native.attend(query, window, extra, sink, SCALE, ours)
    assert distance(ours, out) < 3e-3


def test_decode_logits_against_deepgemm(device: str) -> None:
    from vllm.utils.deep_gemm import fp8_fp4_paged_mqa_logits, get_paged_mqa_logits_metadata

    from tests.backend.test_gpu_shapes import indexer_cache

    cache = indexer_cache(300)
    rows, width = 4, 16384
    table = torch.stack([torch.randperm(300, device=device)[:256] for _ in range(rows)]).int()
    lengths = torch.tensor([[16384], [9999], [64], [1]], dtype=torch.int32, device=device)
    query = torch.randn(rows, 1, 64, 128, device=device).to(torch.bfloat16)
    codes, exponent = e4m3.quantize_groups(query.float(), 128)
    scale = e4m3.power_of_two(exponent)
    rounded = (e4m3.decode(codes) * scale).to(torch.bfloat16)
    weights = torch.randn(rows, 64, device=device) * 0.01
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    native = fp8_fp4_paged_mqa_logits(
        (codes.view(torch.float8_e4m3fn), None),
        cache.unsqueeze(-2),
        weights * scale.view(rows, 64),
        lengths,
        table,
        get_paged_mqa_logits_metadata(lengths, 64, sms),
        max_model_len=width,
        clean_logits=False,
    )
    ours = indexer_logits.launch_decode(rounded, weights, cache, lengths, table, width, 32)
    for row in range(rows):
        length = int(lengths[row])
        assert distance(ours[row, :length], native[row, :length]) < 1e-3


def test_prefill_logits_against_deepgemm(device: str) -> None:
    from vllm.utils.deep_gemm import fp8_fp4_mqa_logits

    from tests.backend.test_gpu_shapes import indexer_cache

    cache = indexer_cache(80)
    count, rows = 4096, 256
    table = torch.randperm(80, device=device)[:64].int().unsqueeze(0)
    columns = indexer_logits.Columns(
        torch.zeros(count, dtype=torch.int32, device=device),
        torch.tensor([0, count], dtype=torch.int32, device=device),
        table,
    )
    ends = ((torch.arange(4 * count - rows, 4 * count, device=device) + 1) // 4).int()
    starts = torch.zeros_like(ends)
    query = torch.randn(rows, 64, 128, device=device).to(torch.bfloat16)
    codes, exponent = e4m3.quantize_groups(query.float(), 128)
    scale = e4m3.power_of_two(exponent)
    weights = torch.randn(rows, 64, device=device) * 0.01
    slots = table[0].long().repeat_interleave(64) * 64 + torch.arange(count, device=device) % 64
    keys, key_exponent = e4m3.quantize_groups(pages.read_indexer(cache, slots), 128)
    native = fp8_fp4_mqa_logits(
        (codes.view(torch.float8_e4m3fn), None),
        (keys.view(torch.float8_e4m3fn), e4m3.power_of_two(key_exponent).squeeze(-1)),
        weights * scale.view(rows, 64),
        starts,
        ends,
        clean_logits=False,
    )
    rounded = (e4m3.decode(codes) * scale).to(torch.bfloat16)
    ours = indexer_logits.launch_prefill(rounded, weights, cache, columns, starts, ends)
    seen = torch.arange(count, device=device) < ends.unsqueeze(1)
    assert distance(ours[seen], native[:, :count][seen]) < 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_compressors_against_the_e4m3_triton_form(form: str, device: str) -> None:
    from vllm.models.deepseek_v4.common.ops.fused_compress_quant_cache import compress_norm_rope_store_triton

    window, cache, weight = build(form, [300, 131], device)
    _, _, dims, _ = FORMS[form]
    other = torch.as_strided(
        torch.zeros(cache.untyped_storage().nbytes(), dtype=torch.uint8, device=device),
        cache.shape,
        cache.stride(),
        cache.storage_offset(),
    )
    table = rope_table(400, device)
    compress.launch(window, cache, table, weight, 1e-6)
    compress_norm_rope_store_triton(
        state_cache=window.state,
        num_actual=window.positions.shape[0],
        token_to_req_indices=window.requests,
        positions=window.positions,
        slot_mapping=window.state_slots,
        block_table=window.block_table,
        block_size=window.state.shape[1],
        state_width=window.state.shape[-1] // 2,
        cos_sin_cache=table,
        kv_cache=other,
        k_cache_metadata=SimpleNamespace(slot_mapping=window.entry_slots),
        pdl_kwargs={},
        head_dim=dims,
        rope_head_dim=64,
        compress_ratio=window.ratio,
        overlap=window.overlap,
        use_fp4_cache=False,
        rms_norm_weight=weight,
        rms_norm_eps=1e-6,
        quant_block=64 if dims == 512 else 128,
        token_stride=576 if dims == 512 else 128,
        scale_dim=8 if dims == 512 else 4,
    )
    read = pages.read_indexer if dims == 128 else pages.read_main
    ours, native = read(cache, written(window)), read(other, written(window))
    assert float((ours != native).float().mean()) < 2e-3, "the same rounding of the same fp32 values"
    assert distance(ours, native) < 2e-3
