"""Kernel names -> kinds, and the buckets that times are summed in. Pure.

Names are those of the vLLM 0.26.0 wheel, of NCCL (both word orders), of FlashInfer and FlashMLA, and
of this package's own kernels. A kind that depends on where the kernel stands (attention, activation)
is resolved in `sm86.trace.layers`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class Bucket(IntEnum):
    """Where a kernel's time is counted, in the order of the report."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    MOE_ROUTING = 2
    MOE_EXPERTS = 3
    LINEAR = 4
    INDEXER = 5
    CSA = 6
    HCA = 7
    SWA = 8
    MHC = 9
    COMPRESSOR = 10
    KV_INSERT = 11
    SAMPLING = 12
    ATTENTION = 13
    OTHER = 14

    @property
    def key(self) -> str:
        """Its name in JSON."""
        return _KEYS[self]

    @property
    def title(self) -> str:
        """Its name in the table."""
        return _TITLES[self]


_KEYS = {
    Bucket.ALL_REDUCE: "tp_all_reduce",
    Bucket.ALL_GATHER: "all_gather",
    Bucket.MOE_ROUTING: "moe_routing",
    Bucket.MOE_EXPERTS: "moe_experts",
    Bucket.LINEAR: "shared_expert_and_linear",
    Bucket.INDEXER: "csa_lightning_indexer",
    Bucket.CSA: "csa_sparse_mqa",
    Bucket.HCA: "hca_dense_mqa",
    Bucket.SWA: "swa_branch",
    Bucket.MHC: "mhc",
    Bucket.COMPRESSOR: "compressor",
    Bucket.KV_INSERT: "kv_insert",
    Bucket.SAMPLING: "sampling",
    Bucket.ATTENTION: "attention_not_placed",
    Bucket.OTHER: "other",
}

_TITLES = {
    Bucket.ALL_REDUCE: "TP all-reduce",
    Bucket.ALL_GATHER: "all-gather",
    Bucket.MOE_ROUTING: "MoE routing",
    Bucket.MOE_EXPERTS: "MoE experts",
    Bucket.LINEAR: "shared expert and linear",
    Bucket.INDEXER: "CSA lightning indexer",
    Bucket.CSA: "CSA sparse MQA",
    Bucket.HCA: "HCA dense MQA",
    Bucket.SWA: "SWA branch",
    Bucket.MHC: "mHC kernels",
    Bucket.COMPRESSOR: "compressor",
    Bucket.KV_INSERT: "KV insert",
    Bucket.SAMPLING: "sampling",
    Bucket.ATTENTION: "attention, layer kind not told",
    Bucket.OTHER: "other",
}

COLLECTIVES = (Bucket.ALL_REDUCE, Bucket.ALL_GATHER)


class Kind(IntEnum):
    """What a name alone tells. The first values are those of Bucket; the rest need the position."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    MOE_ROUTING = 2
    MOE_EXPERTS = 3
    LINEAR = 4
    INDEXER = 5
    HCA = 7
    SWA = 8
    MHC = 9
    COMPRESSOR = 10
    KV_INSERT = 11
    SAMPLING = 12
    ATTENTION = 13
    OTHER = 14
    ACTIVATION = 15


# The order matters: the first pattern that is found decides. All are searched without regard to case.
_RULES: tuple[tuple[Kind, str], ...] = (
    (Kind.OTHER, r"^mem(?:set|cpy) "),
    (Kind.MHC, r"mhc_|hc_prenorm_gemm|hc_head"),
    (Kind.ALL_REDUCE, r"all_?reduce|cross_device_reduce|host_reduce|(?<![a-z0-9])ar_kernel"),
    (Kind.ALL_GATHER, r"all_?gather"),
    (Kind.OTHER, r"^nccl"),
    (
        Kind.MOE_ROUTING,
        r"topkgating|hashtopk|dsv4_topk|moe_align|count_and_sort_expert|grouped_topk|moe::.*topk|expert_map|moe_permute|"
        r"_routing_",
    ),
    (Kind.MOE_EXPERTS, r"moe_wna16|fused_moe|moe_sum|marlin_moe|moe_gemm|moe_unpermute|fused_marlin_moe|matmul_ogs"),
    (
        Kind.INDEXER,
        r"indexer|mqa_logits|persistent_topk|cooperative_topk|filteredtopk|topkperrow|compute_global_topk|key_index",
    ),
    (Kind.HCA, r"c128a"),
    (
        Kind.KV_INSERT,
        r"kvropequantinsert|kv_rope_(?:quant|full_cache)|reshape_and_cache|concat_and_cache|quantize_and_insert_k",
    ),
    (Kind.COMPRESSOR, r"compress|save_partial_states"),
    (Kind.SWA, r"swa_indices|swa_topk|(?<![a-z])swa(?![a-z])"),
    (
        Kind.ATTENTION,
        r"sparse_?mla|mla_|_mla|flash_?mla|flash_fwd|flash::|fmha|sparse_attn|sparse_mqa|paged_attention|pagedattention|"
        r"batchdecode|batchprefill|unified_attention|merge_attn_states|attention_kernel|attn_fwd|decode_attention",
    ),
    (
        Kind.SAMPLING,
        r"argmax|multinomial|exponential|cunn_softmax|softmaxforward|topp|top_p|topk_topp|sampling|sampler|penalt|gumbel|"
        r"rejection|bitonicsort|radixsort|sort_by_key|mbtopk|gathertopk",
    ),
    (Kind.ACTIVATION, r"act_and_mul|silu_and_mul|swiglu|silu_mul"),
    (Kind.LINEAR, r"marlin|gemm|gemv|nvjet|cublas|splitk|cijk_|matmul|s16816|wvsplit|_dot_kernel|dot_product"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)


@lru_cache(maxsize=65536)
def kind_of(name: str) -> Kind:
    """What the name alone tells of a kernel, memset or memcpy; OTHER when nothing does.

    Template and call arguments are looked at only when the part before them tells nothing: types that
    are passed along name other kernels.
    """
    head = re.split(r"[<(]", name.replace("(anonymous namespace)", "anonymous"), maxsplit=1)[0]
    for text in (head, name):
        for kind, pattern in _COMPILED:
            if pattern.search(text):
                return kind
    return Kind.OTHER


def short_name(name: str, width: int = 72) -> str:
    """A kernel name without return type, template and call arguments, cut to `width` characters."""
    text = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    text = re.split(r"[<(]", text, maxsplit=1)[0].strip() or name
    return text if len(text) <= width else text[: width - 1] + "…"
