"""The native build's driver with stand-in compilers: it resumes, refuses what does not fit, and leaves nothing half."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.image.native import build as driver
from sm86.image.native import workspace
from sm86.image.native.jobs import memory_gib
from sm86.image.native.patch import TARGETS
from sm86.image.native.toolchain import Toolchain
from tests.image.test_native_patch import source

INPUTS = {"source": "a", "torch": "2.11.0"}


def archive(path: Path, cmake: str, extra: str = "") -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, text in (("vllm-0.26.0/CMakeLists.txt", cmake), ("vllm-0.26.0/csrc/a.cu", extra)):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text.encode()), 315532800
            file.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand-ins for cmake, ninja, strip and patchelf: they run nothing and remember what they were asked."""
    asked: list[list[str]] = []

    def run(argv: list[str], environment: dict[str, str], failure: str) -> None:
        asked.append(argv)
        if argv[0] == "ninja":
            folder = Path(argv[2])
            folder.mkdir(parents=True, exist_ok=True)
            for target in TARGETS:
                (folder / f"{target}.abi3.so").write_bytes(b"library")

    monkeypatch.setattr(driver, "_run", run)
    monkeypatch.setattr(driver, "find_toolchain", lambda: Toolchain(tmp_path / "cuda", tmp_path / "cutlass", "V13"))
    monkeypatch.setattr(driver, "_needed", lambda path: ["libc.so.6"])
    monkeypatch.setattr(driver, "_facts", lambda path: {"bytes": 7, "sass": {86: 1}, "ptx": {}})
    monkeypatch.setattr(workspace, "inputs", lambda source, text: {"source": source.read_bytes().hex(), "cmake": text})
    return asked


def test_it_builds_every_target_and_says_from_what(machine, tmp_path):
    sdist = archive(tmp_path / "vllm-0.26.0.tar.gz", source())
    record = driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=3)
    assert [argv[0] for argv in machine if argv[0] in ("cmake", "ninja")] == ["cmake", "ninja"]
    assert "-j3" in machine[1] and machine[1][-3:] == list(TARGETS)
    assert sum(argv[0] == "patchelf" for argv in machine) == len(TARGETS), "the driver's library is named in each"
    assert json.loads((tmp_path / "out/native.json").read_text())["source"] == "vllm-0.26.0.tar.gz"
    assert sorted(path.name for path in (tmp_path / "out/vllm").iterdir()) == sorted(f"{t}.abi3.so" for t in TARGETS)
    assert "seconds" not in record, "two builds of the same source give the same record"


def test_an_interrupted_build_goes_on_in_the_same_folder(machine, tmp_path, monkeypatch):
    sdist = archive(tmp_path / "vllm-0.26.0.tar.gz", source())
    whole = driver._run

    def stop(argv: list[str], environment: dict[str, str], failure: str) -> None:
        if argv[0] == "ninja":
            Path(argv[2]).mkdir(parents=True, exist_ok=True)
            (Path(argv[2]) / "first.o").write_text("compiled")
            raise KeyboardInterrupt
        whole(argv, environment, failure)

    monkeypatch.setattr(driver, "_run", stop)
    with pytest.raises(KeyboardInterrupt):
        driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=1)
    assert not (tmp_path / "out").exists()
    (tree,) = (tmp_path / "work").glob("*/source/csrc/a.cu")
    before = tree.stat().st_mtime_ns
    monkeypatch.setattr(driver, "_run", whole)
    driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=1)
    assert tree.stat().st_mtime_ns == before, "a source written again would look new"
    assert len(list((tmp_path / "work").glob("*/build/first.o"))) == 1
    driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=1, fresh=True)
    assert not list((tmp_path / "work").glob("*/build/first.o"))


def test_another_source_has_another_folder_and_the_old_one_goes(machine, tmp_path):
    driver.build(archive(tmp_path / "vllm-0.26.0.tar.gz", source()), tmp_path / "o", tmp_path / "work", jobs=1)
    (first,) = (tmp_path / "work").iterdir()
    driver.build(archive(tmp_path / "vllm-0.26.0.tar.gz", source(), "x"), tmp_path / "o", tmp_path / "work", jobs=1)
    (second,) = (tmp_path / "work").iterdir()
    assert first != second


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_a_damaged_source_is_one_line(machine, tmp_path, content):
    (tmp_path / "vllm.tar.gz").write_bytes(content)
    with pytest.raises(CouldNotRun, match="cannot unpack"):
        driver.build(tmp_path / "vllm.tar.gz", tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "out").exists()


def test_a_source_of_another_release_is_refused_before_it_is_unpacked(machine, tmp_path):
    with pytest.raises(CouldNotRun, match="does not match"):
        driver.build(archive(tmp_path / "v.tar.gz", "project(other)\n"), tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_every_input_changes_the_folder():
    keys = {workspace.key(INPUTS), workspace.key({**INPUTS, "torch": "2.11.1"}), workspace.key({**INPUTS, "g++": "12"})}
    assert len(keys) == 3 and workspace.key(dict(reversed(INPUTS.items()))) == workspace.key(INPUTS)


def test_a_compiler_that_was_killed_is_said_to_want_memory(tmp_path):
    with pytest.raises(CouldNotRun) as caught:
        driver._run(["sh", "-c", "kill -9 $$"], {"PATH": "/usr/bin:/bin"}, "the native build failed")
    assert "more memory" in caught.value.mend
    with pytest.raises(CouldNotRun, match=r"failed \(exit code 3\)"):
        driver._run(["sh", "-c", "exit 3"], {"PATH": "/usr/bin:/bin"}, "the native build failed")


def test_memory_is_the_machines_or_the_smaller_limit(tmp_path):
    whole = memory_gib(tmp_path / "none")
    (tmp_path / "max").write_text("max\n")
    assert memory_gib(tmp_path / "max") == whole > 0
    (tmp_path / "limit").write_text(str(2**29))
    assert memory_gib(tmp_path / "limit") == min(whole, 0.5)
