"""SM86_FORCE: vLLM sees capability 8.6 and Triton refuses e4m3, whatever the GPU."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is what must refuse", allow_module_level=True)

from sm86.backend import force


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch):
    from triton.backends.nvidia.compiler import CUDABackend

    interface = types.ModuleType("vllm.platforms.interface")
    interface.DeviceCapability = lambda major, minor: (major, minor)  # type: ignore[attr-defined]
    for name, module in {
        "vllm": types.ModuleType("vllm"),
        "vllm.platforms": types.ModuleType("vllm.platforms"),
        "vllm.platforms.interface": interface,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(CUDABackend, "parse_options", CUDABackend.parse_options)
    return type("Platform", (), {"get_device_capability": classmethod(lambda cls, device_id=0: (9, 0))})()


def test_a_hopper_gpu_passes_for_sm86(platform) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    assert "fp8e4nv" in backend.parse_options({}).supported_fp8_dtypes
    force.pretend_sm86(platform)
    assert platform.get_device_capability() == (8, 6) and platform.get_device_capability(1) == (8, 6)
    assert "fp8e4nv" not in backend.parse_options({}).supported_fp8_dtypes
    patched = CUDABackend.parse_options
    force.pretend_sm86(platform)
    assert CUDABackend.parse_options is patched, "a second call changes nothing"
