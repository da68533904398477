"""What the value check compares with, on the CPU: needs torch, no GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sm86.backend.collectives.trial import message, ordered_sum, same_bits  # noqa: E402


def test_messages_are_the_same_everywhere_and_differ_between_ranks() -> None:
    one = message(1024, torch.bfloat16, "cpu", 3, 0)
    assert one.numel() == 512 and same_bits(one, message(1024, torch.bfloat16, "cpu", 3, 0))
    assert not same_bits(one, message(1024, torch.bfloat16, "cpu", 3, 1))
    assert message(1024, torch.float32, "cpu", 3, 0).numel() == 256


def test_the_sum_is_ordered_and_rounded_once() -> None:
    parts = [torch.tensor([value], dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0, -256.0)]
    assert ordered_sum(parts).item() == 2.0
    rounded = parts[0]
    for part in parts[1:]:
        rounded = rounded + part
    assert rounded.item() != 2.0, "rounding at every step, as a ring of bf16 does, gives something else"


def test_equal_values_are_not_equal_bits() -> None:
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
