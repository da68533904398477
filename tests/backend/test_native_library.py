"""Finding and loading the attention library: of the right source, and with clear words when it cannot be."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("the library's wrapper imports torch", allow_module_level=True)

import torch

from sm86.backend import nvcc
from sm86.backend.attention import build, native
from sm86.backend.kernels import pages
from sm86.backend.layout import main_page
from sm86.backend.refusal import Refused

needs_nvcc = pytest.mark.skipif(nvcc.find_nvcc() is None, reason="no nvcc on this machine: the library is not built")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SM86_NATIVE_LIBRARY", raising=False)
    monkeypatch.setattr(build, "LIBRARY", dataclasses.replace(build.LIBRARY, file="absent.so"))
    loads = native.library  # a test may put another in its place
    loads.cache_clear()
    yield
    loads.cache_clear()


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


CTYPES = {"long long": ctypes.c_longlong, "int": ctypes.c_int, "float": ctypes.c_float}


def test_the_arguments_are_the_sources_field_by_field() -> None:
    text = re.search(r"struct SparseMlaArgs \{(.*?)\};", build.SOURCE.read_text(), re.S)
    assert text is not None
    fields = []
    for line in text[1].strip().splitlines():
        declared = re.fullmatch(r"\s*(?:const )?([a-z_0-9 ]*?)(\*?) (\w+(?:, \w+)*);", line)
        assert declared is not None, line
        kind = ctypes.c_void_p if declared[2] else CTYPES[declared[1]]
        fields += [(name, kind) for name in declared[3].split(", ")]
    assert fields == list(native._Arguments._fields_)


def test_the_kernel_gets_what_the_tensors_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every argument of a launch, by a library that only looks. The caches have strides of their own."""
    got: list[tuple[dict[str, Any], tuple[int, int, int]]] = []

    class Looks:
        @staticmethod
        def sm86_sparse_mla(arguments: Any, tile: int, combine: int, stream: int) -> int:
            one = arguments._obj
            got.append(({name: getattr(one, name) for name, _ in one._fields_}, (tile, combine, stream)))
            return 0

    space = native.Workspace(82, torch.zeros(164 * 8 * 512), torch.zeros(164 * 16), torch.zeros(328, dtype=torch.int32))
    monkeypatch.setattr(native, "library", Looks)
    monkeypatch.setattr(native, "workspace", lambda device: space)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    _, window_cache = pages.empty_cache(3, main_page(64), 1_039_680, 37440)
    _, cache = pages.empty_cache(9, main_page(2), 1728)
    index, length = torch.zeros(2, 200, dtype=torch.int32)[:, :128], torch.zeros(2, dtype=torch.int32)
    window, extra = native.Source(window_cache, index, length), native.Source(cache, index[:, :96], length.clone())
    query, sink = torch.zeros(2, 24, 512, dtype=torch.bfloat16)[:, :16], torch.zeros(16)
    out = torch.zeros(2, 32, 512, dtype=torch.bfloat16)[:, :16]
    native.attend(query, window, extra, sink, 0.5, out, native.plan.Cut(32, 3, native.plan.LAST_BLOCK))
    native.attend(query, window, None, sink, 0.5, out)
    (with_extra, call), (alone, _) = got
    assert call == (32, 1, 77)
    places = {"query": query, "out": out, "sink": sink, "window_cache": window_cache, "window_index": index}
    places |= {"window_length": length, "extra_cache": cache, "extra_index": extra.index, "extra_length": extra.length}
    places |= {"partial": space.partial, "partial_ml": space.partial_ml, "counters": space.counters}
    want: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in places.items()}
    want |= {"query_stride": 24 * 512, "out_stride": 32 * 512, "window_block_stride": 1_039_680}
    want |= {"window_index_stride": 200, "extra_block_stride": 1728, "extra_index_stride": 200}
    want |= {"window_log2": 6, "window_width": 128, "extra_log2": 1, "extra_width": 96}
    want |= {"tokens": 2, "heads": 16, "splits": 3, "counter_rows": 164}
    scale = with_extra.pop("scale_log2")
    assert with_extra == want and abs(scale - 0.5 / math.log(2.0)) < 1e-6, "the kernel's exponentials are of base 2"
    for name in ("extra_cache", "extra_index", "extra_length"):
        assert alone[name] is None
    assert alone["extra_width"] == 0 and alone["window_cache"] == want["window_cache"]


@pytest.mark.parametrize(("code", "words"), [(-3, r"arguments refused \(-3\)"), (700, "an illegal address")])
def test_a_launch_that_fails_is_told(code: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimpleNamespace(
        sm86_sparse_mla=lambda *given: code,
        sm86_cuda_error=lambda number: b"an illegal address" if number == 700 else b"",
    )
    space = native.Workspace(82, torch.zeros(1), torch.zeros(1), torch.zeros(328, dtype=torch.int32))
    monkeypatch.setattr(native, "library", lambda: failing)
    monkeypatch.setattr(native, "workspace", lambda device: space)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    _, cache = pages.empty_cache(1, main_page(64), 37440)
    window = native.Source(cache, torch.zeros(1, 128, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    query = torch.zeros(1, 8, 512, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=words):
        native.attend(query, window, None, torch.zeros(8), 1.0, torch.zeros_like(query))
