"""Compiles vLLM's kernel libraries for SM 8.6. Runs inside the image's native stage, or by hand:

    python -m sm86.image.native.build --source vllm-0.26.0.tar.gz --out DIR [--ptx] [--jobs N]

Needs the packages of docker/locks/native.txt and gcc. Writes DIR/vllm/<target>.abi3.so and
DIR/native.json (what was built, from what, left out what, for which architectures, in what time).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from sm86.errors import CouldNotRun, Sm86Error
from sm86.files import write_atomic
from sm86.image.fatbin import architectures
from sm86.image.native.jobs import parallel_jobs
from sm86.image.native.patch import TARGETS, patch
from sm86.image.native.toolchain import DRIVER, Toolchain, find_toolchain


def build(source: Path, out: Path, work: Path, ptx: bool = False, jobs: int | None = None) -> dict[str, object]:
    """Build every target and return what `native.json` says. Raises CouldNotRun; `out` then holds no library."""
    started = time.monotonic()
    toolchain = find_toolchain()
    tree = _unpack(source, work)
    cmake = tree / "CMakeLists.txt"
    patched = patch(cmake.read_text(), ptx)
    cmake.write_text(patched.text)
    jobs = jobs or parallel_jobs(os.cpu_count() or 1, _memory_gib())
    environment = toolchain.environment(dict(os.environ))
    folder = work / "build"
    _run(_configure(toolchain, tree, folder, work), environment, "CMake could not configure the native build")
    _run(["ninja", "-C", str(folder), f"-j{jobs}", *TARGETS], environment, "the native build failed")
    libraries = {target: _finish(folder, target, work / "finished") for target in TARGETS}
    record = {
        "source": source.name,
        "nvcc": toolchain.nvcc_version,
        "jobs": jobs,
        "ptx": ptx,
        "left_out": list(patched.left_out),
        "libraries": {f"vllm/{path.name}": _facts(path) for path in libraries.values()},
        "seconds": round(time.monotonic() - started),
    }
    for path in libraries.values():
        target = out / "vllm" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    write_atomic(out / "native.json", json.dumps(record, indent=2) + "\n")
    return record


def _unpack(source: Path, work: Path) -> Path:
    try:
        with tarfile.open(source) as archive:
            # Debian 12's Python knows no filter; the archive's hash was checked before it came here
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(work)
    except (OSError, tarfile.TarError) as error:
        raise CouldNotRun(f"cannot unpack {source}: {error}", "download vLLM's source distribution again") from None
    trees = [path.parent for path in work.glob("*/CMakeLists.txt")]
    if len(trees) != 1:
        raise CouldNotRun(f"{source} holds no CMake project", "give vLLM's source distribution")
    return trees[0]


def _configure(toolchain: Toolchain, tree: Path, folder: Path, work: Path) -> list[str]:
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "VLLM_PYTHON_EXECUTABLE": sys.executable,
        "VLLM_TARGET_DEVICE": "cuda",
        "FETCHCONTENT_BASE_DIR": work / "fetched",
        "CMAKE_CUDA_COMPILER": toolchain.cuda / "bin" / "nvcc",
        "CUDA_TOOLKIT_ROOT_DIR": toolchain.cuda,
        "CUDAToolkit_ROOT": toolchain.cuda,
    }
    return ["cmake", "-G", "Ninja", "-S", str(tree), "-B", str(folder), *(f"-D{k}={v}" for k, v in settings.items())]


def _finish(folder: Path, target: str, finished: Path) -> Path:
    """Copy the linked library, without its symbol table, and make sure that it names the driver's library.

    The linker drops a stub whose symbols nobody uses; without the name in NEEDED the library then fails to
    load on a rig with `undefined symbol: cuGetProcAddress_v2`.
    """
    name = f"{target}.abi3.so"
    finished.mkdir(exist_ok=True)
    path = finished / name
    shutil.copyfile(folder / name, path)
    _run(["strip", "--strip-unneeded", str(path)], dict(os.environ), f"cannot strip {name}")
    shown = subprocess.run(["patchelf", "--print-needed", str(path)], capture_output=True, text=True, check=True)
    if DRIVER not in shown.stdout.split():
        _run(["patchelf", "--add-needed", DRIVER, str(path)], dict(os.environ), f"cannot add {DRIVER} to {name}")
    return path


def _facts(path: Path) -> dict[str, object]:
    found = architectures(path)
    return {"bytes": path.stat().st_size, "sass": found.sass, "ptx": found.ptx}


def _run(argv: list[str], environment: dict[str, str], failure: str) -> None:
    print(f"+ {' '.join(argv[:4])} ...", flush=True)
    code = subprocess.run(argv, env=environment, check=False).returncode
    if code:
        out_of_memory = code in (-9, 137)
        mend = "give the build more memory, or fewer --jobs" if out_of_memory else "the compiler's own words are above"
        raise CouldNotRun(f"{failure} (exit code {code})", mend)


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.image.native.build")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/native"))
    parser.add_argument("--ptx", action="store_true")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    try:
        options.work.mkdir(parents=True, exist_ok=True)
        record = build(options.source, options.out, options.work, options.ptx, options.jobs)
    except Sm86Error as error:
        print(f"sm86: {error.what}\nmend: {error.mend}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
