"""Finding and loading the attention library: of the right source, and with clear words when it cannot be."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("the library's wrapper imports torch", allow_module_level=True)

from sm86.backend import nvcc
from sm86.backend.attention import build, native
from sm86.backend.refusal import Refused

needs_nvcc = pytest.mark.skipif(nvcc.find_nvcc() is None, reason="no nvcc on this machine: the library is not built")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SM86_NATIVE_LIBRARY", raising=False)
    monkeypatch.setattr(build, "LIBRARY", dataclasses.replace(build.LIBRARY, file="absent.so"))
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def test_without_nvcc_it_says_how_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    with pytest.raises(Refused, match=r"no nvcc.*python -m sm86\.backend\.attention\.build /"):
        native.library()


def test_an_absent_library_that_was_named_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM86_NATIVE_LIBRARY", str(tmp_path / "nothing.so"))
    with pytest.raises(Refused, match=r"cannot load .*nothing\.so"):
        native.library()


@needs_nvcc
def test_it_is_built_on_demand_and_knows_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = native.library()
    assert library.sm86_source_hash().decode() == build.LIBRARY.source_hash()
    assert library.sm86_sparse_mla_args_size() == ctypes.sizeof(native._Arguments)
    assert library.sm86_max_splits() == native.plan.MAX_SPLITS
    native.library.cache_clear()
    (found,) = tmp_path.glob("sm86/*/absent.so")
    monkeypatch.setenv("SM86_NATIVE_LIBRARY", str(found))
    other = tmp_path / "other.cu"
    other.write_text("// another source")
    monkeypatch.setattr(build, "LIBRARY", dataclasses.replace(build.LIBRARY, sources=(other,)))
    with pytest.raises(Refused, match="was built from source"):
        native.library()
