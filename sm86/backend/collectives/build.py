"""Build the collective library: SM86 machine code, and PTX of compute_86 for later GPUs.

    python -m sm86.backend.collectives.build [OUTPUT]

It has a C interface, needs no torch, and carries the hash of its sources; a library of others is refused at load.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from sm86.backend.attention.build import FLAGS, find_nvcc, link_flags
from sm86.backend.collectives.plan import NAMES
from sm86.backend.refusal import Refused

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "host_allreduce.cu"
HEADERS = (FOLDER / "segment.h", FOLDER / "protocol.h", FOLDER / "host_api.h")
LIBRARY = "libsm86_collectives.so"


def source_hash() -> str:
    """First 16 hex digits of the SHA-256 of all sources."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in (SOURCE, *HEADERS))).hexdigest()[:16]


def cache_path() -> Path:
    """Where a library built on demand lies; one per source."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "sm86" / source_hash() / LIBRARY


def build(output: Path) -> Path:
    """Compile into `output` (written beside it and renamed). Raises Refused without nvcc or when it fails."""
    _compile(output)
    return output


def cuda_resources(output: Path | None = None) -> list[tuple[str, str, int, int, int, int, str]]:
    """(kernel, form, registers, spill bytes, shared bytes, warps, PTX) of each kernel, from ptxas for sm_86.

    The library that was compiled for it is kept as `output`, if that is given.
    """
    if output is not None:
        return resources_of(*_compile(output))
    with tempfile.TemporaryDirectory() as folder:
        return resources_of(*_compile(Path(folder) / LIBRARY))


def _compile(output: Path) -> tuple[str, str]:
    """(what ptxas said, the PTX): one run of nvcc for all of it, which takes long on a busy machine."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise Refused(
            "the collective library is not built and there is no nvcc",
            f"build it where CUDA 12.3 or newer is installed (python -m sm86.backend.collectives.build {output})",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder) / LIBRARY
        define = f'-DSM86_SOURCE_HASH="{source_hash()}"'
        shared = ["--shared", "-Xcompiler", "-fPIC"]
        told = ["-Xptxas", "-v", "--keep", "--keep-dir", folder]
        command = [nvcc, *FLAGS, *link_flags(nvcc), define, *shared, *told, str(SOURCE), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"nvcc failed on {SOURCE.name}: {done.stderr.strip()[-400:]}", "see nvcc's words above")
        ptx = next(Path(folder).glob("*.ptx")).read_text()
        os.replace(made, output)
    return done.stderr, ptx


def resources_of(log: str, ptx: str) -> list[tuple[str, str, int, int, int, int, str]]:
    """ptxas' words -> one row for each all-reduce kernel. Raises RuntimeError for words it does not know."""
    rows = []
    for entry in log.split("Compiling entry function")[1:]:
        shape = re.search(r"all_reduceILi(\d)ELi(\d)ELi(\d)E", entry.split("\n")[0])
        spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        if spills is None or registers is None:
            raise RuntimeError(f"unknown words of ptxas: {entry[:300]}")
        if shape is None:
            continue  # the probe of the read latency
        static = re.search(r"(\d+) bytes smem", entry)
        form = f"{shape[1]} ranks, {NAMES[int(shape[2])]}, {('bf16', 'fp32')[int(shape[3])]}"
        spilled = sum(int(spills[k]) for k in (1, 2, 3))
        rows.append(("host_allreduce", form, int(registers[1]), spilled, int(static[1]) if static else 0, 16, ptx))
    return sorted(rows)


if __name__ == "__main__":
    try:
        print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else cache_path()))
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(2)
