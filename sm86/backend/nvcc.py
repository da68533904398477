"""The CUDA compiler: found, called in one way for every library of this package, and its words read.

A library has a C interface and needs no torch, so one build serves every torch and Python. It holds SM86 machine code,
PTX of compute_86 so that later GPUs run the same instructions, and the hash of its sources: a library of others is
refused at load.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm86.backend.refusal import Refused

FLAGS = (
    "-O3",
    "-std=c++17",
    "-gencode=arch=compute_86,code=sm_86",
    "-gencode=arch=compute_86,code=compute_86",
    "-cudart=static",
    "-cudadevrt=none",
)

_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """One library. file: its name on disk; title: its name in words; module: what `python -m` builds it;
    sources: the file that is compiled, then those that it includes."""

    file: str
    title: str
    module: str
    sources: tuple[Path, ...]

    def source_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of all sources."""
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in self.sources)).hexdigest()[:16]

    def cache_path(self) -> Path:
        """Where a library built on demand lies; one per source."""
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return root / "sm86" / self.source_hash() / self.file


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compilation said: ptxas' words for sm_86, and the PTX."""

    log: str
    ptx: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel in ptxas' words. name: mangled; spilled: bytes of stack, spill stores and spill loads;
    shared: bytes of static shared memory."""

    name: str
    registers: int
    spilled: int
    shared: int


Row = tuple[str, str, int, int, int, int, str]
"""(kernel, form, registers, spill bytes, shared bytes, warps, PTX)"""


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


def command(nvcc: str, library: CudaLibrary, made: Path) -> list[str]:
    """The call that compiles `library` into `made`, and leaves the PTX in the same folder."""
    define = f'-DSM86_SOURCE_HASH="{library.source_hash()}"'
    shared = ["--shared", "-Xcompiler", "-fPIC"]
    told = ["-Xptxas", "-v", "--keep", "--keep-dir", str(made.parent)]
    return [nvcc, *FLAGS, *link_flags(nvcc), define, *shared, *told, str(library.sources[0]), "-o", str(made)]


def build(library: CudaLibrary, output: Path) -> Compiled:
    """Compile into `output` (written beside it and renamed): one run of nvcc for all that is asked of it, which takes
    long on a busy machine. Raises Refused without nvcc or when it fails."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise Refused(
            f"the {library.title} library is not built and there is no nvcc",
            f"build it where CUDA 12.3 or newer is installed (python -m {library.module} {output})",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder) / library.file
        done = subprocess.run(command(nvcc, library, made), capture_output=True, text=True)
        if done.returncode:
            source = library.sources[0].name
            raise Refused(f"nvcc failed on {source}: {done.stderr.strip()[-400:]}", "see nvcc's words above")
        ptx = "".join(path.read_text() for path in sorted(Path(folder).glob("*.ptx")))
        os.replace(made, output)
    return Compiled(done.stderr, ptx)


def build_once(output: Path, make: Callable[[Path], Path]) -> Path:
    """`make` unless `output` is there; ranks that start together wait for the first of them."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return output if output.exists() else make(output)


def resources(library: CudaLibrary, rows_of: Callable[[str, str], list[Row]], output: Path | None = None) -> list[Row]:
    """What each kernel needs, by `rows_of` from ptxas' words and the PTX.

    The library that was compiled for it is kept as `output`, if that is given. Raises Refused as `build`.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = build(library, output or Path(folder) / library.file)
    return rows_of(made.log, made.ptx)


def entries(log: str) -> Iterator[Entry]:
    """ptxas' words -> each kernel. Raises RuntimeError for words it does not know."""
    for text in log.split("Compiling entry function")[1:]:
        spills, registers, static = _SPILLS.search(text), _REGISTERS.search(text), _SHARED.search(text)
        if spills is None or registers is None:
            raise RuntimeError(f"unknown words of ptxas: {text[:300]}")
        spilled = sum(map(int, spills.groups()))
        yield Entry(text.split("\n")[0], int(registers[1]), spilled, int(static[1]) if static else 0)


def main(library: CudaLibrary, arguments: Sequence[str]) -> int:
    """Build `library` into the first argument, or where it is looked for; 0, or 2 and the refusal's words."""
    output = Path(arguments[0]) if arguments else library.cache_path()
    try:
        build(library, output)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    print(output)
    return 0
