"""The folder that a native build works in, named after everything that its objects depend on.

A build that was interrupted goes on in the same folder: ninja knows which objects are whole. One from another
source, compiler, torch or set of options gets another folder, so no object is ever taken for another's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sm86.errors import CouldNotRun

PACKAGES = (
    "torch",
    "numpy",
    "jinja2",
    "cmake",
    "ninja",
    "nvidia-cutlass",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-cuda-cccl",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-nvvm",
    "nvidia-cublas",
    "nvidia-cusparse",
    "nvidia-cusolver",
)
"""Packages whose headers or programs shape an object."""


def key(inputs: Mapping[str, str]) -> str:
    """16 hex digits that change with any name or value."""
    return hashlib.sha256(json.dumps(dict(sorted(inputs.items()))).encode()).hexdigest()[:16]


def inputs(source: Path, cmake_text: str) -> dict[str, str]:
    """What objects follow from: the source archive, its patched CMakeLists.txt, the C++ compiler, the packages.

    Raises CouldNotRun where one of them cannot be had.
    """
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
        versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise CouldNotRun(
            f"the package {error.name} is missing", "install docker/locks/native.txt beside the GPU lock"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise CouldNotRun(f"cannot prepare the native build: {error}", "it needs g++ and the source archive") from None
    cmake = hashlib.sha256(cmake_text.encode()).hexdigest()
    # a package may have any name, "cmake" among them: what is no package gets a name that none can have
    return {"source:": digest, "CMakeLists.txt:": cmake, "g++:": compiler.splitlines()[0], **versions}


def enter(work: Path, name: str, fresh: bool) -> Path:
    """The folder `name` below `work`, empty where `fresh`; folders of other keys are removed, they are gigabytes.

    work: of one kind of build; a proof with PTX has another, so that it does not cost the rig's objects.
    """
    work.mkdir(parents=True, exist_ok=True)
    for other in work.iterdir():
        if other.is_dir() and (fresh or other.name != name):
            shutil.rmtree(other)
    folder = work / name
    folder.mkdir(exist_ok=True)
    return folder
