"""Build the CUDA library: SM86 machine code, and PTX of compute_86 so that later GPUs run the same instructions.

    python -m sm86.backend.attention.build [OUTPUT]

The library has a C interface and needs no torch, so one build serves every torch and Python. It carries the hash of
its source; a library of another source is refused at load.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sm86.backend.refusal import Refused

SOURCE = Path(__file__).with_name("sparse_mla.cu")
LIBRARY = "libsm86_attention.so"
FLAGS = (
    "-O3",
    "-std=c++17",
    "-gencode=arch=compute_86,code=sm_86",
    "-gencode=arch=compute_86,code=compute_86",
    "-cudart=static",
    "-cudadevrt=none",
)


def source_hash() -> str:
    """First 16 hex digits of the SHA-256 of the CUDA source."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]


def find_nvcc() -> str | None:
    """nvcc on PATH, below CUDA_HOME, in the usual place, or of the Python package nvidia-cuda-nvcc."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or ()) if package else ():
        places += sorted(Path(folder).glob("cu[0-9]*"), reverse=True)
    found = (shutil.which(str(place / "bin/nvcc")) for place in places)
    return shutil.which("nvcc") or next((nvcc for nvcc in found if nvcc), None)


def link_flags(nvcc: str) -> list[str]:
    """Where the runtime library lies: a toolkit's own nvcc knows, the Python package's does not look into its lib/."""
    library = Path(nvcc).resolve().parent.parent / "lib"
    return [f"-L{library}"] if (library / "libcudart_static.a").is_file() else []


def cache_path() -> Path:
    """Where a library built on demand lies; one per source."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "sm86" / source_hash() / LIBRARY


def build(output: Path) -> Path:
    """Compile into `output` (written beside it and renamed). Raises Refused without nvcc or when it fails."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise Refused(
            "the attention library is not built and there is no nvcc",
            f"build it where CUDA 12.3 or newer is installed (python -m sm86.backend.attention.build {output})",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder) / LIBRARY
        define = f'-DSM86_SOURCE_HASH="{source_hash()}"'
        command = [
            nvcc,
            *FLAGS,
            *link_flags(nvcc),
            define,
            "--shared",
            "-Xcompiler",
            "-fPIC",
            str(SOURCE),
            "-o",
            str(made),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"nvcc failed on {SOURCE.name}: {done.stderr.strip()[-400:]}", "see nvcc's words above")
        os.replace(made, output)
    return output


def build_once(output: Path, make: Callable[[Path], Path] | None = None) -> Path:
    """`make` (here `build`) unless `output` is there; ranks that start together wait for the first of them."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return output if output.exists() else (make or build)(output)


def cuda_resources() -> list[tuple[str, str, int, int, int, int, str]]:
    """(kernel, form, registers, spill bytes, shared bytes, warps, PTX) of each CUDA kernel, from ptxas for sm_86."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise Refused("there is no nvcc", "install the CUDA compiler")
    with tempfile.TemporaryDirectory() as folder:
        base = [nvcc, "-O3", "-std=c++17", "-arch=compute_86"]
        ptx_file = Path(folder) / "kernel.ptx"
        subprocess.run([*base, "-ptx", str(SOURCE), "-o", str(ptx_file)], check=True, capture_output=True)
        command = [
            *base,
            "-code=sm_86",
            "-Xptxas",
            "-v",
            "-cubin",
            str(SOURCE),
            "-o",
            str(Path(folder) / "kernel.cubin"),
        ]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        ptx = ptx_file.read_text()
    rows = []
    for entry in log.split("Compiling entry function")[1:]:
        shape = re.search(r"sparse_mlaILi(\d)ELi(\d)E", entry)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        if shape is None or spills is None or registers is None:
            raise RuntimeError(f"unknown words of ptxas: {entry[:300]}")
        static = re.search(r"(\d+) bytes smem", entry)
        tiles, combine = int(shape[1]), int(shape[2])
        form = f"{tiles * 16} keys, {('single', 'last block', 'shared')[combine]}"
        shared = dynamic_shared_bytes(tiles * 16) + (int(static[1]) if static else 0)
        rows.append(("sparse_mla", form, int(registers[1]), int(spills[1]) + int(spills[2]), shared, 8, ptx))
    return sorted(rows)


def dynamic_shared_bytes(tile_keys: int) -> int:
    """What the launch asks for: query, records and scales, partial scores, mask."""
    return 16 * 32 * 16 + tile_keys * (576 + 8) + 8 * 8 * 16 * 4 + tile_keys * 4


if __name__ == "__main__":
    try:
        print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else cache_path()))
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(2)
