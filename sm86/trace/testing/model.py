"""The kernels of one DeepSeek-V4 decode step, in launch order, each with the bucket and layer it must count to.

The labels are written down here beside each kernel; nothing of the analysis is used to make them.
Order and streams follow the forward pass of vLLM 0.26.0 (`models/deepseek_v4`): mHC kernels before
every sublayer, input GEMMs of the compressor and the indexer on side streams, two all-reduces a layer
and one behind the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

FLASH_LAYERS = ("SWA", "SWA", *(("CSA", "HCA") * 20), "CSA")
OUTSIDE = -1
MAIN, SIDE, SIDE_2 = 7, 20, 21

MARLIN = (
    "void marlin::Marlin<c10::BFloat16, (long)1125899906909960, 256, 1, 8, 4, false, 4, 8>(int4 const*, int4 const*)"
)
MARLIN_MOE = (
    "void marlin_moe_wna16::Marlin<c10::BFloat16, (long)1125899906909960, 256, 1, 8, 4, false, 4>(int4 const*, int)"
)
GEMM = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)"
GEMV = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, __nv_bfloat16, float, 7>(float*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RMS = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, long, float, int, int)"
ATTENTION = "void flash_fwd_splitkv_mla_fp8_sparse_kernel<64, Flash_fwd_mla_params>(Flash_fwd_mla_params)"
COMBINE = "void flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, float, long, 512, 8, 128>(Flash_fwd_mla_params)"
ACTIVATION = (
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>(c10::BFloat16*, int)"
)
INSERT = "void vllm::fusedDeepseekV4QNormRopeKVRopeQuantInsertKernel<c10::BFloat16, 8>(c10::BFloat16*, unsigned char*)"


@dataclass(frozen=True, slots=True)
class Node:
    """One kernel: the bucket (its JSON key) and layer it belongs to, its stream, its usual duration in ns.

    joins: it starts only when every side stream has come to its end.
    """

    name: str
    bucket: str
    layer: int
    stream: int
    usual_ns: int
    category: str = "kernel"
    joins: bool = False

    @property
    def collective(self) -> bool:
        return self.bucket in ("tp_all_reduce", "all_gather")


def _mhc(layer: int, opening: bool) -> list[Node]:
    first = "mhc_pre_big_fuse_broadcast_with_norm_tilelang_kernel" if opening else "mhc_fused_tilelang_kernel"
    nodes = [Node(first, "mhc", layer, MAIN, 3600, joins=True)]
    if not opening:
        nodes.append(Node("mhc_pre_big_fuse_with_norm_tilelang_kernel", "mhc", layer, MAIN, 2900))
    return nodes


def _attention(layer: int, kind: str) -> list[Node]:
    bucket = {"CSA": "csa_sparse_mqa", "HCA": "hca_dense_mqa", "SWA": "swa_branch"}[kind]
    linear = "shared_expert_and_linear"
    nodes = _mhc(layer, opening=layer == 0)
    nodes.append(Node(MARLIN, linear, layer, MAIN, 6100))
    if kind != "SWA":
        nodes.append(Node(GEMM, linear, layer, SIDE, 5200))
    if kind == "CSA":
        nodes += [Node(GEMV, linear, layer, SIDE_2, 2100), Node(GEMM, linear, layer, SIDE_2, 3000)]
    nodes += [
        Node("_fused_q_kv_rmsnorm_kernel", "other", layer, MAIN, 1900),
        Node(MARLIN, linear, layer, MAIN, 5600),
        Node(INSERT, "kv_insert", layer, MAIN, 2400),
    ]
    if kind == "CSA":
        nodes += [
            Node(MARLIN, linear, layer, SIDE_2, 6700),
            Node("_fused_indexer_q_rope_quant_kernel", "csa_lightning_indexer", layer, SIDE_2, 2300),
            Node("_save_partial_states_kernel", "compressor", layer, SIDE_2, 1500),
            Node("_fused_kv_compress_norm_rope_insert_indexer_attn", "csa_lightning_indexer", layer, SIDE_2, 2600),
            Node("sm86_paged_mqa_logits_kernel", "csa_lightning_indexer", layer, SIDE_2, 9400),
            Node(
                "void vllm::persistent_topk_kernel<512, 2048>(float const*, int*)",
                "csa_lightning_indexer",
                layer,
                SIDE_2,
                8800,
            ),
            Node("_compute_global_topk_indices_and_lens_kernel", "csa_lightning_indexer", layer, SIDE_2, 1700),
        ]
    if kind != "SWA":
        nodes += [
            Node("_save_partial_states_kernel", "compressor", layer, SIDE, 1600),
            Node("_fused_kv_compress_norm_rope_insert_sparse_attn", "compressor", layer, SIDE, 3100),
        ]
    nodes += [
        Node(ATTENTION, bucket, layer, MAIN, 9800 if kind != "SWA" else 7000, joins=True),
        Node(COMBINE, bucket, layer, MAIN, 2200),
        Node("inverse_rope_kernel", "other", layer, MAIN, 1800),
        Node(GEMM, linear, layer, MAIN, 5100),
        Node(MARLIN, linear, layer, MAIN, 5500),
        Node(ALL_REDUCE, "tp_all_reduce", layer, MAIN, 24_000),
    ]
    return nodes


def _feed_forward(layer: int) -> list[Node]:
    linear = "shared_expert_and_linear"
    topk = "void vllm::moe::topkGatingSoftplusSqrt<8, 256, 4, 16, float>(float const*, float*, int, int*)"
    align = "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, int, int)"
    return [
        *_mhc(layer, opening=False),
        Node(GEMV, linear, layer, MAIN, 2500),
        Node(MARLIN, linear, layer, SIDE, 5000),
        Node(ACTIVATION, linear, layer, SIDE, 1400),
        Node(MARLIN, linear, layer, SIDE, 4100),
        Node(topk, "moe_routing", layer, MAIN, 3300),
        Node(align, "moe_routing", layer, MAIN, 3900),
        Node(
            "void vllm::moe::count_and_sort_expert_tokens_kernel<int>(int const*, int*)",
            "moe_routing",
            layer,
            MAIN,
            1800,
        ),
        Node(MARLIN_MOE, "moe_experts", layer, MAIN, 11_800),
        Node(ACTIVATION, "moe_experts", layer, MAIN, 1500),
        Node(MARLIN_MOE, "moe_experts", layer, MAIN, 9900),
        Node(
            "void vllm::moe::moe_sum_kernel<c10::BFloat16, 6>(c10::BFloat16*, c10::BFloat16 const*, int)",
            "moe_experts",
            layer,
            MAIN,
            1600,
        ),
        Node(
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)",
            "other",
            layer,
            MAIN,
            1500,
            joins=True,
        ),
        Node(ALL_REDUCE, "tp_all_reduce", layer, MAIN, 24_000),
    ]


def decode_step(layers: tuple[str, ...] = FLASH_LAYERS) -> list[list[Node]]:
    """The kernels of one step in pieces: [before the layers, then attention and MoE of each layer ..., head].

    layers: the kind of each layer, "CSA", "HCA" or "SWA". Odd pieces of the result are attention.
    """
    embedding = [
        Node(
            "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)",
            "other",
            OUTSIDE,
            MAIN,
            2100,
        ),
        Node("Memset (Device)", "other", OUTSIDE, MAIN, 900, category="gpu_memset"),
        Node(ALL_REDUCE, "tp_all_reduce", OUTSIDE, MAIN, 24_000),
    ]
    head = [
        Node("mhc_post_tilelang_kernel", "mhc", OUTSIDE, MAIN, 2500, joins=True),
        Node("Memcpy DtoD (Device -> Device)", "other", OUTSIDE, MAIN, 1600, category="gpu_memcpy"),
        Node("hc_head_fuse_tilelang_kernel", "mhc", OUTSIDE, MAIN, 3400),
        Node(RMS, "other", OUTSIDE, MAIN, 1700),
        Node(GEMM, "shared_expert_and_linear", OUTSIDE, MAIN, 61_000),
        Node(ALL_GATHER, "all_gather", OUTSIDE, MAIN, 29_000),
    ]
    pieces = [embedding]
    for layer, kind in enumerate(layers):
        pieces += [_attention(layer, kind), _feed_forward(layer)]
    return [*pieces, head]


SAMPLING = (
    Node(
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(int)",
        "sampling",
        OUTSIDE,
        MAIN,
        9100,
    ),
    Node(
        "void at::native::index_elementwise_kernel<128, 4>(long, at::native::gpu_index_kernel)",
        "other",
        OUTSIDE,
        MAIN,
        2300,
    ),
)
