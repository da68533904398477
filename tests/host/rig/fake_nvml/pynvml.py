"""A driver for tests: eight cards behind NVML's calls, and what can be wrong with it, by the variable FAKE_NVML."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

MODE = os.environ.get("FAKE_NVML", "ok")
NVML_NVLINK_MAX_LINKS = 2


class NVMLError(Exception):
    def __init__(self, value: int, words: str) -> None:
        super().__init__(words)
        self.value = value


def _refuse(value: int, words: str):
    raise NVMLError(value, words)


def nvmlInit() -> None:
    if MODE == "hang at start":
        time.sleep(600)
    told = {"no library": (12, "NVML Shared Library Not Found"), "no driver": (9, "Driver Not Loaded"),
            "mismatch": (18, "Driver/library version mismatch"), "unknown": (999, "Unknown Error")}  # fmt: skip
    if MODE in told:
        _refuse(*told[MODE])


def nvmlDeviceGetCount() -> int:
    return {"none": 0, "three": 3}.get(MODE, 8)


def nvmlSystemGetDriverVersion() -> str | bytes:
    return b"580.126.09" if MODE == "bytes" else "580.126.09"


def nvmlSystemGetCudaDriverVersion() -> int:
    return 13000


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if MODE == "lost" and index == 5:
        _refuse(15, "GPU is lost")
    if MODE == "hang at 3" and index == 3:
        time.sleep(600)
    if MODE == "dies at 3" and index == 3:
        os._exit(3)
    return index


def _bus(gpu: int) -> str:
    # NVML's own order is by speed on some machines: here it is the bus's, backwards
    return f"00000000:{0x01 + 0x10 * (7 - gpu):02X}:00.0"


def nvmlDeviceGetPciInfo(gpu: int) -> SimpleNamespace:
    return SimpleNamespace(busId=_bus(gpu).encode() if MODE == "bytes" else _bus(gpu))


def nvmlDeviceGetTopologyCommonAncestor(one: int, other: int) -> int:
    return 50 if (one < 4) != (other < 4) else 30


def nvmlDeviceGetP2PStatus(one: int, other: int, _kind: int) -> int:
    return 1 if {one, other} == {0, 1} else 0


def nvmlDeviceGetNvLinkState(gpu: int, link: int) -> int:
    if MODE != "nvlink":
        _refuse(3, "Not Supported")
    return 1 if gpu in (0, 1) else 0


def nvmlDeviceGetNvLinkRemotePciInfo(gpu: int, link: int) -> SimpleNamespace:
    return SimpleNamespace(busId=_bus(1 - gpu))


VALUES = {
    "UUID": lambda gpu: f"GPU-{gpu}",
    "Name": lambda gpu: "NVIDIA GeForce RTX 3090",
    "Serial": lambda gpu: _refuse(3, "Not Supported"),
    "CudaComputeCapability": lambda gpu: (8, 6),
    "MemoryInfo": lambda gpu: SimpleNamespace(total=24 << 30, free=23 << 30, used=1 << 30),
    "BAR1MemoryInfo": lambda gpu: SimpleNamespace(bar1Total=256 << 20, bar1Used=1 << 20),
    "EccMode": lambda gpu: _refuse(3, "Not Supported"),
    "TotalEccErrors": lambda gpu, kind, counter: _refuse(3, "Not Supported"),
    "ClockInfo": lambda gpu, kind: 210,
    "MaxClockInfo": lambda gpu, kind: 2100,
    "PowerUsage": lambda gpu: 24600,
    "EnforcedPowerLimit": lambda gpu: 350000,
    "PowerManagementDefaultLimit": lambda gpu: 350000,
    "PowerManagementLimitConstraints": lambda gpu: [100000, 366000],
    "Temperature": lambda gpu, sensor: 40,
    "TemperatureThreshold": lambda gpu, kind: 95,
    "CurrentClocksEventReasons": lambda gpu: 0x41,
    "UtilizationRates": lambda gpu: SimpleNamespace(gpu=96),
    "PersistenceMode": lambda gpu: 1,
    "DisplayActive": lambda gpu: 0,
    "MigMode": lambda gpu: _refuse(3, "Not Supported"),
    "ComputeMode": lambda gpu: 0,
    "CurrPcieLinkGeneration": lambda gpu: 4,
    "CurrPcieLinkWidth": lambda gpu: 4,
    "MaxPcieLinkGeneration": lambda gpu: 4,
    "MaxPcieLinkWidth": lambda gpu: 16,
    "PcieReplayCounter": lambda gpu: 2**64 - 1,
    "ComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=4711, usedGpuMemory=None)],
    "GraphicsRunningProcesses": lambda gpu: [],
}


def __getattr__(name: str):
    wanted = name.removeprefix("nvmlDeviceGet")
    if wanted == name or wanted not in VALUES:
        raise AttributeError(name)
    if MODE == "half" and wanted not in ("UUID", "Name"):
        return lambda *arguments: _refuse(3, "Not Supported")
    if MODE == "odd" and wanted == "PowerUsage":
        raise AttributeError(name)
    return VALUES[wanted]
