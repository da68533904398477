"""Compiles vLLM's kernel libraries for SM 8.6. Runs inside the image's native stage, or by hand:

    python -m sm86.image.native.build --source vllm-0.26.0.tar.gz --out DIR [--ptx] [--jobs N] [--fresh]

Needs the packages of the GPU lock and of docker/locks/native.txt, and g++. Writes DIR/vllm/<target>.abi3.so and
DIR/native.json (what was built, from what, left out what, for which architectures).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import cast

from sm86.errors import CouldNotRun, Sm86Error
from sm86.image.fatbin import architectures
from sm86.image.native import workspace
from sm86.image.native.jobs import memory_gib, parallel_jobs
from sm86.image.native.patch import HOST_ONLY, TARGETS, patch
from sm86.image.native.toolchain import DRIVER, Toolchain, find_toolchain


def build(
    source: Path, out: Path, work: Path, ptx: bool = False, jobs: int | None = None, fresh: bool = False
) -> dict[str, object]:
    """Build every target and return what `native.json` says.

    work: where objects are kept for the next build of the same inputs; fresh: without those of an earlier one.
    Raises CouldNotRun; `out` then holds no library.
    """
    started = time.monotonic()
    toolchain = find_toolchain()
    patched = patch(_cmake_text(source), ptx)
    work = work / ("ptx" if ptx else "sm_86")
    folder = workspace.enter(work, workspace.key(workspace.inputs(source, patched.text)), fresh)
    tree = _unpack(source, folder, patched.text)
    jobs = jobs or parallel_jobs(len(os.sched_getaffinity(0)), memory_gib())
    environment = toolchain.environment(dict(os.environ))
    objects = folder / "build"
    _run(_configure(toolchain, tree, objects, folder), environment, "CMake could not configure the native build")
    print(f"{jobs} compilers at once; objects of this build are kept in {folder}", flush=True)
    _run(["ninja", "-C", str(objects), f"-j{jobs}", *TARGETS], environment, "the native build failed")
    libraries = {target: _finish(objects, target, folder / "finished") for target in TARGETS}
    facts = {f"vllm/{path.name}": _facts(path) for path in libraries.values()}
    for name, found in facts.items():
        _judge(name, found, ptx)
    record: dict[str, object] = {
        "source": source.name,
        "nvcc": toolchain.nvcc_version,
        "ptx": ptx,
        "left_out": list(patched.left_out),
        "libraries": facts,
    }
    for path in libraries.values():
        target = out / "vllm" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (out / "native.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"native build: {time.monotonic() - started:.0f} s", flush=True)
    return record


def _cmake_text(source: Path) -> str:
    try:
        with tarfile.open(source) as archive:
            found = [name for name in archive.getnames() if re.fullmatch(r"[^/]+/CMakeLists\.txt", name)]
            file = archive.extractfile(found[0]) if len(found) == 1 else None
            if file is not None:
                return file.read().decode()
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise CouldNotRun(f"cannot unpack {source}: {error}", "download vLLM's source distribution again") from None
    raise CouldNotRun(f"{source} holds no CMake project", "give vLLM's source distribution")


def _unpack(source: Path, folder: Path, cmake_text: str) -> Path:
    """The source tree, patched; unpacked once, as files written again would look new to ninja."""
    tree = folder / "source"
    if tree.is_dir():
        return tree
    beside = folder / "unpacking"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with tarfile.open(source) as archive:
            # Debian 12's Python knows no filter; the archive's hash was checked before it came here
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(beside)
    except (OSError, tarfile.TarError) as error:
        raise CouldNotRun(f"cannot unpack {source}: {error}", "download vLLM's source distribution again") from None
    (top,) = beside.iterdir()
    (top / "CMakeLists.txt").write_text(cmake_text)
    top.rename(tree)
    return tree


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
    if DRIVER not in _needed(path):
        _run(["patchelf", "--add-needed", DRIVER, str(path)], dict(os.environ), f"cannot add {DRIVER} to {name}")
    return path


def _needed(path: Path) -> list[str]:
    shown = subprocess.run(["patchelf", "--print-needed", str(path)], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def _facts(path: Path) -> dict[str, object]:
    found = architectures(path)
    return {"bytes": path.stat().st_size, "sass": found.sass, "ptx": found.ptx}


def _judge(name: str, facts: dict[str, object], ptx: bool) -> None:
    """Refuse a library of other device code than asked for: CMake passes over what it does not understand."""
    has_kernels = not name.startswith(f"vllm/{HOST_ONLY}.")
    wanted = {"sass": {86} if has_kernels else set(), "ptx": {86} if ptx and has_kernels else set()}
    for kind, archs in wanted.items():
        found = set(cast(dict[int, int], facts[kind]))
        if found != archs:
            shown = ", ".join(map(str, sorted(found))) or "none"
            raise CouldNotRun(
                f"{name} holds {kind.upper()} of {shown}; {', '.join(map(str, archs)) or 'none'} was asked for",
                "build it with --fresh (--no-cache); if that does not help, the architecture tables have changed",
            )


def _run(argv: list[str], environment: dict[str, str], failure: str) -> None:
    print(f"+ {' '.join(argv[:4])} ...", flush=True)
    code = subprocess.run(argv, env=environment, check=False).returncode
    if code:
        out_of_memory = code in (-9, 137)
        mend = "give the build more memory, or fewer --jobs" if out_of_memory else "the compiler's own words are above"
        raise CouldNotRun(f"{failure} (exit code {code})", mend)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.image.native.build")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/native"))
    parser.add_argument("--ptx", action="store_true")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    try:
        record = build(options.source, options.out, options.work, options.ptx, options.jobs, options.fresh)
    except Sm86Error as error:
        print(f"sm86: {error.what}\nmend: {error.mend}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
