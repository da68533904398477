"""The CUDA toolkit as its Python packages lay it out, made into what CMake expects (links beside the packages)."""

from __future__ import annotations

import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun

LINKED_LIBRARIES = ("cudart", "cublas", "cublasLt", "nvrtc", "cusparse", "cusolver", "curand", "cufft", "nvJitLink")
DRIVER = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Folders of the compiler and of CUTLASS's headers, and the compiler's own version line."""

    cuda: Path
    cutlass: Path
    nvcc_version: str

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """`base` with what the compilers read: CUDA's place, PATH, and CUTLASS on CPATH.

        CPATH, because vLLM hands CUTLASS's folders only to some of the sources that include it.
        """
        includes = [self.cutlass / "include", self.cutlass / "tools" / "util" / "include"]
        return {
            **base,
            "CUDA_HOME": str(self.cuda),
            "CUDA_PATH": str(self.cuda),
            "PATH": f"{self.cuda / 'bin'}:{base.get('PATH', '')}",
            "CPATH": ":".join(map(str, includes)),
            "TORCH_CUDA_ARCH_LIST": "8.6",
            "VLLM_CUTLASS_SRC_DIR": str(self.cutlass),
        }


def find_toolchain(packages: Path | None = None) -> Toolchain:
    """The toolchain among the installed packages, made ready for CMake.

    Raises CouldNotRun when a package is missing or the compiler does not run.
    """
    root = packages or Path(sysconfig.get_path("platlib"))
    cuda, cutlass = root / "nvidia" / "cu13", root / "cutlass_library" / "source"
    for path, package in ((cuda / "bin" / "nvcc", "nvidia-cuda-nvcc"), (cutlass / "include", "nvidia-cutlass")):
        if not path.exists():
            raise CouldNotRun(f"{path} is missing", f"install {package} from the native requirements lock")
    _link_libraries(cuda)
    _stub_driver(cuda)
    done = subprocess.run([str(cuda / "bin" / "nvcc"), "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CouldNotRun("nvcc does not run", "check the nvidia-cuda-nvcc, nvidia-nvvm and nvidia-cuda-crt packages")
    return Toolchain(cuda, cutlass, done.stdout.strip().splitlines()[-1])


def _link_libraries(cuda: Path) -> None:
    # the packages carry libcublas.so.13 and the like; the linker looks for libcublas.so in lib64
    for name in LINKED_LIBRARIES:
        versions = sorted((cuda / "lib").glob(f"lib{name}.so.*"))
        link = cuda / "lib" / f"lib{name}.so"
        if versions and not link.exists():
            link.symlink_to(versions[0].name)
    if not (cuda / "lib64").exists():
        (cuda / "lib64").symlink_to("lib")


def _stub_driver(cuda: Path) -> None:
    # the driver's library exists only on a machine with a GPU; to link, its name is enough
    stub = cuda / "lib" / "stubs" / "libcuda.so"
    if stub.exists():
        return
    stub.parent.mkdir(exist_ok=True)
    source = stub.with_suffix(".c")
    source.write_text("void sm86_driver_stub(void) {}\n")
    argv = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(stub), str(source)]
    if subprocess.run(argv, check=False).returncode:
        raise CouldNotRun("gcc cannot build the stub of the driver's library", "install gcc")
