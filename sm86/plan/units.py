"""Bytes, intervals of bytes, and how vLLM prints them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Bytes:
    """From `low` to `high` bytes, both included; equal where the number is arithmetic and not an estimate.

    Raises ValueError when low is above high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"an interval from {self.low} down to {self.high}")

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Bytes:
        return Bytes(-self.high, -self.low)


def exactly(number: int) -> Bytes:
    """An interval of one number."""
    return Bytes(number, number)


def total(parts: Iterable[Bytes]) -> Bytes:
    """The sum; nothing is zero bytes."""
    sum_ = exactly(0)
    for part in parts:
        sum_ = sum_ + part
    return sum_


def gib_as_printed(number: int) -> str:
    """vLLM's own way: GiB to two decimals, trailing zeros dropped ("0.3"); its `utils/mem_utils.py` format_gib."""
    return f"{round(number / GIB, 2)}"


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)
