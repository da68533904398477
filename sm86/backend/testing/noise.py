"""Means of few noisy values: how far one may lie above zero by chance. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

ERRORS = 3.0
"""A mean that lies so many standard errors above zero is no chance: about one in a thousand would be."""


@dataclass(frozen=True, slots=True)
class Sample:
    """count values by their mean and their mean square."""

    count: int
    mean: float
    square: float

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for fewer than two values, which then are held to zero itself."""
        if self.count < 2:
            return 0.0
        return sqrt(max(self.square - self.mean**2, 0.0) / (self.count - 1))

    @property
    def is_above_zero(self) -> bool:
        """Whether the mean is above zero by more than chance; what is not a number is."""
        return not self.mean <= ERRORS * self.error


def sample(values: Sequence[float]) -> Sample:
    """The sample of `values`; an empty one has mean 0."""
    count = len(values)
    return Sample(count, sum(values) / max(count, 1), sum(value * value for value in values) / max(count, 1))


def together(samples: Iterable[Sample]) -> Sample:
    """All values of several samples as one."""
    parts = tuple(samples)
    count = sum(part.count for part in parts)
    mean = sum(part.count * part.mean for part in parts) / max(count, 1)
    return Sample(count, mean, sum(part.count * part.square for part in parts) / max(count, 1))
