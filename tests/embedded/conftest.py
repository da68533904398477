"""Fixtures of the embedded engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.embedded.tiny_llama import metadata, tensors, write_gguf


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, numpy.ndarray]]]:
    """make_gguf(drop=(...), add={...}, change={key: value or None}) -> (path, values as a reader gets them)."""

    def make(
        drop: tuple[str, ...] = (), add: dict[str, numpy.ndarray] | None = None, change: dict[str, Any] | None = None
    ) -> tuple[Path, dict[str, numpy.ndarray]]:
        values = {name: array for name, array in (tensors() | (add or {})).items() if name not in drop}
        about = {key: value for key, value in (metadata() | (change or {})).items() if value is not None}
        path = tmp_path / "tiny.gguf"
        return path, write_gguf(path, values, about)

    return make
