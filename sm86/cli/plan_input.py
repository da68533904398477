"""What `invoke plan` is given: a rig by name or file, a model by folder."""

from __future__ import annotations

import difflib
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular
from sm86.fit.rig import MEND_FACTS, PlanRig, of_facts, of_profile
from sm86.json_text import parse
from sm86.plan.shape import FLASH, Shape, shape_of
from sm86.spec.load_rig import RIGS_DIR, load_rig, rig_names, shipped_rigs

DEFAULT_RIG = "8x3090"
_MOST_BYTES = 16 << 20


def read_rig(name: str | None) -> PlanRig:
    """The rig of a shipped profile's name, of a profile's TOML file, or of doctor's JSON; else the validated rig.

    Raises CouldNotRun: no such rig or file, contents that are neither.
    """
    wanted = name or DEFAULT_RIG
    if wanted in rig_names():
        return of_profile(load_rig(RIGS_DIR / f"{wanted}.toml"))
    path = Path(wanted)
    if wanted.endswith(".toml"):
        return of_profile(load_rig(path))
    if wanted.endswith(".json") or path.is_file():
        from sm86.doctor.facts_json import from_text

        try:
            facts = from_text(_read(path), wanted)
        except CouldNotRun as refusal:
            # a topology alone, which the doctor takes, knows nothing of memory
            raise CouldNotRun(refusal.what, MEND_FACTS) from None
        return of_facts(facts, shipped_rigs(), path.name)
    close = difflib.get_close_matches(wanted, rig_names(), 1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    raise CouldNotRun(
        f"there is no rig {wanted!r}",
        f"{hint}The profiles are: {', '.join(rig_names())}; or give a .toml profile, or the .json of `invoke doctor`",
    )


def read_model(name: str | None) -> Shape:
    """The shape of a checkpoint's folder (or config.json); without one DeepSeek-V4-Flash. Raises CouldNotRun."""
    if name is None:
        return FLASH
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = parse(_read(path))
    except ValueError as error:
        raise CouldNotRun(f"{path} is no JSON: {error}", "give a checkpoint's folder, or its config.json") from None
    return shape_of(config, str(path))


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise CouldNotRun(f"cannot read {path}: {words}", "give the path of a readable file") from None
