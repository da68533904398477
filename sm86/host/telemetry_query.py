"""The GPUs once a second, as a program of its own: prints one JSON object a line until its standard input ends.

    {"gpus": [{"index", "uuid", "name", "max_sm_clock_mhz", "power_limit_w", "default_power_limit_w", "memory_mib",
               "max_link_gen", "max_link_width"}, ...]}                                        the first line
    {"at": seconds, "gpus": [{"sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "reasons", "tx_mb_s",
               "rx_mb_s", "memory_mib", "busy_percent", "link_gen", "link_width"}, ...]}       every other
    {"problem": "..."}                                                                         instead of the first

`at` is CLOCK_MONOTONIC, which all processes of a machine share. A fact that the driver does not give is left out and
not asked again. A GPU that cannot be asked is {"error": "..."} and is asked again every second. It runs apart because
a driver that hangs cannot be interrupted. reasons: NVML's bits of what keeps the clocks down.

    python3 -P telemetry_query.py [SECONDS]
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Ask = Callable[[Any], Any]

KIB_TO_MB = 1.024e-3


def still(nvml: Any) -> dict[str, Ask]:
    """What does not change while a run goes on."""
    return {
        "uuid": lambda gpu: _text(nvml.nvmlDeviceGetUUID(gpu)),
        "name": lambda gpu: _text(nvml.nvmlDeviceGetName(gpu)),
        "max_sm_clock_mhz": lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "power_limit_w": lambda gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "default_power_limit_w": lambda gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
        "memory_mib": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total // 2**20,
        "max_link_gen": lambda gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        "max_link_width": lambda gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    }


def moving(nvml: Any) -> dict[str, Ask]:
    """What is asked every second. The driver measures PCIe traffic over 20 ms, and so long each of the two takes."""
    # renamed in 2023; both names give the same bits
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
        nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )
    found: dict[str, Ask] = {
        "sm_clock_mhz": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "mem_clock_mhz": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "power_w": lambda gpu: round(nvml.nvmlDeviceGetPowerUsage(gpu) / 1000, 1),
        "temperature_c": lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "memory_mib": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used // 2**20,
        "busy_percent": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "link_gen": lambda gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
        "link_width": lambda gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        "tx_mb_s": lambda gpu: _mb(nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)),
        "rx_mb_s": lambda gpu: _mb(nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)),
    }
    if reasons is not None:
        found["reasons"] = lambda gpu: int(reasons(gpu))
    return found


def lines(nvml: Any, clock: Callable[[], float], wait: Callable[[float], bool], interval_s: float) -> Iterator[Any]:
    """The objects to print. wait: sleeps so many seconds; False: it is time to end."""
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        yield {"problem": f"the NVIDIA driver cannot be asked: {error}"}
        return
    gpus: list[Any] = [None] * count
    first = [_ask(nvml, gpus, index, still(nvml)) for index in range(count)]
    yield {"gpus": [{"index": index, **facts} for index, facts in enumerate(first)]}
    asks = [moving(nvml) for _ in range(count)]
    while True:
        at = clock()
        yield {"at": round(at, 3), "gpus": [_ask(nvml, gpus, index, asks[index]) for index in range(count)]}
        if not wait(max(interval_s - (clock() - at), 0.05)):
            return


def _ask(nvml: Any, gpus: list[Any], index: int, asks: dict[str, Ask]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        if gpus[index] is None:
            gpus[index] = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"error": str(error)}
    for name, ask in list(asks.items()):
        try:
            found[name] = ask(gpus[index])
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                del asks[name]
            elif error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN, nvml.NVML_ERROR_NOT_FOUND):
                # a GPU that comes back has another handle
                gpus[index] = None
                return {"error": str(error)}
    return found


def _mb(kib: int) -> int:
    return round(kib * KIB_TO_MB)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _wait(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return not readable


def main(arguments: list[str]) -> int:
    try:
        import pynvml as nvml
    except ImportError:
        print(json.dumps({"problem": "nvidia-ml-py is not installed"}), flush=True)
        return 0
    interval = float(arguments[0]) if arguments else 1.0
    try:
        for line in lines(nvml, time.perf_counter, _wait, interval):
            print(json.dumps(line, separators=(",", ":")), flush=True)
    except BrokenPipeError:
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
