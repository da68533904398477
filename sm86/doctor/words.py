"""How numbers and lists of GPUs are written. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from sm86.doctor.facts import Gpu

GIB = 1 << 30
MIB = 1 << 20

T = TypeVar("T")


def gib(size: float) -> str:
    """Bytes in GiB, or in MiB below one: "22.76 GiB", "256 MiB"."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as "0-3, 6"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def gpus_of(numbers: Iterable[int]) -> str:
    """ "GPU 5", "GPUs 0-3, 6"."""
    chosen = sorted(set(numbers))
    return f"GPU{'' if len(chosen) == 1 else 's'} {ranges(chosen)}"


def by_value(gpus: Sequence[Gpu], read: Callable[[Gpu], T]) -> dict[T, list[int]]:
    """GPU numbers by a fact's value, in the order in which values first come."""
    found: dict[T, list[int]] = {}
    for gpu in gpus:
        found.setdefault(read(gpu), []).append(gpu.index)
    return found


def spread(gpus: Sequence[Gpu], read: Callable[[Gpu], T], write: Callable[[T], str] = str) -> str:
    """ "350 W", or "350 W (GPUs 0-6), 200 W (GPU 7)" where they differ."""
    values = by_value(gpus, read)
    if len(values) == 1:
        return write(next(iter(values)))
    return ", ".join(f"{write(value)} ({gpus_of(numbers)})" for value, numbers in values.items())


def version_numbers(text: str) -> tuple[int, ...]:
    """ "580.126.09" as (580, 126, 9); empty where it is no version."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(re.fullmatch("[0-9]{1,9}", part) for part in parts) else ()
