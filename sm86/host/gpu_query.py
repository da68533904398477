"""The question to NVML about the conditions of a measurement, as a program of its own: prints one JSON object.

{"driver": "580.126.09", "gpus": [{"uuid", "name", "sm_clock_mhz", "mem_clock_mhz", "max_sm_clock_mhz",
"power_limit_w", "default_power_limit_w", "temperature_c", "memory_mib"}, ...]}, or {} where there is no driver.
A fact that the driver does not give is left out. It runs apart because a driver that hangs cannot be interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def query() -> dict[str, Any]:
    """The facts; {} where NVML is missing or refuses."""
    try:
        import pynvml as nvml
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return {}
    return {"driver": driver, "gpus": [_gpu(nvml, index) for index in range(count)]}


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return {"index": index}
    facts: dict[str, Callable[[], Any]] = {
        "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(gpu)),
        "name": lambda: _text(nvml.nvmlDeviceGetName(gpu)),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "mem_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "default_power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "memory_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total // 2**20,
    }
    found: dict[str, Any] = {"index": index}
    for name, ask in facts.items():
        try:
            found[name] = ask()
        except nvml.NVMLError:
            continue
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps(query()))
