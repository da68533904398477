"""SM86_FORCE=1: run the SM86 path on another CUDA GPU, and let vLLM and Triton take it for an SM86 one."""

from __future__ import annotations

from typing import Any

_PRETENDED = (8, 6)


def pretend_sm86(platform: Any) -> None:
    """vLLM sees capability 8.6, Triton refuses the e4m3 type: nothing that SM86 lacks is chosen by accident.

    Calling it again changes nothing.
    """
    from vllm.platforms.interface import DeviceCapability

    kind = type(platform)
    if getattr(kind, "_sm86_pretends", False):
        return
    kind.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*_PRETENDED))
    kind._sm86_pretends = True
    _refuse_e4m3_in_triton()


def _refuse_e4m3_in_triton() -> None:
    from triton.backends.nvidia.compiler import CUDABackend

    original = CUDABackend.parse_options

    def parse_options(self: Any, options: Any) -> Any:
        return original(self, {**options, "supported_fp8_dtypes": ("fp8e4b15", "fp8e5")})

    CUDABackend.parse_options = parse_options
