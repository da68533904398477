"""The patch for SM 8.6 changes exactly what it names, and refuses any other source."""

import pytest

from sm86.errors import CouldNotRun
from sm86.image.native.jobs import parallel_jobs
from sm86.image.native.patch import EXTERNAL_PROJECTS, SM80_TABLES, patch


def source() -> str:
    """The parts of a CMakeLists.txt that the patch speaks of, in the pinned release's own shape."""
    lines = ['  message(STATUS "CUDA supported target architectures: ${CUDA_ARCHS}")']
    for table, count in SM80_TABLES.items():
        gap = "\n    " if table == "SCALED_MM_2X_ARCHS" else " "
        lines += [f'    cuda_archs_loose_intersection({table}{gap}"7.5;8.0+PTX" "${{CUDA_ARCHS}}")'] * count
    lines += ['    cuda_archs_loose_intersection(MACHETE_ARCHS "9.0a" "${CUDA_ARCHS}")']
    lines += [f"    include(cmake/external_projects/{name}.cmake)" for name in EXTERNAL_PROJECTS]
    return "\n".join(lines) + "\n"


def test_everything_that_names_sm80_names_86():
    patched = patch(source())
    assert patched.text.count('"8.6" "${CUDA_ARCHS}"') == sum(SM80_TABLES.values())
    assert "8.0" not in patched.text and "PTX" not in patched.text
    assert 'set(CUDA_ARCHS "8.6")' in patched.text
    assert "include(cmake" not in patched.text
    assert sorted(patched.left_out) == sorted(EXTERNAL_PROJECTS)
    assert '(MACHETE_ARCHS "9.0a" "${CUDA_ARCHS}")' in patched.text


def test_ptx_is_for_proofs_on_other_gpus():
    assert patch(source(), ptx=True).text.count('"8.6+PTX"') == sum(SM80_TABLES.values()) + 1


@pytest.mark.parametrize(
    "old, new",
    [
        ("external_projects/flashmla.cmake", "external_projects/another.cmake"),
        ("(MARLIN_OTHER_ARCHS ", "(MARLIN_OLD_ARCHS "),
        ("CUDA supported target architectures", "CUDA archs"),
    ],
)
def test_another_source_is_refused(old, new):
    assert old in source()
    with pytest.raises(CouldNotRun, match="does not match"):
        patch(source().replace(old, new))


def test_a_patched_source_is_not_patched_twice():
    with pytest.raises(CouldNotRun):
        patch(patch(source()).text)


@pytest.mark.parametrize("cores, gib, jobs", [(2, 24, 2), (64, 64, 21), (8, 2, 1), (1, 100, 1), (16, 47.9, 15)])
def test_jobs_follow_from_cores_and_memory(cores, gib, jobs):
    assert parallel_jobs(cores, gib) == jobs
