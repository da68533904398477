"""The driver as its files tell it: the loaded kernel module, libraries of how many versions, forward compatibility."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm86.host.rig.sysfs import read

LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib64/nvidia",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/lib",
    "usr/local/nvidia/lib64",
)
"""Where distributions put libcuda and libnvidia-ml."""

_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3}\.\d{2,3}(?:\.\d{2})?)")
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d{3}\.\d{2,3}(?:\.\d{2})?)")


@dataclass(frozen=True, slots=True)
class Files:
    """module: version of the loaded kernel module, None where none is; kind: "open" or "proprietary"; versions: every
    version seen, of libraries and module; compat: folders of forward compatibility in the loader's path."""

    module: str | None
    kind: str | None
    versions: tuple[str, ...]
    compat: tuple[str, ...]


def look(root: Path, environment: Mapping[str, str]) -> Files:
    """Read from the files below `root`; environment: whose LD_LIBRARY_PATH counts."""
    told = read(root / "proc/driver/nvidia/version") or ""
    found = _MODULE.search(told)
    module = found[1] if found else None
    versions = {module} if module else set()
    for place in LIBRARIES:
        try:
            names = [path.name for path in (root / place).iterdir()]
        except OSError:
            continue
        versions |= {match[1] for match in map(_LIBRARY.fullmatch, names) if match}
    return Files(
        module,
        None if module is None else "open" if "Open Kernel Module" in told else "proprietary",
        tuple(sorted(versions)),
        _compat(root, environment),
    )


def _compat(root: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    places = environment.get("LD_LIBRARY_PATH", "").split(":")
    try:
        settings = sorted((root / "etc/ld.so.conf.d").iterdir())
    except OSError:
        settings = []
    for file in settings:
        places += (read(file) or "").splitlines()
    return tuple(
        place
        for place in dict.fromkeys(place.strip() for place in places)
        if re.search(r"cuda[^/]*/(?:.*/)?compat/?$", place) and list((root / place.lstrip("/")).glob("libcuda.so*"))
    )
