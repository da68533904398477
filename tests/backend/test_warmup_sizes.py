"""Which batch sizes the warm-up runs: one of every class that compiles something of its own."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("the warm-up imports torch and Triton", allow_module_level=True)

from sm86.backend.warmup import split_classes, token_counts


def splits(multiprocessors: int, tokens: int) -> int:
    return max(1, min(multiprocessors // -(-tokens // 64), 16))


@pytest.mark.parametrize("multiprocessors", [82, 132, 8])
@pytest.mark.parametrize("most", [1, 256, 512, 2048])
def test_every_number_of_splits_is_met(multiprocessors: int, most: int) -> None:
    wanted = {splits(multiprocessors, tokens) for tokens in range(1, most + 1)}
    assert {splits(multiprocessors, tokens) for tokens in split_classes(multiprocessors, most)} == wanted


def test_counts_on_a_3090() -> None:
    assert token_counts(82, 512) == [1, 16, 17, 128, 321, 385, 449, 512]
    assert token_counts(82, 8) == [1, 8]
