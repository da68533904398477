"""The CUDA compiler: found, called once, its words read, its refusals in words. No compiler is needed, a script stands
for it."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm86.backend import nvcc
from sm86.backend.attention import build as attention
from sm86.backend.collectives import build as collectives
from sm86.backend.refusal import Refused

WORDS = """ptxas info    : Compiling entry function '{name}' for 'sm_86'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 125 registers, used 1 barriers{shared}, 496 bytes cmem[0]
"""
NAME = "_ZN12_GLOBAL__N_110sparse_mlaILi4ELi2EEEv13SparseMlaArgsNS_4GridE"


def compiler(folder: Path, body: str) -> Path:
    """A script in nvcc's place; "$OUT" is the file after -o."""
    script = folder / "nvcc"
    script.write_text('#!/bin/sh\nfor last in "$@"; do OUT=$last; done\n' + body)
    script.chmod(0o755)
    return script


@pytest.fixture
def library(tmp_path: Path) -> nvcc.CudaLibrary:
    source = tmp_path / "thing.cu"
    source.write_text("// a kernel")
    return nvcc.CudaLibrary("libthing.so", "thing", "sm86.thing.build", (source,))


def test_nvcc_of_the_python_package_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "nvidia/cu13"
    for folder in ("bin", "lib"):
        (root / folder).mkdir(parents=True)
    compiler(root / "bin", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.syspath_prepend(tmp_path)
    assert nvcc.find_nvcc() == str(root / "bin/nvcc")
    assert nvcc.link_flags(str(root / "bin/nvcc")) == [], "a toolkit's own nvcc needs no flag"
    (root / "lib/libcudart_static.a").write_text("")
    assert nvcc.link_flags(str(root / "bin/nvcc")) == [f"-L{root / 'lib'}"]
    monkeypatch.setenv("CUDA_HOME", str(root))
    assert nvcc.find_nvcc() == str(root / "bin/nvcc")
    compiler(tmp_path, "")
    assert nvcc.find_nvcc() == str(tmp_path / "nvcc"), "PATH comes first"


@pytest.mark.parametrize("built", [attention.LIBRARY, collectives.LIBRARY], ids=lambda library: library.title)
def test_the_call(built: nvcc.CudaLibrary, tmp_path: Path) -> None:
    made = tmp_path / built.file
    call = nvcc.command("/nowhere/nvcc", built, made)
    assert call[0] == "/nowhere/nvcc" and call[-3:] == [str(built.sources[0]), "-o", str(made)]
    assert "-gencode=arch=compute_86,code=sm_86" in call, "machine code"
    assert "-gencode=arch=compute_86,code=compute_86" in call, "PTX of the same instructions"
    assert f'-DSM86_SOURCE_HASH="{built.source_hash()}"' in call
    assert any("SM86_SOURCE_HASH" in source.read_text() for source in built.sources)
    assert call[call.index("-Xptxas") + 1] == "-v" and call[call.index("--keep-dir") + 1] == str(tmp_path)
    assert "--shared" in call and call[call.index("-Xcompiler") + 1] == "-fPIC"


def test_where_it_lies(library: nvcc.CudaLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = library.cache_path()
    assert first == tmp_path / "cache/sm86" / library.source_hash() / "libthing.so" and len(library.source_hash()) == 16
    library.sources[0].write_text("// another kernel")
    assert library.cache_path() != first, "one per source"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert library.cache_path().is_relative_to(tmp_path / "home/.cache/sm86"), "an empty variable is no folder"


def test_the_hash_tells_one_source_from_another(library: nvcc.CudaLibrary, tmp_path: Path) -> None:
    for name, text in {"a.h": "ab", "b.h": "c", "c.h": "a", "d.h": "bc"}.items():
        (tmp_path / name).write_text(text)
    first = dataclasses.replace(library, sources=(tmp_path / "a.h", tmp_path / "b.h"))
    other = dataclasses.replace(library, sources=(tmp_path / "c.h", tmp_path / "d.h"))
    assert first.source_hash() != other.source_hash(), "where one file ends counts"


def test_it_is_compiled_beside_its_place(
    library: nvcc.CudaLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = compiler(tmp_path, 'echo code > "$OUT"; echo ptx > "$(dirname "$OUT")/thing.ptx"; echo words >&2\n')
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: str(script))
    output = tmp_path / "deep/er/out.so"
    assert nvcc.build(library, output) == nvcc.Compiled("words\n", "ptx\n")
    assert output.read_text() == "code\n" and [path.name for path in output.parent.iterdir()] == ["out.so"]
    output.write_text("in use")
    with output.open() as loaded:
        nvcc.build(library, output)
        assert loaded.read() == "in use" and output.read_text() == "code\n", "what a process has loaded stays whole"


def test_a_compilation_that_fails_leaves_what_was_there(
    library: nvcc.CudaLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = compiler(tmp_path, 'echo half > "$OUT"; echo "thing.cu(7): error: no such thing" >&2; exit 2\n')
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: str(script))
    output = tmp_path / "to/out.so"
    output.parent.mkdir()
    output.write_text("whole")
    with pytest.raises(Refused, match=r"nvcc failed on thing\.cu: .*no such thing"):
        nvcc.build(library, output)
    assert output.read_text() == "whole" and [path.name for path in output.parent.iterdir()] == ["out.so"]
    assert nvcc.main(library, [str(output)]) == 2
    assert "no such thing" in capsys.readouterr().err


def test_the_command(
    library: nvcc.CudaLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    assert nvcc.main(library, []) == 2
    said = capsys.readouterr()
    assert said.out == "" and "the thing library is not built and there is no nvcc" in said.err
    assert f"python -m sm86.thing.build {library.cache_path()}" in said.err
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: str(compiler(tmp_path, 'echo code > "$OUT"\n')))
    assert nvcc.main(library, []) == 0
    assert capsys.readouterr().out == f"{library.cache_path()}\n" and library.cache_path().exists()


def test_ranks_that_start_together_build_once(tmp_path: Path) -> None:
    built = []

    def make(output: Path) -> Path:
        built.append(output)
        time.sleep(0.2)  # for the others to come in, if nothing held them; that they wait needs no time
        output.write_bytes(b"library")
        return output

    together = threading.Barrier(8)

    def rank(_: int) -> Path:
        together.wait()
        return nvcc.build_once(tmp_path / "a/b.so", make)

    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(rank, range(8)))
    assert len(built) == 1 and paths == {tmp_path / "a/b.so"}


@pytest.mark.parametrize(
    ("stack", "stores", "loads", "spilled"), [(0, 0, 0, 0), (16, 0, 0, 16), (0, 8, 0, 8), (0, 0, 12, 12)]
)
def test_ptxas_words_are_read(stack: int, stores: int, loads: int, spilled: int) -> None:
    words = WORDS.format(name=NAME, stack=stack, stores=stores, loads=loads, shared="{shared}")
    (bare, static) = nvcc.entries(words.format(shared="") + words.format(shared=", 4 bytes smem"))
    assert (bare.registers, bare.spilled, bare.shared) == (125, spilled, 0)
    assert static == dataclasses.replace(bare, shared=4) and NAME in bare.name
    rows = attention.resources_of(words.format(shared=", 4 bytes smem"), "ptx")
    assert rows == [("sparse_mla", "64 keys, shared", 125, spilled, 49924, 8, "ptx")]


def test_words_that_are_not_known_are_no_pass() -> None:
    with pytest.raises(RuntimeError, match="unknown words"):
        list(nvcc.entries(f"Compiling entry function '{NAME}'\nnothing known"))
    other = WORDS.format(name="_Z5otherv", stack=0, stores=0, loads=0, shared="")
    with pytest.raises(RuntimeError, match="unknown kernel"):
        attention.resources_of(other, "")


def test_resources_are_those_of_the_library_that_is_kept(
    library: nvcc.CudaLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = compiler(tmp_path, 'echo code > "$OUT"; echo ptx > "$(dirname "$OUT")/thing.ptx"; echo words >&2\n')
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: str(script))
    seen: list[tuple[str, str]] = []

    def rows_of(log: str, ptx: str) -> list[nvcc.Row]:
        seen.append((log, ptx))
        return []

    assert nvcc.resources(library, rows_of) == []
    nvcc.resources(library, rows_of, tmp_path / "kept.so")
    assert seen == [("words\n", "ptx\n")] * 2 and (tmp_path / "kept.so").read_text() == "code\n"
