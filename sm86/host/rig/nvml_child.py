"""The questions to NVML, as a program of its own: prints one JSON object a line, as soon as it is known.

    {"driver": {"version": "580.126.09", "cuda": [13, 0]}, "count": 8}
    {"gpu": {"bus_id": "00000000:01:00.0", "uuid": ..., ...}}         one a GPU, in NVML's order
    {"pair": [0, 1, "PHB", "CNS"]}                                     one a pair: link, peer access
    {"problem": "mismatch", "words": "..."}                            instead, or after what went well

It runs apart because a driver that hangs cannot be interrupted, and line by line because what it told before it hung
is still true. Imports nothing of this package: another Python may run it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
PEERS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
NO_NUMBER = 2**63
"""NVML writes its "not available" as the largest number of a field's type."""


def told() -> Iterator[dict[str, Any]]:
    """Everything, in the order of the module's docstring."""
    try:
        import pynvml as nvml
    except ImportError:
        yield {"problem": "missing", "words": "the Python package nvidia-ml-py is not installed"}
        return
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except Exception as error:
        yield {"problem": _kind(nvml, error), "words": _words(error)}
        return
    yield {"driver": _facts({"version": lambda: _text(nvml.nvmlSystemGetDriverVersion()), "cuda": lambda: _cuda(nvml)}),
           "count": count}  # fmt: skip
    handles: list[Any] = []
    for place in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(place)
        except Exception as error:
            handles.append(None)
            yield {"gpu": {"problem": _words(error)}}
            continue
        handles.append(handle)
        yield {"gpu": _facts(_questions(nvml, handle))}
    lanes = {place: _nvlinks(nvml, handle) for place, handle in enumerate(handles) if handle is not None}
    buses = {place: _bus(nvml, handle) for place, handle in enumerate(handles) if handle is not None}
    for one in range(count):
        for other in range(one + 1, count):
            if handles[one] is not None and handles[other] is not None:
                many = lanes[one].get(buses[other] or "?", 0)
                yield {"pair": [one, other, *_pair(nvml, handles[one], handles[other], many)]}


def _questions(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    memory = _once(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu))
    bar1 = _once(lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(gpu))
    return {
        "bus_id": lambda: _text(nvml.nvmlDeviceGetPciInfo(gpu).busId),
        "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(gpu)),
        "name": lambda: _text(nvml.nvmlDeviceGetName(gpu)),
        "serial": lambda: _text(nvml.nvmlDeviceGetSerial(gpu)),
        "capability": lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
        "memory_total": lambda: int(memory().total),
        "memory_free": lambda: int(memory().free),
        "memory_used": lambda: int(memory().used),
        "bar1_total": lambda: int(bar1().bar1Total),
        "bar1_used": lambda: int(bar1().bar1Used),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
        "ecc_errors": lambda: int(nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0)),
        "sm_clock": lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, 1)),
        "sm_clock_max": lambda: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, 1)),
        "mem_clock": lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, 2)),
        "mem_clock_max": lambda: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, 2)),
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "power_limit": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "power_limit_default": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
        "power_limit_max": lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)[1] / 1000,
        "temperature": lambda: int(nvml.nvmlDeviceGetTemperature(gpu, 0)),
        "temperature_slowdown": lambda: int(nvml.nvmlDeviceGetTemperatureThreshold(gpu, 1)),
        "throttle": lambda: _reasons(nvml, gpu),
        "utilization": lambda: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
        "display": lambda: bool(nvml.nvmlDeviceGetDisplayActive(gpu)),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
        "compute_mode": lambda: COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(gpu)),
        "generation": lambda: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
        "width": lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
        "max_generation": lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
        "max_width": lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
        "replays": lambda: int(nvml.nvmlDeviceGetPcieReplayCounter(gpu)),
        "processes": lambda: _processes(nvml, gpu),
    }


def _facts(questions: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """What was answered. One question that the card does not know, or a library too old for it, is no answer; nothing
    that it raises may end the others."""
    found: dict[str, Any] = {}
    for name, ask in questions.items():
        try:
            value = ask()
        except Exception as error:
            if "lost" in str(error).lower():
                found["problem"] = _words(error)
            continue
        if value is not None and not (isinstance(value, int | float) and value >= NO_NUMBER):
            found[name] = value
    return found


def _once(ask: Callable[[], Any]) -> Callable[[], Any]:
    kept: list[Any] = []

    def answer() -> Any:
        if not kept:
            kept.append(ask())
        return kept[0]

    return answer


def _cuda(nvml: Any) -> list[int]:
    number = int(nvml.nvmlSystemGetCudaDriverVersion())
    return [number // 1000, number % 1000 // 10]


def _reasons(nvml: Any, gpu: Any) -> list[str]:
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    try:
        mask = int(ask(gpu)) if ask else int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
    except Exception:
        # a driver from before the new name
        mask = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
    return [name for bit, name in REASONS.items() if mask & bit]


def _processes(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in ask(gpu):
            memory = process.usedGpuMemory
            known = memory is not None and 0 <= int(memory) < NO_NUMBER
            found[int(process.pid)] = {"pid": int(process.pid), "memory": int(memory) if known else None}
    return list(found.values())


def _bus(nvml: Any, gpu: Any) -> str | None:
    try:
        return _text(nvml.nvmlDeviceGetPciInfo(gpu).busId).lower()
    except Exception:
        return None


def _nvlinks(nvml: Any, gpu: Any) -> dict[str, int]:
    """How many NVLinks lead to which bus id; cards that reach each other through an NVSwitch name the switch."""
    found: dict[str, int] = {}
    for number in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(gpu, number):
                continue
            far = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, number).busId).lower()
        except Exception:
            # a card without this link says so for each further one, too
            break
        found[far] = found.get(far, 0) + 1
    return found


def _pair(nvml: Any, one: Any, other: Any, lanes: int) -> tuple[str | None, str | None]:
    link: str | None = f"NV{lanes}" if lanes else None
    peer: str | None = None
    if link is None:
        try:
            link = LEVELS.get(int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)))
        except Exception:
            link = None
    try:
        peer = PEERS.get(int(nvml.nvmlDeviceGetP2PStatus(one, other, 0)))
    except Exception:
        peer = None
    return link, peer


def _kind(nvml: Any, error: Exception) -> str:
    number = getattr(error, "value", None)
    if number == getattr(nvml, "NVML_ERROR_LIBRARY_NOT_FOUND", 12):
        return "missing"
    if number == getattr(nvml, "NVML_ERROR_DRIVER_NOT_LOADED", 9):
        return "no driver"
    if number == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18):
        return "mismatch"
    return "error"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    for line in told():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
