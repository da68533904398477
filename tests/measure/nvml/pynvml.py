"""NVML as a test wants it: what FAKE_NVML says, a JSON object, is what its GPUs answer.

    {"gpus": 2, "kind": "steady" | "power" | "lowered" | "thermal" | "narrow" | "gen1" | "uneven" | "vanishes" |
     "returns" | "unsupported" | "hangs" | "hangs later" | "dies" | "no driver", "slow_s": seconds}

slow_s: what a question about PCIe traffic takes.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

TOLD = json.loads(os.environ.get("FAKE_NVML", "{}"))
KIND, COUNT, SLOW_S = TOLD.get("kind", "steady"), TOLD.get("gpus", 2), TOLD.get("slow_s", 0.0)
AFTER = 3

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 3, 6, 9
NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_UNKNOWN = 13, 15, 999
WORDS = {3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded", 15: "GPU is lost", 999: "Unknown Error"}

rounds = [0] * COUNT


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(WORDS[value])
        self.value = value


def _question(gpu: int, first: bool = False) -> None:
    """Every question passes here; `first` is the one that begins a second."""
    if first:
        rounds[gpu] += 1
    late = rounds[gpu] > AFTER
    if KIND == "unsupported":
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    if KIND == "hangs" or (KIND == "hangs later" and late):
        time.sleep(3600)
    if KIND == "dies" and late:
        os._exit(139)
    if gpu == COUNT - 1 and late and (KIND == "vanishes" or (KIND == "returns" and rounds[gpu] <= AFTER + 2)):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)


def nvmlInit() -> None:
    if KIND == "no driver":
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)


def nvmlDeviceGetCount() -> int:
    return COUNT


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(gpu: int) -> str:
    _question(gpu)
    return f"GPU-{gpu}"


def nvmlDeviceGetName(gpu: int) -> str:
    _question(gpu)
    return "NVIDIA GeForce RTX 3090"


def nvmlDeviceGetMaxClockInfo(gpu: int, which: int) -> int:
    _question(gpu)
    return 2100


def nvmlDeviceGetEnforcedPowerLimit(gpu: int) -> int:
    _question(gpu)
    return 200_000 if KIND in ("power", "lowered") else 350_000


def nvmlDeviceGetPowerManagementDefaultLimit(gpu: int) -> int:
    _question(gpu)
    return 350_000


def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:
    _question(gpu)
    return SimpleNamespace(total=24 << 30, used=23 << 30)


def nvmlDeviceGetMaxPcieLinkGeneration(gpu: int) -> int:
    _question(gpu)
    return 4


def nvmlDeviceGetMaxPcieLinkWidth(gpu: int) -> int:
    _question(gpu)
    return 16


def nvmlDeviceGetClockInfo(gpu: int, which: int) -> int:
    _question(gpu, first=which == NVML_CLOCK_SM)
    if which == NVML_CLOCK_MEM:
        return 9751
    held = KIND in ("power", "lowered", "thermal") or (KIND == "uneven" and gpu == 1)
    return 1100 if held else 1800


def nvmlDeviceGetPowerUsage(gpu: int) -> int:
    _question(gpu)
    return {"power": 199_000, "lowered": 198_500}.get(KIND, 290_000)


def nvmlDeviceGetTemperature(gpu: int, which: int) -> int:
    _question(gpu)
    return 93 if KIND == "thermal" else 64


def nvmlDeviceGetUtilizationRates(gpu: int) -> SimpleNamespace:
    _question(gpu)
    return SimpleNamespace(gpu=99)


def nvmlDeviceGetCurrPcieLinkGeneration(gpu: int) -> int:
    _question(gpu)
    return 1 if KIND == "gen1" else 4


def nvmlDeviceGetCurrPcieLinkWidth(gpu: int) -> int:
    _question(gpu)
    return 4 if KIND == "narrow" and gpu == 1 else 16


def nvmlDeviceGetPcieThroughput(gpu: int, which: int) -> int:
    _question(gpu)
    time.sleep(SLOW_S)
    return 6_000_000 + which


def nvmlDeviceGetCurrentClocksEventReasons(gpu: int) -> int:
    _question(gpu)
    if KIND == "lowered":
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return {"power": 0x4, "thermal": 0x20 | 0x40}.get(KIND, 0)
