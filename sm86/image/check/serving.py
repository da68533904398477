"""Imports what a server of the GPU envelopes imports, on a made-up GPU of capability 8.6. Runs inside an image.

Without a GPU vLLM chooses no platform and skips half of its modules; what the image left out would not be missed.
"""

from __future__ import annotations

import importlib
from typing import Any

CAPABILITY = (8, 6)

MODULES = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.cumem_allocator",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.spec_decode.eagle",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.models.deepseek_v4.nvidia.model",
    "vllm.models.deepseek_v4.nvidia.mtp",
    "vllm.tool_parsers",
    "vllm.reasoning",
    "torch._inductor.compile_fx",
    "torch.profiler",
    "flashinfer.sampling",
)
"""What the server's processes import beside the modules that this package's hooks change."""


def serving_imports() -> dict[str, str]:
    """module -> "" where it was imported, else why not. Changes vLLM's platform for the rest of this process."""
    _pretend_gpu()
    hooks = importlib.import_module("sm86.backend.hooks.catalogue").HOOKS
    hooked = (name for hook in hooks for name in (hook.module, *(item.module for item in hook.expects)))
    return {name: _try_import(name) for name in dict.fromkeys((*MODULES, *hooked))}


def _pretend_gpu() -> None:
    platforms: Any = importlib.import_module("vllm.platforms")
    cuda: Any = importlib.import_module("vllm.platforms.cuda")
    capability = importlib.import_module("vllm.platforms.interface").DeviceCapability(*CAPABILITY)

    class PretendedGpu(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return capability

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "made up for a check"

    platforms._current_platform = PretendedGpu()


def _try_import(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return ""
