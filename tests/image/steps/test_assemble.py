"""The native image's packages: rebuilt libraries in, the table's files out, symbols off, and nothing else changed."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.image.elf import is_elf, loader_paths, loads_whole, strippable_bytes, without_loader_paths
from sm86.image.steps import assemble as assembling
from sm86.image.steps.assemble import assemble, library_facts, main
from sm86.image.steps.pruning import FLASH_ATTENTION, GROUPS, REFUSAL

PATTERNS = tuple(pattern for group in GROUPS for pattern in group.patterns)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small shared library with a symbol table and debug sections."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    place = tmp_path_factory.mktemp("lib")
    (place / "a.c").write_text("static int hidden(int x) { return x * 3; }\nint shown(int x) { return hidden(x); }\n")
    argv = ["gcc", "-g", "-O0", "-shared", "-fPIC", "-o", str(place / "a.so"), str(place / "a.c")]
    subprocess.run(argv, check=True)
    return place / "a.so"


@pytest.fixture
def site(tmp_path: Path, library: Path) -> Path:
    """Packages that hold something for each pattern of the table, and something that none means."""
    place = tmp_path / "site"
    for pattern in PATTERNS:
        path = place / pattern.replace("**", "deep").replace("*", "one")
        path.parent.mkdir(parents=True, exist_ok=True)
        if "." in path.name:
            path.write_bytes(b"x" * 10)
        else:
            path.mkdir()
            (path / "file").write_bytes(b"x" * 10)
    for name in ("vllm/_C_stable_libtorch.abi3.so", "torch/lib/libtorch_cuda.so"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, place / name)
    # leaving out comes first, so these are not looked into
    return place


@pytest.fixture
def native(tmp_path: Path, library: Path) -> Path:
    place = tmp_path / "native"
    (place / "vllm").mkdir(parents=True)
    shutil.copyfile(library, place / "vllm" / "_C_stable_libtorch.abi3.so")
    with (place / "vllm" / "_C_stable_libtorch.abi3.so").open("ab") as file:
        file.write(b"rebuilt")
    record = {"source": "vllm-0.26.0.tar.gz", "libraries": {"vllm/_C_stable_libtorch.abi3.so": {}}}
    (place / "native.json").write_text(json.dumps(record))
    return place


def test_the_native_variant_is_rebuilt_pruned_and_stripped(site, native, monkeypatch):
    monkeypatch.setattr(assembling, "STRIP_ABOVE_BYTES", 500)
    wanted = (native / "vllm/_C_stable_libtorch.abi3.so").read_bytes()
    before = (site / "torch/lib/libtorch_cuda.so").stat().st_size
    done = assemble(site, "native", native)
    assert set(done["left_out"]) == set(PATTERNS) and all(size == 10 for size in done["left_out"].values())
    assert not [p for pattern in PATTERNS for p in site.glob(pattern)]
    assert (site / f"{FLASH_ATTENTION}.py").read_text() == REFUSAL
    after = site / "torch/lib/libtorch_cuda.so"
    assert after.stat().st_size < before and strippable_bytes(after.read_bytes()) < 500
    assert done["stripped_bytes"] >= before - after.stat().st_size > 0
    names = subprocess.run(["nm", "-D", str(after)], capture_output=True, text=True, check=True).stdout
    assert " T shown" in names, "what other libraries ask for stays"
    assert list(done["libraries"]) == ["vllm/_C_stable_libtorch.abi3.so"]
    assert len(wanted) > len((site / "vllm/_C_stable_libtorch.abi3.so").read_bytes()), "it was stripped too"
    assert done["native"]["source"] == "vllm-0.26.0.tar.gz"


def test_the_wheel_variant_changes_nothing(site):
    for path in [*site.glob("vllm/**/*.so")]:
        if path.name != "_C_stable_libtorch.abi3.so":
            path.unlink()
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    done = assemble(site, "wheel", None)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    assert "left_out" not in done and "native" not in done and len(done["libraries"]) == 1


def test_a_table_of_other_packages_is_refused(site, native, tmp_path, capsys):
    with pytest.raises(CouldNotRun, match="no native build"):
        assemble(site, "native", tmp_path)
    (site / "torch/bin/ptxas").rename(site / "torch/bin/other")
    with pytest.raises(CouldNotRun, match="torch/bin/ptxas is not there"):
        assemble(site, "native", native)
    (site / "vllm/_C_stable_libtorch.abi3.so").unlink()
    with pytest.raises(CouldNotRun, match=r"no vllm/_C_stable_libtorch\.abi3\.so to replace"):
        assemble(site, "native", native)
    assert main(["--variant", "native", "--native", str(tmp_path), "--out", str(tmp_path / "o.json")]) == 2
    assert "no native build" in capsys.readouterr().err and not (tmp_path / "o.json").exists()


def test_a_library_that_would_not_load_stays_as_it_was(site, native, monkeypatch, capsys):
    monkeypatch.setattr(assembling, "STRIP_ABOVE_BYTES", 500)
    monkeypatch.setattr(assembling, "loads_whole", lambda _: False)
    before = (site / "torch/lib/libtorch_cuda.so").read_bytes()
    assert assemble(site, "native", native)["stripped_bytes"] == 0
    assert (site / "torch/lib/libtorch_cuda.so").read_bytes() == before
    assert not list(site.rglob("*.stripped")) and "not stripped" in capsys.readouterr().out


def test_an_elf_file_is_judged_by_its_headers(library):
    data = library.read_bytes()
    assert is_elf(data) and strippable_bytes(data) > 500 and loads_whole(data)
    assert not is_elf(b"#!/bin/sh\n") and not loads_whole(data[: len(data) // 8])
    with pytest.raises(ValueError, match="damaged"):
        strippable_bytes(data[:100])
    facts = library_facts(library)
    assert facts["bytes"] == len(data) and facts["sass"] == {} and len(facts["sha256"]) == 64


@pytest.mark.parametrize("flag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_folders_that_the_linker_noted_are_taken_out(tmp_path, flag):
    (tmp_path / "a.c").write_text("int shown(void) { return 1; }\n")
    out = tmp_path / "a.so"
    argv = ["gcc", "-shared", "-fPIC", f"-Wl,{flag},-rpath,/somewhere/stubs:", "-o", str(out), str(tmp_path / "a.c")]
    subprocess.run(argv, check=True)
    data = out.read_bytes()
    assert loader_paths(data) == ("/somewhere/stubs", "")
    after = without_loader_paths(data)
    assert loader_paths(after) == () and len(after) == len(data) and without_loader_paths(after) == after
    out.write_bytes(after)
    assert ctypes.CDLL(str(out)).shown() == 1
    for damaged in (data[:80], data[: data.index(b"/somewhere") - 1]):
        with pytest.raises(ValueError, match="damaged"):
            loader_paths(damaged)


def test_every_reason_is_a_sentence_and_no_pattern_is_said_twice():
    assert len(set(PATTERNS)) == len(PATTERNS)
    assert all(len(group.why) > 15 for group in GROUPS)
