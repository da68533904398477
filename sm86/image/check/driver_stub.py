"""A stand-in for the GPU driver's library, for the time of a check on a machine without one. Never part of an image.

vLLM's libraries name libcuda.so.1, which comes with the driver. Every function of the stand-in answers that there is
no GPU, so libraries load and modules import, and nothing can seem to run.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

DRIVER = "libcuda.so.1"
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE of cuda.h."""


def ensure_driver(site: Path) -> str:
    """Load the driver's library, or a stand-in for the libraries below `site`; returns which: "driver", "stand-in".

    Raises OSError or CalledProcessError where neither can be had.
    """
    try:
        ctypes.CDLL(DRIVER, mode=ctypes.RTLD_GLOBAL)
        return "driver"
    except OSError:
        pass
    # what is loaded under this name serves every library that names it later, so the file may go
    with tempfile.TemporaryDirectory(prefix="sm86-driver-") as folder:
        source, library = Path(folder) / "driver.c", Path(folder) / DRIVER
        source.write_text(source_text(symbols(site)))
        argv = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(library), str(source)]
        subprocess.run(argv, check=True, capture_output=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return "stand-in"


def source_text(names: Iterable[str]) -> str:
    """C source of a library in which each of these functions answers that there is no GPU."""
    return "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in sorted({"cuInit", *names}))


def symbols(site: Path) -> set[str]:
    """Functions of the driver that the libraries below `site` ask the loader for."""
    found: set[str] = set()
    for pattern in ("vllm/**/*.so", "torch/lib/*.so", "triton/_C/*.so", "tilelang/lib/*.so", "tvm_ffi/lib/*.so"):
        for path in site.glob(pattern):
            listed = subprocess.run(["nm", "-D", "--undefined-only", str(path)], capture_output=True, text=True).stdout
            found |= set(re.findall(r"\bcu[A-Z]\w*", listed))
    # the CUDA libraries' own functions begin alike and are found in those libraries
    return {name for name in found if not re.match(r"cu(blas|dnn|fft|rand|sparse|solver|pti|file|da)", name, re.I)}
