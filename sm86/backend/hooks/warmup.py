"""vllm.v1.worker.gpu_worker: compile the backend's kernels before the first request."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    original = module.kernel_warmup

    def kernel_warmup(worker: Any) -> None:
        original(worker)
        from sm86.backend.warmup import warm_up

        warm_up(worker)

    module.kernel_warmup = kernel_warmup


HOOK = Hook(
    name="warmup",
    module="vllm.v1.worker.gpu_worker",
    why="vLLM's warm-up knows its own kernels only; the first request would wait for compilation",
    expects=(Expected("vllm.model_executor.warmup.kernel_warmup", "kernel_warmup", "4ce807400c0e3e9b"),),
    apply=_apply,
    imports=("kernel_warmup",),
)
