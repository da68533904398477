"""Rigs that several of these tests plan for."""

from __future__ import annotations

from dataclasses import replace

from sm86.fit.rig import GpuRoom, PlanRig, of_profile
from sm86.plan.units import GIB, MIB
from sm86.spec.load_rig import shipped_rigs

PROFILES = {profile.name: profile for profile in shipped_rigs()}
RIGS = {name: of_profile(profile) for name, profile in PROFILES.items()}
RIG = RIGS["8x3090"]


def rig_of(count: int, gib: float, used_mib: int = 0) -> PlanRig:
    """A rig of so many GPUs with so much usable memory."""
    room = GpuRoom("each GPU", round(gib * GIB), used_mib * MIB)
    return replace(RIG, slug="made", title=f"{count}x {gib:g} GiB", gpus=(room,) * count)
