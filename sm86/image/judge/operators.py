"""The operators of vLLM's two kernel libraries: all that the pinned release has, and which the native build lacks.

vLLM's build gives an operator its kernel only where an architecture in its list has one, and leaves the schema of
some others out altogether. What a build for SM 8.6 lacks thereby is named here with its reason, so that nothing can
be missing unnoticed. Pure. The names were read off the published libraries of vLLM 0.26.0, loaded in the wheel image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_NAMES: Mapping[str, str] = {
    "_C": """
        allspark_w8a16_gemm apply_repetition_penalties_ awq_dequantize awq_gemm awq_marlin_repack
        cooperative_topk cutlass_encode_and_reorder_int4b cutlass_encode_and_reorder_int4b_grouped
        cutlass_fp4_group_mm cutlass_group_gemm_supported cutlass_moe_mm cutlass_mxfp4_group_mm
        cutlass_pack_scale_fp8 cutlass_scaled_fp4_mm cutlass_scaled_mm cutlass_scaled_mm_azp
        cutlass_scaled_mm_supports_block_fp8 cutlass_scaled_mm_supports_fp4 cutlass_scaled_mm_supports_fp8
        cutlass_w4a8_mm cutlass_w4a8_moe_mm dsv3_fused_a_gemm dynamic_per_token_scaled_fp8_quant
        dynamic_scaled_fp8_quant dynamic_scaled_int8_quant fatrelu_and_mul fp32_router_gemm
        fused_add_rms_norm fused_add_rms_norm_static_fp8_quant
        fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_bf16_insert
        fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_fp8_insert
        fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert fused_minimax_m3_qknorm_rope_kv_insert
        fused_qk_norm_rope gelu_and_mul gelu_fast gelu_new gelu_quick gelu_tanh_and_mul
        get_cuda_view_from_cpu_tensor get_cutlass_batched_moe_mm_data get_cutlass_moe_mm_data
        get_cutlass_moe_mm_problem_sizes_from_expert_offsets gptq_gemm gptq_marlin_repack gptq_shuffle
        hadacore_transform machete_mm machete_prepack_B machete_supported_schedules marlin_gemm
        marlin_int4_fp8_preprocess merge_attn_states minimax_allreduce_rms_qk mul_and_silu
        mxfp4_experts_quant mxfp4_experts_quant_supported ngram_compute_n_gram_ids per_token_group_fp8_quant
        per_token_group_fp8_quant_packed per_token_group_quant_int8 permute_cols
        persistent_masked_m_silu_mul_quant persistent_topk rearrange_kn_weight_as_n32k16_order relu_squared
        rms_norm rms_norm_dynamic_per_token_quant rms_norm_per_block_quant rms_norm_static_fp8_quant
        rotary_embedding scaled_fp4_experts_quant scaled_fp4_quant scaled_fp4_quant.out selective_scan_fwd
        silu_and_mul silu_and_mul_mxfp4_experts_quant silu_and_mul_nvfp4_quant silu_and_mul_per_block_quant
        silu_and_mul_quant silu_and_mul_scaled_fp4_experts_quant silu_and_mul_with_clamp
        sm100_cutlass_mla_decode sm100_cutlass_mla_get_workspace_size static_scaled_fp8_quant
        static_scaled_int8_quant swigluoai_and_mul top_k_per_row_decode top_k_per_row_prefill
        weak_ref_tensor
    """,
    "_C_cache_ops": """
        concat_and_cache_mla concat_and_cache_mla_rope_fused concat_mla_q convert_fp8
        cp_gather_and_upconvert_fp8_kv_cache cp_gather_cache cp_gather_indexer_k_quant_cache
        gather_and_maybe_dequant_cache indexer_k_quant_and_cache reshape_and_cache reshape_and_cache_flash
        swap_blocks swap_blocks_batch
    """,
    "_C_cuda_utils": """
        get_device_attribute get_max_shared_memory_per_block_device_attribute
    """,
    "_C_custom_ar": """
        all_reduce allocate_shared_buffer_and_handle dispose free_shared_buffer get_graph_buffer_ipc_meta
        init_custom_ar meta_size open_mem_handle register_buffer register_graph_buffers
    """,
    "_moe_C": """
        batched_moe_align_block_size dsv3_router_gemm grouped_topk moe_align_block_size
        moe_lora_align_block_size moe_permute moe_permute_sort_workspace_size
        moe_permute_unpermute_supported moe_permute_with_scratch moe_sum moe_unpermute moe_wna16_gemm
        moe_wna16_marlin_gemm shuffle_rows topk_sigmoid topk_softmax topk_softplus_sqrt
    """,
}

PUBLISHED = frozenset(f"{space}::{name}" for space, names in _NAMES.items() for name in names.split())
"""Operators with a kernel in the published libraries, as "namespace::name"."""

NAMESPACES = tuple(_NAMES)

LIBRARIES = ("_C_stable_libtorch", "_moe_C_stable_libtorch")
"""The modules of vLLM that register them; each is the library `vllm/<name>.abi3.so`."""

_REASONS: Mapping[str, str] = {
    "quantized GEMMs for SM 9.0: Machete, and weights of 4 bits beside activations of 8": """
        _C::machete_mm _C::machete_prepack_B _C::machete_supported_schedules
        _C::cutlass_w4a8_mm _C::cutlass_w4a8_moe_mm _C::cutlass_pack_scale_fp8
        _C::cutlass_encode_and_reorder_int4b _C::cutlass_encode_and_reorder_int4b_grouped
    """,
    "GEMMs of 4-bit floating-point numbers, for SM 10.0 and 12.0": """
        _C::cutlass_fp4_group_mm _C::cutlass_mxfp4_group_mm
        _C::mxfp4_experts_quant _C::mxfp4_experts_quant_supported _C::silu_and_mul_mxfp4_experts_quant
    """,
    "GEMMs of a router or of a query for SM 9.0 and newer: vLLM asks for the capability and takes torch's own": """
        _C::dsv3_fused_a_gemm _C::fp32_router_gemm _moe_C::dsv3_router_gemm
    """,
    "top-k by a cluster of blocks, for SM 9.0 and newer: vLLM and this package take persistent_topk": """
        _C::cooperative_topk
    """,
    "latent attention for SM 10.0": """
        _C::sm100_cutlass_mla_decode _C::sm100_cutlass_mla_get_workspace_size
    """,
}

NOT_COMPILED: Mapping[str, str] = {name: why for why, names in _REASONS.items() for name in names.split()}
"""Operator without a kernel in the native libraries -> why SM 8.6 does without it."""


def lacking(kernels: Mapping[str, bool], variant: str) -> Iterator[str]:
    """Operators that have no kernel and should. `kernels`: registered operator -> whether it has one."""
    for name in sorted(PUBLISHED):
        if not kernels.get(name) and not (variant == "native" and name in NOT_COMPILED):
            yield name
