"""vllm.v1.worker.gpu_model_runner: with CUDAGRAPH_DISPATCH_DEBUG=1 a line per batch; and the NaN watch."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    from sm86.backend.diagnostics import graphs, nan_watch
    from sm86.backend.settings import settings

    nan_watch.attach(module)
    if not settings().dispatch_debug:
        return
    original = module.GPUModelRunner._determine_batch_execution_and_padding

    def _determine_batch_execution_and_padding(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        # All ranks dispatch alike, so one speaks; dummy batches of warm-up and capture are not dispatched at all.
        if self.parallel_config.rank == 0 and not getattr(self, "_sm86_in_dummy_run", False):
            print(graphs.dispatch_line(graphs.batch_of(self, kwargs, result)), flush=True)
        return result

    dummy = module.GPUModelRunner._dummy_run

    def _dummy_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._sm86_in_dummy_run = True
        try:
            return dummy(self, *args, **kwargs)
        finally:
            self._sm86_in_dummy_run = False

    module.GPUModelRunner._determine_batch_execution_and_padding = _determine_batch_execution_and_padding
    module.GPUModelRunner._dummy_run = _dummy_run


HOOK = Hook(
    name="graph-dispatch",
    module="vllm.v1.worker.gpu_model_runner",
    why="vLLM says at debug level only which batch replays a graph, and never why one does not",
    expects=(
        Expected(
            "vllm.v1.worker.gpu_model_runner",
            "GPUModelRunner._determine_batch_execution_and_padding",
            "069eddb639f79eed",
        ),
        Expected("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._is_uniform_decode", "9dd9294add270ba2"),
        Expected("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._bookkeeping_sync", "0355870baf40281a"),
        Expected("vllm.v1.worker.gpu_model_runner", "AsyncGPUModelRunnerOutput", "4e013174e82f05fc"),
        Expected("vllm.v1.cudagraph_dispatcher", "CudagraphDispatcher", "c362a8903e569cd6"),
    ),
    apply=_apply,
)
