"""Names of real kernels and the kinds they tell; sublayers and layers by position."""

from __future__ import annotations

import pytest

from sm86.trace.kernels import Bucket, Kind, kind_of, short_name
from sm86.trace.layers import OUTSIDE, place

NAMES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Kind.ALL_REDUCE,
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": Kind.ALL_REDUCE,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": Kind.ALL_REDUCE,
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Kind.ALL_GATHER,
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": Kind.OTHER,
    "void vllm::moe::topkGatingSoftplusSqrt<8, 256>(float const*)": Kind.MOE_ROUTING,
    "void vllm::moe::dsv4HashTopkSoftplusSqrt<8>(float const*)": Kind.MOE_ROUTING,
    "_dsv4_topk_kernel": Kind.MOE_ROUTING,
    "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*)": Kind.MOE_ROUTING,
    "void vllm::moe::count_and_sort_expert_tokens_kernel<int>(int const*)": Kind.MOE_ROUTING,
    "void marlin_moe_wna16::Marlin<c10::BFloat16, 256>(int4 const*)": Kind.MOE_EXPERTS,
    "void vllm::moe::moe_wna16_gemm_kernel<__nv_bfloat16>(int)": Kind.MOE_EXPERTS,
    "fused_moe_kernel_gptq_awq": Kind.MOE_EXPERTS,
    "void vllm::moe::moe_sum_kernel<c10::BFloat16, 6>(int)": Kind.MOE_EXPERTS,
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>(int)": Kind.ACTIVATION,
    "void marlin::Marlin<c10::BFloat16, 256, 1>(int4 const*)": Kind.LINEAR,
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(Params)": Kind.LINEAR,
    "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn": Kind.LINEAR,
    "nvjet_tst_64x8_64x16_4x1_v_bz_TNT": Kind.LINEAR,
    "void gemv2T_kernel_val<int, int, float>(float)": Kind.LINEAR,
    "_fused_indexer_q_rope_quant_kernel": Kind.INDEXER,
    "void deep_gemm::sm90_fp8_paged_mqa_logits<64>(int)": Kind.INDEXER,
    "void vllm::persistent_topk_kernel<512>(float const*)": Kind.INDEXER,
    "void vllm::cooperative_topk_cs4<512>(float const*)": Kind.INDEXER,
    "void flashinfer::FilteredTopKUnifiedKernel<float, int>(int)": Kind.INDEXER,
    "void vllm::topKPerRowDecode<512>(float const*)": Kind.INDEXER,
    "void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16>(int)": Kind.INDEXER,
    "_compute_global_topk_indices_and_lens_kernel": Kind.INDEXER,
    "_fused_kv_compress_norm_rope_insert_indexer_attn": Kind.INDEXER,
    "indexer_decode_kernel": Kind.INDEXER,
    "indexer_query_kernel": Kind.INDEXER,
    "key_index_kernel": Kind.INDEXER,
    "_save_partial_states_kernel": Kind.COMPRESSOR,
    "_fused_kv_compress_norm_rope_insert_sparse_attn": Kind.COMPRESSOR,
    "compress_kernel": Kind.COMPRESSOR,
    "void vllm::fusedDeepseekV4QNormRopeKVRopeQuantInsertKernel<c10::BFloat16>(int)": Kind.KV_INSERT,
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)": Kind.KV_INSERT,
    "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(int)": Kind.KV_INSERT,
    "_build_c128a_topk_metadata_kernel": Kind.HCA,
    "_combine_topk_swa_indices_kernel": Kind.SWA,
    "_compute_swa_indices_and_lens_kernel": Kind.SWA,
    "void flash_fwd_splitkv_mla_fp8_sparse_kernel<64>(Flash_fwd_mla_params)": Kind.ATTENTION,
    "void flash_fwd_mla_combine_kernel<cutlass::bfloat16_t>(Flash_fwd_mla_params)": Kind.ATTENTION,
    "sparse_mla(SparseMlaArgs, Grid)": Kind.ATTENTION,
    "kernel_unified_attention_3d": Kind.ATTENTION,
    "mhc_fused_tilelang_kernel": Kind.MHC,
    "mhc_pre_big_fuse_with_norm_tilelang_kernel": Kind.MHC,
    "hc_prenorm_gemm_tilelang_kernel": Kind.MHC,
    "hc_head_fuse_tilelang_kernel": Kind.MHC,
    "mhc_gemm_kernel": Kind.MHC,
    "void at::native::reduce_kernel<512, 1, ReduceOp<float, at::native::ArgMaxOps<float>>>(int)": Kind.SAMPLING,
    "Memset (Device)": Kind.OTHER,
    "Memcpy DtoD (Device -> Device)": Kind.OTHER,
    "_fused_q_kv_rmsnorm_kernel": Kind.OTHER,
    "inverse_rope_kernel": Kind.OTHER,
    "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda>(int)": Kind.OTHER,
    "": Kind.OTHER,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_name_tells(name: str) -> None:
    assert kind_of(name) is NAMES[name]


def test_every_bucket_has_one_key_and_one_title() -> None:
    assert len({bucket.key for bucket in Bucket}) == len({bucket.title for bucket in Bucket}) == len(Bucket)


def test_short_names_are_short_and_never_empty() -> None:
    assert short_name("void marlin::Marlin<int>(int4 const*)") == "marlin::Marlin"
    assert short_name("void (anonymous namespace)::f<int>()") == "f"
    assert short_name("(only)") == "(only)"
    assert len(short_name("x" * 500, 40)) == 40


K = Kind
ATTENTION_SWA = [K.MHC, K.MHC, K.LINEAR, K.KV_INSERT, K.ATTENTION, K.ALL_REDUCE]
ATTENTION_CSA = [K.MHC, K.MHC, K.LINEAR, K.INDEXER, K.COMPRESSOR, K.KV_INSERT, K.ATTENTION, K.ALL_REDUCE]
ATTENTION_HCA = [K.MHC, K.MHC, K.LINEAR, K.COMPRESSOR, K.KV_INSERT, K.ATTENTION, K.ALL_REDUCE]
MOE = [K.MHC, K.MHC, K.MOE_ROUTING, K.MOE_EXPERTS, K.ALL_REDUCE]
HEAD = [K.MHC, K.OTHER, K.MHC, K.LINEAR, K.ALL_GATHER]


def placed(kinds: list[Kind]):
    return place(kinds, [7] * len(kinds))


def test_one_attention_kernel_is_told_apart_by_what_stands_around_it() -> None:
    kinds = [K.OTHER, K.ALL_REDUCE, *ATTENTION_SWA, *MOE, *ATTENTION_CSA, *MOE, *ATTENTION_HCA, *MOE, *HEAD]
    got = placed(kinds)
    assert got.kinds == ("SWA", "CSA", "HCA")
    assert [b for b, k in zip(got.buckets, kinds, strict=True) if k is K.ATTENTION] == [
        Bucket.SWA,
        Bucket.CSA,
        Bucket.HCA,
    ]
    assert got.counts() == {"CSA": 1, "HCA": 1, "SWA": 1}
    reduces = [layer for layer, kind in zip(got.layers, kinds, strict=True) if kind is K.ALL_REDUCE]
    assert reduces == [OUTSIDE, 0, 0, 1, 1, 2, 2]
    assert got.layers[-1] == OUTSIDE


def test_metadata_before_the_first_layer_makes_no_layer() -> None:
    got = placed([K.HCA, K.SWA, K.KV_INSERT, K.ATTENTION, *ATTENTION_SWA, *MOE])
    assert got.kinds == ("SWA",)
    assert got.buckets[3] is Bucket.ATTENTION and got.layers[3] == OUTSIDE


def test_without_mhc_kernels_attention_is_not_guessed() -> None:
    got = placed([K.LINEAR, K.COMPRESSOR, K.ATTENTION, K.LINEAR])
    assert got.kinds == () and got.buckets[2] is Bucket.ATTENTION


def test_an_activation_goes_with_the_gemm_before_it_on_its_stream() -> None:
    kinds = [*ATTENTION_SWA, K.MHC, K.LINEAR, K.MOE_EXPERTS, K.ACTIVATION, K.ACTIVATION]
    streams = [7] * (len(kinds) - 4) + [20, 7, 20, 7]
    assert place(kinds, streams).buckets[-2:] == (Bucket.LINEAR, Bucket.MOE_EXPERTS)


def test_a_memset_between_two_mhc_kernels_makes_no_layer() -> None:
    broken = [K.MHC, K.OTHER, *ATTENTION_SWA[1:]]
    assert placed([*broken, *MOE]).kinds == ("SWA",)


def test_nothing_is_placed_nowhere() -> None:
    assert placed([]).counts() == {}
