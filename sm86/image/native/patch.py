"""vLLM 0.26.0's CMakeLists.txt -> the same for SM 8.6 and nothing else. Pure.

Two changes. External projects are left out: all are for SM 9.0 and newer, or flash-attention, which
DeepSeek-V4 does not use, and each would clone a repository during the build. The architecture tables
that name sm_80 (plus compute_80 PTX) are told to name 8.6: sm_80 code runs on SM 8.6, but native means
compiled for the chip.

Every change is counted. A source that does not match was not what this was written for, and is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sm86.errors import CouldNotRun

TARGETS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "cumem_allocator")
"""CMake targets built; each becomes `vllm/<target>.abi3.so`."""

HOST_ONLY = "cumem_allocator"
"""The one of them without device code."""

EXTERNAL_PROJECTS = (
    "triton_kernels",
    "deepgemm",
    "fmha_sm100",
    "flashmla",
    "qutlass",
    "tml_fa4",
    "vllm_flash_attn",
)

SM80_TABLES = {
    "MARLIN_ARCHS": 2,
    "MARLIN_BF16_ARCHS": 2,
    "MARLIN_OTHER_ARCHS": 1,
    "HADACORE_ARCHS": 1,
    "MARLIN_MOE_ARCHS": 2,
    "MARLIN_MOE_OTHER_ARCHS": 1,
    "SCALED_MM_2X_ARCHS": 1,
}
"""Architecture tables that would choose sm_80 for SM 8.6, and how often each stands in the file."""

_INCLUDE = re.compile(r"^(?P<indent>\s*)include\(cmake/external_projects/(?P<name>\w+)\.cmake\)$", re.MULTILINE)
_ALL_SOURCES = '  message(STATUS "CUDA supported target architectures: ${CUDA_ARCHS}")\n'


@dataclass(frozen=True, slots=True)
class Patched:
    """The new text, and the external projects left out."""

    text: str
    left_out: tuple[str, ...]


def patch(text: str, ptx: bool = False) -> Patched:
    """The patched CMakeLists.txt. `ptx` adds compute_86 PTX, which other GPUs can run: for proofs, not for rigs.

    Raises CouldNotRun when the text is not that of the vLLM release this was written for.
    """
    archs = "8.6+PTX" if ptx else "8.6"
    left_out = tuple(match["name"] for match in _INCLUDE.finditer(text))
    _expect("external projects", sorted(left_out), sorted(EXTERNAL_PROJECTS))
    text = _INCLUDE.sub(r"\g<indent># \g<name>: left out, not for SM 8.6", text)
    for table, wanted in SM80_TABLES.items():
        call = re.compile(rf'(cuda_archs_loose_intersection\({table}\s+)"[^"]*"')
        text, count = call.subn(rf'\g<1>"{archs}"', text)
        _expect(f"architecture table {table}", count, wanted)
    _expect("the list of all architectures", text.count(_ALL_SOURCES), 1)
    text = text.replace(_ALL_SOURCES, f'  set(CUDA_ARCHS "{archs}")\n{_ALL_SOURCES}')
    return Patched(text, left_out)


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise CouldNotRun(
            f"vLLM's CMakeLists.txt does not match: {what} is {found}, expected {wanted}",
            "the native rebuild is written for the pinned vLLM release; use --variant wheel for another one",
        )
