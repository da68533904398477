"""Made-up runs for the tests of what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sm86.comm.answer import MEASURED, Cell, Run
from sm86.comm.matrix import Setting, settings

BY_NAME = {setting.name: setting for setting in settings()}


def some(*names: str) -> tuple[Setting, ...]:
    return tuple(BY_NAME[name] for name in names)


def run(setting: str, repeat: int, us: Mapping[int, float], ran: str = "Ring LL, 1 channel", **more: object) -> Run:
    cells = {size: Cell(value, 0.4, True, ran) for size, value in us.items()}
    return Run(setting, repeat, MEASURED, "", 9.0, cells, {"transports": {"SHM/direct/direct": 4}, **more})


def lost(setting: str, repeat: int, state: str, why: str) -> Run:
    return Run(setting, repeat, state, why, 9.0)


def repeated(setting: str, us: Mapping[int, Sequence[float]], ran: str = "Ring LL, 1 channel") -> list[Run]:
    count = len(next(iter(us.values())))
    return [run(setting, at, {size: values[at] for size, values in us.items()}, ran) for at in range(count)]
