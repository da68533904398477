"""vllm.model_executor.kernels.mhc.tilelang_kernels: one number of splits for the first layer's mHC GEMM."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def splits(block: int, size: int | None) -> int:
    """The number of splits that vLLM takes for few tokens, for every number of tokens: a quarter of the blocks."""
    return 1 if size is None else max(1, -(-size // block) // 4)


def _apply(module: Any) -> None:
    def compute_num_split(block_k: int, k: int | None, grid_size: int) -> int:
        return splits(block_k, k)

    module.compute_num_split = compute_num_split


HOOK = Hook(
    name="mhc-splits",
    module="vllm.model_executor.kernels.mhc.tilelang_kernels",
    why="the splits follow the batch size and are compiled in: every 64 tokens another compilation of 15 s",
    expects=(
        Expected("vllm.model_executor.kernels.mhc.tilelang_kernels", "compute_num_split", "8fa490067e8b8992"),
        Expected("vllm.model_executor.kernels.mhc.tilelang", "mhc_pre_broadcast_tilelang", "94489a0133fad16e"),
        Expected("vllm.model_executor.kernels.mhc.tilelang", "mhc_pre_tilelang", "80cec574ab67d7f6"),
        Expected("vllm.model_executor.kernels.mhc.tilelang", "mhc_fused_post_pre_tilelang", "6f212089b128088c"),
    ),
    apply=_apply,
)
