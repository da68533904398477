"""The conditions of a run, for its record: what served, on which machine. A fact that cannot be had is None."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm86.host.engine import ServerEngine
from sm86.json_text import parse as parse_json
from sm86.manifest import Value
from sm86.record import Conditions
from sm86.spec import Envelope

CPU_MARK = "CPU"
"""How the numbers of the embedded engine are called wherever they are shown."""

GPU_QUERY = Path(__file__).with_name("gpu_query.py")
GPU_QUERY_S = 20.0
"""Eight GPUs without persistence mode take seconds to wake; a hung driver never answers."""


def conditions(engine: ServerEngine, envelope: Envelope, manifest: Mapping[str, Value] | None) -> Conditions:
    """What the numbers of this server depend on. manifest: the launcher's, from the server's log; None: it has none.

    Takes at most about GPU_QUERY_S seconds; raises nothing of its own for a fact that is missing.
    """
    told = manifest or {}
    driver, gpus = gpu_facts() if envelope.uses_gpu else (None, ())
    return Conditions(
        engine=envelope.engine,
        mark="" if envelope.uses_gpu else CPU_MARK,
        image_id=engine.state().image_id,
        lock_hash=_text(told.get("lock_hash")),
        model=envelope.model.repository,
        model_hash=_text(told.get("model_hash")),
        git_rev=_text(told.get("git_rev")),
        vllm_version=_text(told.get("vllm_version")),
        driver=driver,
        gpus=gpus,
        overrides=_overrides(told),
        host=host_facts(),
    )


def host_facts() -> dict[str, Any]:
    """CPU model, cores this process may use, memory in MiB, kernel, Python; only what is known."""
    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": _memory_mib(),
        "kernel": platform.release(),
        "system": platform.system(),
    }
    return {name: value for name, value in facts.items() if value}


def gpu_facts() -> tuple[str | None, tuple[Mapping[str, Any], ...]]:
    """Driver version, and one mapping per GPU (see `gpu_query`); (None, ()) where there are none or NVML hangs."""
    child = subprocess.Popen(
        (sys.executable, "-P", str(GPU_QUERY)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        answer = parse_json(child.communicate(timeout=GPU_QUERY_S)[0])
    except subprocess.TimeoutExpired:
        # no waiting for its end: stuck inside the driver it cannot even be killed
        child.kill()
        return None, ()
    except ValueError:
        return None, ()
    return answer.get("driver"), tuple(answer.get("gpus", ()))


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (ValueError, OSError):
        return None


def _text(value: Value) -> str | None:
    return str(value) if value not in (None, "", "none", "unknown") else None


def _overrides(manifest: Mapping[str, Value]) -> dict[str, str]:
    """The run's settings that had an effect, from `override.NAME` entries."""
    found = {}
    for key, entry in manifest.items():
        if key.startswith("override.") and isinstance(entry, dict) and entry.get("state") == "effective":
            found[key.removeprefix("override.")] = str(entry.get("value"))
    return found
