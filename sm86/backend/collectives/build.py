"""Build the collective library: SM86 machine code, and PTX of compute_86 for later GPUs.

python -m sm86.backend.collectives.build [OUTPUT]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sm86.backend import nvcc
from sm86.backend.collectives.plan import NAMES

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "host_allreduce.cu"
HEADERS = (FOLDER / "segment.h", FOLDER / "protocol.h", FOLDER / "host_api.h")
LIBRARY = nvcc.CudaLibrary("libsm86_collectives.so", "collective", "sm86.backend.collectives.build", (SOURCE, *HEADERS))


def build(output: Path) -> Path:
    """Compile into `output`. Raises Refused without nvcc or when it fails."""
    nvcc.build(LIBRARY, output)
    return output


def cuda_resources(output: Path | None = None) -> list[nvcc.Row]:
    """What each kernel needs, from ptxas for sm_86; the library made for it is kept as `output`, if that is given."""
    return nvcc.resources(LIBRARY, resources_of, output)


def resources_of(log: str, ptx: str) -> list[nvcc.Row]:
    """ptxas' words -> one row for each all-reduce kernel. Raises RuntimeError for words it does not know."""
    rows = []
    for entry in nvcc.entries(log):
        shape = re.search(r"all_reduceILi(\d)ELi(\d)ELi(\d)E", entry.name)
        if shape is None:
            continue  # the probe of the read latency
        form = f"{shape[1]} ranks, {NAMES[int(shape[2])]}, {('bf16', 'fp32')[int(shape[3])]}"
        rows.append(("host_allreduce", form, entry.registers, entry.spilled, entry.shared, 16, ptx))
    return sorted(rows)


if __name__ == "__main__":
    sys.exit(nvcc.main(LIBRARY, sys.argv[1:]))
