"""The native build's driver with stand-in compilers: it resumes, refuses what does not fit, and leaves nothing half."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.image.native import build as driver
from sm86.image.native import workspace
from sm86.image.native.jobs import memory_gib
from sm86.image.native.patch import HOST_ONLY, TARGETS, patch
from sm86.image.native.toolchain import Toolchain
from tests.image.native.test_patch import source

INPUTS = {"source": "a", "torch": "2.11.0"}


def archive(path: Path, cmake: str, extra: str = "") -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, text in (("vllm-0.26.0/CMakeLists.txt", cmake), ("vllm-0.26.0/csrc/a.cu", extra)):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text.encode()), 315532800
            file.addfile(member, io.BytesIO(text.encode()))
    return path


def facts(path: Path, sass: tuple[int, ...] = (86,), ptx: tuple[int, ...] = ()) -> dict[str, object]:
    """What a library holds, where the one without device code holds none."""
    own = HOST_ONLY not in path.name
    return {"bytes": 7, "sass": dict.fromkeys(sass, 1) if own else {}, "ptx": dict.fromkeys(ptx, 1) if own else {}}


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
    monkeypatch.setattr(driver, "_facts", facts)
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
    (tree,) = (tmp_path / "work").glob("sm_86/*/source/csrc/a.cu")
    before = tree.stat().st_mtime_ns
    monkeypatch.setattr(driver, "_run", whole)
    driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=1)
    assert tree.stat().st_mtime_ns == before, "a source written again would look new"
    assert len(list((tmp_path / "work").glob("sm_86/*/build/first.o"))) == 1
    driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=1, fresh=True)
    assert not list((tmp_path / "work").glob("sm_86/*/build/first.o"))


def test_another_source_has_another_folder_and_the_old_one_goes(machine, tmp_path):
    driver.build(archive(tmp_path / "vllm-0.26.0.tar.gz", source()), tmp_path / "o", tmp_path / "work", jobs=1)
    (first,) = (tmp_path / "work/sm_86").iterdir()
    driver.build(archive(tmp_path / "vllm-0.26.0.tar.gz", source(), "x"), tmp_path / "o", tmp_path / "work", jobs=1)
    (second,) = (tmp_path / "work/sm_86").iterdir()
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


def test_every_real_input_changes_the_folder(tmp_path, monkeypatch):
    versions = dict.fromkeys(workspace.PACKAGES, "1")
    monkeypatch.setattr(workspace.importlib.metadata, "version", lambda name: versions[name])
    compiler = ["g++ 12"]
    shown = lambda *_, **__: subprocess.CompletedProcess([], 0, compiler[0])  # noqa: E731
    monkeypatch.setattr(workspace.subprocess, "run", shown)
    archive_ = tmp_path / "vllm.tar.gz"
    archive_.write_bytes(b"one")
    keys = []

    def note(text: str = "project()") -> None:
        keys.append(workspace.key(workspace.inputs(archive_, text)))

    note()
    note("project(other)")
    note(patch(source()).text)
    note(patch(source(), ptx=True).text)
    for name in workspace.PACKAGES:
        versions[name] = "2"
        note()
    compiler[0] = "g++ 13"
    note()
    archive_.write_bytes(b"two")
    note()
    assert len(set(keys)) == len(keys) == 6 + len(workspace.PACKAGES)


def test_a_proof_with_ptx_leaves_the_rigs_objects(machine, tmp_path, monkeypatch):
    sdist = archive(tmp_path / "vllm-0.26.0.tar.gz", source())
    driver.build(sdist, tmp_path / "out", tmp_path / "work", jobs=1)
    monkeypatch.setattr(driver, "_facts", lambda path: facts(path, ptx=(86,)))
    driver.build(sdist, tmp_path / "proof", tmp_path / "work", ptx=True, jobs=1)
    assert json.loads((tmp_path / "proof/native.json").read_text())["ptx"] is True
    assert [len(list((tmp_path / "work" / kind).iterdir())) for kind in ("sm_86", "ptx")] == [1, 1]


@pytest.mark.parametrize(
    ("found", "ptx", "words"),
    [
        ({}, True, "PTX of none; 86 was asked for"),
        ({"ptx": (86,)}, False, "PTX of 86; none was asked for"),
        ({"sass": (80, 86)}, False, "SASS of 80, 86; 86 was asked for"),
        ({"sass": ()}, False, "SASS of none; 86 was asked for"),
    ],
)
def test_libraries_of_other_code_than_asked_for_are_refused(machine, tmp_path, monkeypatch, found, ptx, words):
    monkeypatch.setattr(driver, "_facts", lambda path: facts(path, **found))
    with pytest.raises(CouldNotRun, match=words):
        driver.build(archive(tmp_path / "v.tar.gz", source()), tmp_path / "out", tmp_path / "work", ptx, jobs=1)
    assert not (tmp_path / "out").exists()


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
