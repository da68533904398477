"""GPUs, driver and topology as NVML tells them, from `nvml_child`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sm86.doctor.facts import Gpu, GpuProcess, Pcie
from sm86.host.rig.child import Ended, json_lines

CHILD = Path(__file__).with_name("nvml_child.py")
SILENCE_S = 20.0
"""Cards without persistence mode are started anew for the question, some seconds each."""

TOTAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What NVML said. state: as `Driver.nvml`; gpus: in PCI bus order, None where their number is not known; links and
    peers: squares in the same order."""

    state: str
    problem: str | None = None
    version: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] | None = None
    links: tuple[tuple[str | None, ...], ...] | None = None
    peers: tuple[tuple[str | None, ...], ...] | None = None


def ask(argv: tuple[str, ...] | None = None, silence_s: float = SILENCE_S, total_s: float = TOTAL_S) -> Told:
    """Ask in a child. argv: another program than `nvml_child` (tests)."""
    command = argv or (sys.executable, "-P", str(CHILD))
    driver: Mapping[str, Any] = {}
    count: int | None = None
    gpus: list[Gpu] = []
    pairs: list[list[Any]] = []
    state, problem = "ok", None
    for item in json_lines(command, silence_s, total_s):
        if isinstance(item, Ended):
            if item.how == "silent":
                state, problem = "hang", f"no answer within {silence_s:.0f} s"
            elif item.how == "missing":
                # that says nothing of the driver
                state, problem = "missing", f"{command[0]} could not be started to ask it"
            elif count is None and state == "ok":
                state, problem = "error", f"the question to NVML ended without an answer (code {item.code})"
            elif item.code and state == "ok":
                state, problem = "error", f"the question to NVML ended with code {item.code}"
        elif "problem" in item:
            state, problem = str(item["problem"]), str(item.get("words") or "") or None
        elif "driver" in item:
            driver = item["driver"] if isinstance(item["driver"], dict) else {}
            count = item.get("count") if isinstance(item.get("count"), int) else None
        elif isinstance(item.get("gpu"), dict):
            gpus.append(_gpu(len(gpus), item["gpu"]))
        elif isinstance(item.get("pair"), list):
            pairs.append(item["pair"])
    if count is not None and len(gpus) < count:
        words = (
            "the driver went silent before it came to this GPU" if state == "hang" else "the driver told nothing of it"
        )
        gpus += [Gpu(place, problem=words) for place in range(len(gpus), count)]
    order = sorted(range(len(gpus)), key=lambda place: (_bus_key(gpus[place].bus_id), place))
    cuda = driver.get("cuda")
    return Told(
        state,
        problem,
        driver.get("version"),
        (int(cuda[0]), int(cuda[1])) if isinstance(cuda, list) and len(cuda) == 2 else None,
        tuple(_at(gpus[place], index) for index, place in enumerate(order)) if count is not None else None,
        _square(order, pairs, 2),
        _square(order, pairs, 3),
    )


def _at(gpu: Gpu, index: int) -> Gpu:
    return replace(gpu, index=index)


def _bus_key(bus_id: str | None) -> str:
    """Bus ids in order; cards without one come last, where NVML had them."""
    return (bus_id or "~").lower()


def _square(order: list[int], pairs: list[list[Any]], which: int) -> tuple[tuple[str | None, ...], ...] | None:
    told = {frozenset(pair[:2]): pair[which] for pair in pairs if len(pair) == 4}
    if not any(told.values()):
        return None
    return tuple(tuple("X" if one == other else told.get(frozenset((one, other))) for other in order) for one in order)


def _gpu(index: int, told: Mapping[str, Any]) -> Gpu:
    capability = told.get("capability")
    processes = told.get("processes")
    utilization = told.get("utilization")
    return Gpu(
        index=index,
        pcie=Pcie(
            generation=told.get("generation"),
            width=told.get("width"),
            max_generation=told.get("max_generation"),
            max_width=told.get("max_width"),
            replays=told.get("replays"),
            busy=None if utilization is None else utilization >= 10,
        ),
        capability=(capability[0], capability[1]) if isinstance(capability, list) and len(capability) == 2 else None,
        throttle=tuple(told["throttle"]) if isinstance(told.get("throttle"), list) else None,
        processes=tuple(GpuProcess(item["pid"], item.get("memory")) for item in processes)
        if isinstance(processes, list)
        else None,
        **{name: told[name] for name in PLAIN if name in told},
    )


PLAIN = (
    "uuid",
    "name",
    "bus_id",
    "serial",
    "memory_total",
    "memory_free",
    "memory_used",
    "bar1_total",
    "bar1_used",
    "ecc",
    "ecc_errors",
    "sm_clock",
    "sm_clock_max",
    "mem_clock",
    "mem_clock_max",
    "power",
    "power_limit",
    "power_limit_default",
    "power_limit_max",
    "temperature",
    "temperature_slowdown",
    "utilization",
    "persistence",
    "display",
    "mig",
    "compute_mode",
    "problem",
)
