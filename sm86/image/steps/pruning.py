"""What the native image leaves out of the installed packages, and why that is safe. Pure.

Patterns are below site-packages. Each was removed from an installed tree, and everything that a server of these
envelopes imports was imported afterwards on a made-up GPU of capability 8.6; `image.check` does that again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Files and folders left out for one reason."""

    patterns: tuple[str, ...]
    why: str


FLASH_ATTENTION = "vllm/vllm_flash_attn/_vllm_fa2_C"
"""The extension module without which vLLM cannot be imported on a CUDA GPU; a module that refuses takes its place."""

GROUPS: tuple[Group, ...] = (
    Group(
        (f"{FLASH_ATTENTION}.abi3.so",),
        "flash attention 2: DeepSeek-V4's attention is the sparse MLA of this package; a call is refused in words",
    ),
    Group(
        (
            "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
            "vllm/_flashmla_C.abi3.so",
            "vllm/_flashmla_extension_C.abi3.so",
            "vllm/_qutlass_C.abi3.so",
            "vllm/third_party/deep_gemm",
            "vllm/third_party/fmha_sm100",
        ),
        "for SM 9.0 and newer only: FlashAttention 3, FlashMLA, QuTLASS, DeepGEMM and its headers, CUTLASS for SM 10.0",
    ),
    Group(("vllm/vllm-rs",), "vLLM's front end in Rust, another program than the server that the envelopes start"),
    Group(
        (
            "triton/backends/nvidia/lib/cupti",
            "triton/_C/libproton.so",
            "triton/instrumentation/*.so",
            "triton/backends/nvidia/bin/ptxas-blackwell",
        ),
        "Triton's own profiler with its static libraries, and an assembler for SM 10.0; torch's profiler has its own",
    ),
    Group(
        ("torch/bin/protoc*", "torch/bin/ptxas"),
        "protoc and a second ptxas: torch takes Triton's where its own is not there",
    ),
    Group(
        (
            "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9",
            "nvidia/cudnn/lib/libcudnn_engines_runtime_compiled.so.9",
            "nvidia/cudnn/lib/libcudnn_heuristic.so.9",
            "nvidia/cudnn/lib/libcudnn_adv.so.9",
            "nvidia/cudnn/lib/libcudnn_cnn.so.9",
            "nvidia/cudnn/lib/libcudnn_ops.so.9",
            "nvidia/cudnn/include",
        ),
        "cuDNN's convolutions and recurrent networks, loaded when first used; a text model has none",
    ),
    Group(
        (
            "nvidia/cu13/lib/libnvrtc.alt.so.13",
            "nvidia/cu13/lib/libnvrtc-builtins.alt.so.13.0",
            "nvidia/cu13/lib/libcusolverMg.so.12",
            "nvidia/cu13/lib/libcufftw.so.12",
            "nvidia/cu13/lib/libnvblas.so.13",
            "nvidia/cu13/lib/libnvvm.so.4",
            "nvidia/nvshmem/lib/libnvshmem_device.*",
        ),
        "libraries that no other library names: second builds, one for several GPUs in one process, device bitcode",
    ),
    Group(
        ("cuda/bindings/**/*.cpp", "cuda/bindings/**/*.pyx", "tilelang/3rdparty/tvm/src"),
        "sources of modules that are installed compiled",
    ),
    Group(("tilelang/3rdparty/composable_kernel",), "headers for AMD GPUs"),
    Group(("flashinfer/data/cutlass",), "CUTLASS for FlashInfer's own GEMMs; the sampling kernels need none of it"),
    Group(
        (
            "numba/tests",
            "numba/cuda/tests",
            "numpy/**/tests",
            "sympy/**/tests",
            "networkx/**/tests",
            "mpmath/tests",
            "supervisor/tests",
            "setuptools/tests",
        ),
        "tests of libraries",
    ),
)

STRIP_ABOVE_BYTES = 1_000_000
"""A library whose symbol table and debug sections hold more is stripped of them: nothing at run time reads them."""

REFUSAL = '''"""In the place of flash attention 2, which this image leaves out; vLLM asks for a module of this name."""

import torch


def _refuse(*_args, **_kwargs):
    raise RuntimeError(
        "flash attention is not in this image: DeepSeek-V4 on SM 8.6 does not use it; "
        "for another model build with: invoke build --variant wheel"
    )


for _name in ("varlen_fwd", "fwd_sparse", "varlen_fwd_sparse"):
    setattr(torch.ops._vllm_fa2_C, _name, _refuse)
'''
"""Text of the module that takes the extension's place."""
