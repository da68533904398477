"""The check's stand-in for the driver's library answers that there is no GPU, and for the driver's functions alone."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm86.image.check import driver_stub


def test_the_stand_in_answers_that_there_is_no_gpu(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    (tmp_path / "driver.c").write_text(driver_stub.source_text({"cuMemCreate"}))
    library = tmp_path / "libcuda-test.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.c")], check=True)
    loaded = ctypes.CDLL(str(library))
    assert (loaded.cuInit(0), loaded.cuMemCreate()) == (driver_stub.NO_DEVICE, driver_stub.NO_DEVICE)


def test_only_the_drivers_own_functions_are_stood_in_for(tmp_path, monkeypatch):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "a.so").write_bytes(b"")
    words = " U cuGetProcAddress_v2\n U cublasCreate_v2\n U cudaMalloc\n U cuFileOpen\n U cuptiGetVersion\n U other\n"
    monkeypatch.setattr(driver_stub.subprocess, "run", lambda *_args, **_more: SimpleNamespace(stdout=words))
    assert driver_stub.symbols(Path(tmp_path)) == {"cuGetProcAddress_v2"}
