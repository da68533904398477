"""The vLLM plugin that makes DeepSeek-V4 run on SM86 GPUs. Nothing above this package imports it.

vLLM calls `register` in every process it starts (API server, engine core, workers).
"""

from __future__ import annotations


def register() -> None:
    """Entry point `vllm.general_plugins`: install the hooks on a CUDA GPU of capability 8.x, do nothing elsewhere.

    Safe to call again, touches no GPU memory and starts no CUDA context. Raises `sm86.backend.refusal.Refused`
    on such a GPU when vLLM is not the version the hooks were written for.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return
    from sm86.backend.plugin import activate

    activate(current_platform)
