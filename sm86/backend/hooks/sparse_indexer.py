"""vllm.model_executor.layers.sparse_attn_indexer: scores over key pages, without DeepGEMM, no key gather."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    from sm86.backend.attention.indexer import make_forward

    # Its only use is a check in the constructor that would refuse every GPU without DeepGEMM.
    module.has_deep_gemm = lambda: True
    module.SparseAttnIndexer.forward_cuda = make_forward(module, module.envs.VLLM_SPARSE_INDEXER_MAX_LOGITS_MB)


HOOK = Hook(
    name="sparse-indexer",
    module="vllm.model_executor.layers.sparse_attn_indexer",
    why="its logits are DeepGEMM's, and its prefill copies every key into a workspace of 10 x context entries first",
    expects=(
        Expected("vllm.model_executor.layers.sparse_attn_indexer", "sparse_attn_indexer", "9cc13f0cfbaa94b4"),
        Expected("vllm.model_executor.layers.sparse_attn_indexer", "SparseAttnIndexer", "75770731137ee127"),
        Expected("vllm._custom_ops", "top_k_per_row_prefill", "f9bf734daf7861d7"),
        Expected("vllm.v1.worker.workspace", "WorkspaceManager", "a73a722288d3f0c8"),
        Expected("vllm.compilation.breakable_cudagraph", "eager_break_during_capture", "56a1606cd5a77357"),
    ),
    apply=_apply,
    imports=("has_deep_gemm", "eager_break_during_capture", "current_workspace_manager", "ops", "envs"),
)
