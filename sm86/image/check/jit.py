"""Compiles a small kernel with each compiler that a server uses at run time, for SM 8.6 and without a GPU.

Runs inside an image. Each answer is "" where machine code came out, else why not.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CUDA = '#include <cuda/std/cstdint>\nextern "C" __global__ void one(cuda::std::int32_t *out) { *out = 1; }\n'
_EXTENSION = "#include <Python.h>\n#include <cuda.h>\nCUresult one(void) { return cuInit(0); }\n"
_TRITON = """
import triton
import triton.language as tl


@triton.jit
def one(out):
    tl.store(out, 1.0)
"""
_TILELANG = """
import tilelang.language as T


@T.prim_func
def one(a: T.Tensor((128,), "float32"), b: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(128):
            b[i] = a[i] + 1.0
"""


def jit() -> dict[str, str]:
    """compiler -> "" or why it does not compile: nvcc, the C compiler for Triton's launchers, Triton, TileLang."""
    with tempfile.TemporaryDirectory(prefix="sm86-jit-") as folder:
        place = Path(folder)
        before = {name: os.environ.get(name) for name in ("TRITON_CACHE_DIR", "TILELANG_CACHE_DIR")}
        os.environ.update({name: str(place / name) for name in before})
        try:
            tests: dict[str, Callable[[Path], None]] = {
                "nvcc": _nvcc,
                "launcher": _launcher,
                "triton": _triton,
                "tilelang": _tilelang,
            }
            return {name: _why_not(test, place) for name, test in tests.items()}
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _why_not(test: Callable[[Path], None], place: Path) -> str:
    try:
        test(place)
    except subprocess.CalledProcessError as error:
        return " ".join(str(error.stderr).split())[-300:]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return ""


def _nvcc(place: Path) -> None:
    source, out = place / "one.cu", place / "one.cubin"
    source.write_text(_CUDA)
    nvcc = str(Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc")
    argv = [nvcc, "-arch=sm_86", "-cubin", "-o", str(out), str(source)]
    subprocess.run(argv, check=True, capture_output=True, text=True)
    _must_be_code(out.read_bytes())


def _launcher(place: Path) -> None:
    source = place / "one.c"
    source.write_text(_EXTENSION)
    triton = importlib.util.find_spec("triton")
    assert triton is not None and triton.origin is not None
    includes = [sysconfig.get_path("include"), str(Path(triton.origin).parent / "backends" / "nvidia" / "include")]
    argv = ["gcc", "-shared", "-fPIC", *(f"-I{path}" for path in includes), "-o", str(place / "one.so"), str(source)]
    subprocess.run(argv, check=True, capture_output=True, text=True)


def _triton(place: Path) -> None:
    kernel = _module(place, "sm86_triton_one", _TRITON).one
    compiler: Any = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 86, 32)
    done = importlib.import_module("triton").compile(compiler.ASTSource(kernel, {"out": "*fp32"}), target=target)
    _must_be_code(done.asm["cubin"])


def _tilelang(place: Path) -> None:
    function = _module(place, "sm86_tilelang_one", _TILELANG).one
    tilelang: Any = importlib.import_module("tilelang")
    target = tilelang.tvm.target.Target("cuda -arch=sm_86")
    with target:
        source = tilelang.lower(function, target=target).kernel_source
    # as TileLang's own run-time compiler does it, but for a chip that need not be there
    nvcc: Any = importlib.import_module("tilelang.contrib.nvcc")
    includes = (tilelang.env.TILELANG_TEMPLATE_PATH, tilelang.env.CUTLASS_INCLUDE_DIR)
    options = ["-std=c++17", *(f"-I{path}" for path in includes)]
    arch = ["-gencode", "arch=compute_86,code=sm_86"]
    _must_be_code(bytes(nvcc.compile_cuda(source, target_format="cubin", arch=arch, options=options)))


def _module(place: Path, name: str, text: str) -> Any:
    path = place / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _must_be_code(data: bytes) -> None:
    if data[:4] != b"\x7fELF":
        raise ValueError("what came out is no machine code")
