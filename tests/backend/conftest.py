"""The backend's tests need torch and Triton. On a CPU the kernels run in Triton's interpreter; with
SM86_TEST_DEVICE=cuda the same tests run compiled on the GPU (the choice must fall before Triton is imported)."""

from __future__ import annotations

import importlib.util
import os

import pytest

DEVICE = os.environ.get("SM86_TEST_DEVICE", "cpu")
HAVE_TORCH = all(importlib.util.find_spec(name) is not None for name in ("torch", "triton"))
NEEDS_TORCH = (
    "test_e4m3.py",
    "test_pages.py",
    "test_kernels_compress.py",
    "test_kernels_indexer.py",
    "test_kernels_output.py",
    "test_kernels_experts.py",
    "test_attention_reference.py",
    "test_compiled.py",
    "test_hooks_runtime.py",
    "test_layer.py",
    "test_nan_watch.py",
    "test_kernels_key_index.py",
    "test_transformers.py",
    "test_warmup_sizes.py",
    "test_parity.py",
    "test_native_library.py",
    "test_force.py",
    "test_gpu_native.py",
    "test_gpu_shapes.py",
    "test_checkpoint.py",
)
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
if not HAVE_TORCH:
    collect_ignore = list(NEEDS_TORCH)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backend: needs torch and Triton (kernels of the SM86 backend)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in NEEDS_TORCH:
            item.add_marker(pytest.mark.backend)


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def seeded() -> None:
    if HAVE_TORCH:
        import torch

        torch.manual_seed(1234)
