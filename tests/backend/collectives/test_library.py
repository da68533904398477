"""The CUDA source compiled for SM86 without a GPU: it fits, does not spill, and its library says what it is."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from sm86.backend import nvcc
from sm86.backend.collectives import binding, build
from sm86.backend.collectives.plan import PACKETS
from sm86.backend.refusal import Refused
from sm86.backend.testing.compiled import FORBIDDEN, faults_of

needs_nvcc = pytest.mark.skipif(nvcc.find_nvcc() is None, reason="no nvcc on this machine: the source is not compiled")

PTXAS = """ptxas info    : Compiling entry function '_ZN12_GLOBAL__N_110all_reduceILi8ELi2ELi1EEEvNS_4CallE' for 'sm_86'
ptxas info    : Function properties for _ZN12_GLOBAL__N_110all_reduceILi8ELi2ELi1EEEvNS_4CallE
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 496 bytes cmem[0]
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The library and what ptxas says of it, compiled once."""
    output = tmp_path_factory.mktemp("collectives") / "lib.so"
    return output, build.cuda_resources(output)


@needs_nvcc
@pytest.mark.timeout(600)
def test_every_kernel_fits_and_none_spills(compiled: tuple[Path, Any]) -> None:
    rows = compiled[1]
    assert len({row[1] for row in rows}) == len(rows) == 7 * 3 * 2, "2 to 8 ranks, three algorithms, two types"
    for _, form, registers, spills, shared, _, _ in rows:
        assert spills == 0 and shared == 0, form
        assert registers * 512 <= 65536, f"{form}: a block of 512 threads must start"
    assert faults_of(64, 0, 0, rows[0][6]) == () and FORBIDDEN
    assert "atom.sys" not in rows[0][6] and "red.sys" not in rows[0][6], "atomics need not reach host memory"


@needs_nvcc
@pytest.mark.timeout(600)
def test_what_the_protocol_needs_of_the_instructions_is_there(compiled: tuple[Path, Any]) -> None:
    """The CPU build has loads, stores and a fence of its own, so the GPU's are read from the PTX."""
    kernels = re.findall(r"\.entry \S*all_reduceILi(\d)ELi(\d)E.*?\n\}", compiled[1][0][6], re.S)
    texts = [found[0] for found in re.finditer(r"\.entry \S*all_reduceILi\dELi\dE.*?\n\}", compiled[1][0][6], re.S)]
    assert len(texts) == len(kernels) == 42
    for (ranks, algorithm), text in zip(kernels, texts, strict=True):
        ranks, packets = int(ranks), int(algorithm) == PACKETS
        plain = re.findall(r"\bld(?:\.volatile)?\.global\S*", text)
        assert plain == ["ld.global.v4.u32"], "only the message itself may come from a cache"
        # packets are pairs of 8 bytes; all peers' vectors are loaded whole, and from memory each time
        wide = "v2.u64" if packets else "v4.u32"
        assert text.count(f"ld.relaxed.sys.global.{wide}") >= 2 * ranks, (ranks, algorithm)
        assert text.count(f"st.relaxed.sys.global.{wide}") >= (2 if packets else 1), (ranks, algorithm)
        fence, barrier = text.index("fence.acq_rel.sys"), text.index("bar.sync")
        assert text.count("fence.acq_rel.sys") == 1 and fence < barrier, "re-arming is ordered before the call ends"
        assert text.rindex("st.relaxed.sys.global.v4.u32", 0, fence) < fence < text.rindex("st.relaxed.sys.global.u32")


def test_every_refusal_has_its_words() -> None:
    named = re.search(r"enum Refusal \{(.*?)\}", build.HEADERS[2].read_text(), re.S)
    assert named is not None
    assert sorted(int(code) for code in re.findall(r"= (-\d+)", named[1])) == sorted(binding.REFUSALS)


@pytest.mark.parametrize(("stack", "stores", "loads", "spilled"), [(0, 0, 0, 0), (16, 0, 0, 16), (0, 8, 12, 20)])
def test_ptxas_words_are_read(stack: int, stores: int, loads: int, spilled: int) -> None:
    rows = build.resources_of(PTXAS.format(stack=stack, stores=stores, loads=loads), "ptx")
    assert rows == [("host_allreduce", "8 ranks, two-shot, fp32", 64, spilled, 0, 16, "ptx")]


def test_other_words_of_ptxas_are_no_pass() -> None:
    with pytest.raises(RuntimeError, match="unknown words"):
        build.resources_of("Compiling entry function 'all_reduceILi8ELi2ELi1E'\nnothing known", "")


@needs_nvcc
@pytest.mark.timeout(600)
def test_the_library_knows_its_source_and_says_why_it_cannot_open(
    compiled: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = binding.load(compiled[0])
    assert library.sm86_ar_source_hash().decode() == build.LIBRARY.source_hash()
    assert library.sm86_ar_segment_bytes(8, 131072) < 16 << 20, "small enough for the GPUs' address translation"
    memory = ctypes.create_string_buffer(1 << 21)
    address = (ctypes.addressof(memory) + 4095) // 4096 * 4096
    for rank in range(2):
        library.sm86_ar_prepare(address, 2, 4096, rank, -1)
    error = ctypes.c_int()
    asked = binding.Open(address, 4096, 10**9, 99, 2, 0, 1)
    assert library.sm86_ar_open(ctypes.byref(asked), ctypes.byref(error)) is None
    assert error.value > 0 and binding.words_of(library, error.value), "no such device, or no driver at all"
    asked.world = 3
    assert library.sm86_ar_open(ctypes.byref(asked), ctypes.byref(error)) is None
    assert "not this version's" in binding.words_of(library, error.value)
    monkeypatch.setattr(build, "LIBRARY", dataclasses.replace(build.LIBRARY, sources=build.HEADERS))
    with pytest.raises(Refused, match="was built from source"):
        binding.load(compiled[0])


def test_a_named_library_that_is_absent_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM86_COLLECTIVES_LIBRARY", str(tmp_path / "nothing.so"))
    assert binding.library_path() == tmp_path / "nothing.so"
    with pytest.raises(Refused, match=r"cannot load .*nothing\.so"):
        binding.load(binding.library_path())


def test_without_nvcc_it_says_how_to_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SM86_COLLECTIVES_LIBRARY", raising=False)
    monkeypatch.setattr(build, "LIBRARY", dataclasses.replace(build.LIBRARY, file="absent.so"))
    with pytest.raises(
        Refused,
        match=r"the collective library is not built and there is no nvcc.*python -m sm86\.backend\.collectives\.build",
    ):
        binding.library_path()


def test_the_hash_covers_every_source(tmp_path: Path) -> None:
    sources = build.LIBRARY.sources
    named = {path.name for path in sources}
    assert named == {path.name for path in build.FOLDER.iterdir() if path.suffix in (".cu", ".h")}
    changed = tmp_path / "changed"
    for number, source in enumerate(sources):
        changed.write_bytes(source.read_bytes() + b"\n")
        other = dataclasses.replace(build.LIBRARY, sources=(*sources[:number], changed, *sources[number + 1 :]))
        assert other.source_hash() != build.LIBRARY.source_hash(), source.name
