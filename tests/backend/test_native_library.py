"""Finding and building the attention library: once, of the right source, and with clear words when it cannot be."""

from __future__ import annotations

import ctypes
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("the library's wrapper imports torch", allow_module_level=True)

from sm86.backend.attention import build, native
from sm86.backend.refusal import Refused

needs_nvcc = pytest.mark.skipif(build.find_nvcc() is None, reason="no nvcc on this machine: the library is not built")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SM86_NATIVE_LIBRARY", raising=False)
    monkeypatch.setattr(native, "LIBRARY", "absent.so")
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def test_without_nvcc_it_says_how_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    with pytest.raises(Refused, match="no nvcc"):
        native.library()


def test_an_absent_library_that_was_named_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM86_NATIVE_LIBRARY", str(tmp_path / "nothing.so"))
    with pytest.raises(Refused, match=r"cannot load .*nothing\.so"):
        native.library()


def test_ranks_that_start_together_build_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = []

    def slow(output: Path) -> Path:
        built.append(output)
        output.write_bytes(b"library")
        return output

    monkeypatch.setattr(build, "build", slow)
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: build.build_once(tmp_path / "a/b.so"), range(8)))
    assert len(built) == 1 and paths == {tmp_path / "a/b.so"}


def test_nvcc_of_the_python_package_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "nvidia/cu13"
    for folder in ("bin", "lib"):
        (root / folder).mkdir(parents=True)
    (root / "bin/nvcc").write_text("#!/bin/sh\n")
    (root / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.syspath_prepend(tmp_path)
    assert build.find_nvcc() == str(root / "bin/nvcc")
    assert build.link_flags(str(root / "bin/nvcc")) == [], "a toolkit's own nvcc needs no flag"
    (root / "lib/libcudart_static.a").write_text("")
    assert build.link_flags(str(root / "bin/nvcc")) == [f"-L{root / 'lib'}"]


@needs_nvcc
def test_it_is_built_on_demand_and_knows_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native.library()
    assert library.sm86_source_hash().decode() == build.source_hash()
    assert library.sm86_sparse_mla_args_size() == ctypes.sizeof(native._Arguments)
    assert library.sm86_max_splits() == native.plan.MAX_SPLITS
    native.library.cache_clear()
    monkeypatch.setattr(native, "source_hash", lambda: "0" * 16)
    with pytest.raises(Refused, match="was built from source"):
        native.library()
