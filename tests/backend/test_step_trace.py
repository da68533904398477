"""Reading a step's trace: which kernels lie under a mark and who launched them."""

from __future__ import annotations

import pytest

from sm86.backend.testing.step_trace import MARK, foreign, kernels_under_marks


def span(
    name: str, category: str, start: float, length: float, thread: int = 1, correlation: int | None = None
) -> dict:
    event = {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length, "tid": thread}
    return event if correlation is None else event | {"args": {"correlation": correlation}}


def trace() -> list[dict]:
    return [
        {"ph": "M", "name": "process_name"},
        span(MARK, "user_annotation", 100, 50),
        span("aten::linear", "cpu_op", 110, 10),
        span("aten::mm", "cpu_op", 112, 5),
        span("cudaLaunchKernel", "cuda_runtime", 113, 1, correlation=1),
        span("gemm", "kernel", 300, 9, 7, 1),
        span("cuLaunchKernelEx", "cuda_driver", 125, 1, correlation=2),
        span("compress_kernel", "kernel", 310, 9, 7, 2),
        span("_C::persistent_topk", "cpu_op", 130, 4),
        span("cudaLaunchKernel", "cuda_runtime", 131, 1, correlation=3),
        span("topk", "kernel", 320, 9, 7, 3),
        span("aten::mul", "cpu_op", 200, 4),
        span("cudaLaunchKernel", "cuda_runtime", 201, 1, correlation=4),
        span("outside", "kernel", 330, 9, 7, 4),
        span("cudaLaunchKernel", "cuda_runtime", 120, 1, thread=2, correlation=5),
        span("another thread", "kernel", 340, 9, 7, 5),
    ]


def test_kernels_are_told_by_who_launched_them() -> None:
    found = kernels_under_marks(trace())
    assert found == {("aten::linear", "gemm"): 1, ("-", "compress_kernel"): 1, ("_C::persistent_topk", "topk"): 1}
    assert foreign(found) == []


@pytest.mark.parametrize("category", ["gpu_memcpy", "gpu_memset", "kernel"])
def test_a_torch_operation_in_the_attention_part_is_named(category: str) -> None:
    more = [
        span("aten::fill_", "cpu_op", 140, 4),
        span("cudaLaunchKernel", "cuda_runtime", 141, 1, correlation=9),
        span("elementwise", category, 350, 9, 7, 9),
    ]
    found = kernels_under_marks(trace() + more)
    assert foreign(found) == ["aten::fill_: elementwise"]
