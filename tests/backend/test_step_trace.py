"""Reading a step's trace: which kernels lie under a mark and who launched them."""

from __future__ import annotations

from types import SimpleNamespace

from sm86.backend.testing.step_trace import MARK, foreign, kernels_under_marks


def event(name: str, parent: SimpleNamespace | None, *kernels: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, cpu_parent=parent, kernels=[SimpleNamespace(name=kernel) for kernel in kernels])


def test_kernels_are_told_by_their_operation() -> None:
    mark = event(MARK, event("step", None))
    linear = event("aten::linear", mark)
    events = [
        mark,
        event("cudaLaunchKernel", mark, "sparse_mla"),
        event("aten::mm", linear, "gemm"),
        event("aten::copy_", event("aten::to", mark), "elementwise"),
        event("aten::fill_", None, "outside"),
    ]
    found = kernels_under_marks(events)
    assert found == {("-", "sparse_mla"): 1, ("aten::linear", "gemm"): 1, ("aten::to", "elementwise"): 1}
    assert foreign(found) == ["aten::to: elementwise"]
