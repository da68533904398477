"""The CSV of `nvidia-smi --query-gpu`, which is asked where NVML cannot be. Pure.

Values that a card does not have are written N/A, [N/A], [Not Supported], [Unknown Error] or ERR!.
"""

from __future__ import annotations

import csv

from sm86.doctor.facts import Gpu, Pcie

FIELDS = (
    "pci.bus_id",
    "uuid",
    "name",
    "compute_cap",
    "memory.total",
    "memory.free",
    "memory.used",
    "ecc.mode.current",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "power.default_limit",
    "power.max_limit",
    "temperature.gpu",
    "utilization.gpu",
    "persistence_mode",
    "display_active",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "driver_version",
)
"""What is asked, in this order: nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits."""

MIB = 1 << 20


def from_csv(text: str) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs in PCI bus order, and the driver's version. Lines that are no card's (warnings) are passed over; a value
    that cannot be read is None."""
    rows = [
        dict(zip(FIELDS, (cell.strip() for cell in cells), strict=True))
        for cells in csv.reader(text.splitlines())
        if len(cells) == len(FIELDS)
    ]
    rows.sort(key=lambda row: row["pci.bus_id"].lower())
    gpus = tuple(_gpu(index, row) for index, row in enumerate(rows))
    return gpus, next((_text(row["driver_version"]) for row in rows), None)


def _gpu(index: int, row: dict[str, str]) -> Gpu:
    load = _whole(row["utilization.gpu"])
    return Gpu(
        index=index,
        uuid=_text(row["uuid"]),
        name=_text(row["name"]),
        bus_id=_text(row["pci.bus_id"]),
        capability=_capability(row["compute_cap"]),
        memory_total=_bytes(row["memory.total"]),
        memory_free=_bytes(row["memory.free"]),
        memory_used=_bytes(row["memory.used"]),
        ecc=_switch(row["ecc.mode.current"]),
        sm_clock=_whole(row["clocks.sm"]),
        sm_clock_max=_whole(row["clocks.max.sm"]),
        power=_number(row["power.draw"]),
        power_limit=_number(row["power.limit"]),
        power_limit_default=_number(row["power.default_limit"]),
        power_limit_max=_number(row["power.max_limit"]),
        temperature=_whole(row["temperature.gpu"]),
        utilization=load,
        persistence=_switch(row["persistence_mode"]),
        display=_switch(row["display_active"]),
        pcie=Pcie(
            generation=_whole(row["pcie.link.gen.current"]),
            max_generation=_whole(row["pcie.link.gen.max"]),
            width=_whole(row["pcie.link.width.current"]),
            max_width=_whole(row["pcie.link.width.max"]),
            busy=None if load is None else load >= 10,
        ),
    )


def _text(cell: str) -> str | None:
    unknown = cell.strip("[]").lower() in ("", "n/a", "not supported", "unknown error", "err!", "gpu is lost")
    return None if unknown else cell


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None


def _whole(cell: str) -> int | None:
    value = _number(cell)
    return None if value is None else int(value)


def _bytes(cell: str) -> int | None:
    value = _number(cell)
    return None if value is None else int(value) * MIB


def _switch(cell: str) -> bool | None:
    return {"enabled": True, "disabled": False}.get(cell.lower())


def _capability(cell: str) -> tuple[int, int] | None:
    major, _, minor = cell.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
