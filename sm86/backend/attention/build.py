"""Build the attention library: SM86 machine code, and PTX of compute_86 for later GPUs.

python -m sm86.backend.attention.build [OUTPUT]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sm86.backend import nvcc

SOURCE = Path(__file__).with_name("sparse_mla.cu")
LIBRARY = nvcc.CudaLibrary("libsm86_attention.so", "attention", "sm86.backend.attention.build", (SOURCE,))


def build(output: Path) -> Path:
    """Compile into `output`. Raises Refused without nvcc or when it fails."""
    nvcc.build(LIBRARY, output)
    return output


def cuda_resources(output: Path | None = None) -> list[nvcc.Row]:
    """What each kernel needs, from ptxas for sm_86; the library made for it is kept as `output`, if that is given."""
    return nvcc.resources(LIBRARY, resources_of, output)


def resources_of(log: str, ptx: str) -> list[nvcc.Row]:
    """ptxas' words -> one row for each attention kernel. Raises RuntimeError for words it does not know."""
    rows = []
    for entry in nvcc.entries(log):
        shape = re.search(r"sparse_mlaILi(\d)ELi(\d)E", entry.name)
        if shape is None:
            raise RuntimeError(f"unknown kernel: {entry.name[:300]}")
        keys = int(shape[1]) * 16
        form = f"{keys} keys, {('single', 'last block', 'shared')[int(shape[2])]}"
        shared = dynamic_shared_bytes(keys) + entry.shared
        rows.append(("sparse_mla", form, entry.registers, entry.spilled, shared, 8, ptx))
    return sorted(rows)


def dynamic_shared_bytes(tile_keys: int) -> int:
    """What the launch asks for: query, records and scales, partial scores, mask."""
    return 16 * 32 * 16 + tile_keys * (576 + 8) + 8 * 8 * 16 * 4 + tile_keys * 4


if __name__ == "__main__":
    sys.exit(nvcc.main(LIBRARY, sys.argv[1:]))
