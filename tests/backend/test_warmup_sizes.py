"""Which batch sizes the warm-up runs, and that the first layer's splits do not follow the batch size."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("the warm-up imports torch and Triton", allow_module_level=True)

from sm86.backend.hooks.mhc_splits import splits
from sm86.backend.warmup import token_counts


@pytest.mark.parametrize(
    ("most", "want"), [(512, [1, 16, 17, 128, 512]), (8, [1, 8]), (2048, [1, 16, 17, 128, 1024, 2048])]
)
def test_counts(most: int, want: list[int]) -> None:
    assert token_counts(most) == want


def test_splits() -> None:
    assert splits(64, 4096) == 16 and splits(64, 16384) == 64 and splits(64, None) == 1 and splits(64, 64) == 1
