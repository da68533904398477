"""vllm.utils.deep_gemm: the first layer's hyper-connection GEMM, and a wall around the rest of DeepGEMM."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused


def _never(name: str) -> Any:
    def reached(*_: Any, **__: Any) -> None:
        raise Refused(f"DeepGEMM's {name} was called, SM86 cannot run it", "report the model and the arguments used")

    return reached


def _apply(module: Any) -> None:
    from sm86.backend.kernels import mhc_gemm

    # Looked up in this module at call time by the mHC kernels, so replacing it here reaches them.
    module.tf32_hc_prenorm_gemm = mhc_gemm.launch
    module.fp8_einsum = _never("fp8_einsum")
    module._import_deep_gemm = lambda: None


HOOK = Hook(
    name="deep-gemm",
    module="vllm.utils.deep_gemm",
    why="mhc_pre_broadcast_tilelang calls DeepGEMM without asking whether the GPU has it (SM90 and later only)",
    expects=(
        Expected("vllm.utils.deep_gemm", "tf32_hc_prenorm_gemm", "a813ba2d5a3f3ab6"),
        Expected("vllm.utils.deep_gemm", "fp8_einsum", "c510f7ff3adf61fa"),
        Expected("vllm.utils.deep_gemm", "_import_deep_gemm", "d0fcc4b75da78f9c"),
        Expected("vllm.model_executor.kernels.mhc.tilelang", "mhc_pre_broadcast_tilelang", "94489a0133fad16e"),
    ),
    apply=_apply,
)
