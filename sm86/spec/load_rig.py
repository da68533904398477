"""TOML files -> rig profiles."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.spec.rig import RigProfile
from sm86.spec.toml_table import Table, read_toml

RIGS_DIR = Path(__file__).parent / "rigs"


@cache
def rig_names() -> tuple[str, ...]:
    """Names of the profiles that ship with the product."""
    return tuple(sorted(path.stem for path in RIGS_DIR.glob("*.toml")))


def load_rig(path: Path) -> RigProfile:
    """The profile in a TOML file. Raises CouldNotRun for what cannot be right."""
    table = Table(read_toml(path), str(path))
    rig = RigProfile(
        name=table.text("name"),
        title=table.text("title"),
        gpu=table.text("gpu"),
        count=table.integer("count", 1, 1024),
        memory_mib=table.integer("memory_mib", 1024, 1_048_576),
        usable_mib=table.integer("usable_mib", 1024, 1_048_576),
        usable_estimated=table.flag("usable_estimated", default=False),
        used_mib=table.integer("used_mib", 0, 1_048_576, default=0),
        multiprocessors=table.integer("multiprocessors", 1, 1024),
        capability=_capability(table),
        source=table.text("source"),
    )
    table.finish()
    if not rig.usable_mib <= rig.memory_mib:
        raise CouldNotRun(
            f"{path}: usable_mib is {rig.usable_mib}, above memory_mib {rig.memory_mib}",
            "usable_mib is what CUDA reports, memory_mib what nvidia-smi shows; the first is a little less",
        )
    if rig.used_mib >= rig.usable_mib:
        raise CouldNotRun(
            f"{path}: used_mib is {rig.used_mib} of {rig.usable_mib}",
            "write the MiB that others hold on each GPU, or 0",
        )
    return rig


@cache
def shipped_rigs() -> tuple[RigProfile, ...]:
    """Every profile that ships with the product, by name."""
    rigs = tuple(load_rig(RIGS_DIR / f"{name}.toml") for name in rig_names())
    for name, rig in zip(rig_names(), rigs, strict=True):
        if name != rig.name:
            raise CouldNotRun(f"{RIGS_DIR / name}.toml: name is {rig.name!r}", f"name the rig as its file: {name}")
    return rigs


def _capability(table: Table) -> tuple[int, int]:
    text = table.text("capability")
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise table.fail("capability", f"is {text!r}", 'write it as "8.6"')
    return int(major), int(minor)
