"""The question to NVML, as a program of its own (see `gpus`): prints one JSON object, imports nothing of this package.

{"driver": "580.126.09", "gpus": [{"index", "uuid", "name", "capability", "memory_total", "memory_free"}, ...]}
{"problem": "...", "mend": "..."}
"""

from __future__ import annotations

import json
from typing import Any


def _query() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError:
        return {"problem": "nvidia-ml-py is not installed, so nothing can be asked about the GPUs",
                "mend": "install nvidia-ml-py beside the engine"}  # fmt: skip
    try:
        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found = []
        for place in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(place)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found.append(
                (
                    _text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                    {
                        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
                        "name": _text(pynvml.nvmlDeviceGetName(handle)),
                        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                        "memory_total": int(memory.total),
                        "memory_free": int(memory.free),
                    },
                )
            )
    except pynvml.NVMLError as error:
        return {"problem": f"the NVIDIA driver cannot be asked: {error}", "mend": _mend(str(error))}
    found.sort(key=lambda pair: pair[0].lower())
    return {"driver": driver, "gpus": [{"index": index, **gpu} for index, (_, gpu) in enumerate(found)]}


def _mend(error: str) -> str:
    if "Unknown Error" in error:
        return "the container lost its GPUs (seen after systemctl daemon-reload): start it again"
    if "version mismatch" in error:
        return "the driver was updated without a reboot: reboot the host"
    return "see whether nvidia-smi works on the host, and give the container GPUs"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps(_query()))
