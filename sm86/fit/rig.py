"""What planning needs to know of a rig, from a profile or from doctor's facts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm86.doctor.facts import Gpu, Rig
from sm86.errors import CouldNotRun
from sm86.plan.units import GIB, MIB
from sm86.spec.rig import RigProfile

CUDA_RESERVE = 318 * MIB
"""What a GPU's driver keeps of the memory that nvidia-smi shows: 24576 MiB there, 23.69 GiB to CUDA, on a 3090."""

FEW_MULTIPROCESSORS = 82
"""Where the number is not known: a 3090's. It decides a few MiB."""

NOTED_MIB = 64
"""Memory that others hold is named above this; a display server alone holds a few MiB."""

MEND_FACTS = "give what `invoke doctor --json` wrote on the rig, or a profile like those of sm86/spec/rigs"


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """One GPU: total as CUDA reports it, and what others hold of it; bytes. label: how it is named in words."""

    label: str
    total: int
    used: int

    @property
    def free(self) -> int:
        return self.total - self.used


@dataclass(frozen=True, slots=True)
class PlanRig:
    """The GPUs of a rig. slug: a name that an envelope's may be made of; notes: what is estimated, or odd;
    mark: not empty where the facts were composed; it is shown wherever the plan is."""

    slug: str
    title: str
    gpus: tuple[GpuRoom, ...]
    multiprocessors: int
    capability: tuple[int, int] | None
    notes: tuple[str, ...] = ()
    mark: str = ""

    @property
    def count(self) -> int:
        return len(self.gpus)

    def tightest(self, ranks: int) -> GpuRoom:
        """The GPU with the least free memory among the `ranks` roomiest: every rank needs the same.

        Raises CouldNotRun where there are fewer GPUs.
        """
        if ranks > self.count:
            has = "1 GPU" if self.count == 1 else f"{self.count} GPUs"
            raise CouldNotRun(
                f"{self.title} has {has}, tensor parallel {ranks} needs {ranks}",
                "plan for fewer ranks (--tensor-parallel), or for a rig that has them",
            )
        return sorted(self.gpus, key=lambda gpu: -gpu.free)[ranks - 1]


def of_profile(profile: RigProfile) -> PlanRig:
    """The rig of a profile."""
    room = [GpuRoom("each GPU", profile.usable_mib * MIB, profile.used_mib * MIB) for _ in range(profile.count)]
    notes: tuple[str, ...] = ()
    if profile.usable_estimated:
        notes = (f"usable memory of each {profile.gpu} is an estimate: {profile.source}",)
    return PlanRig(profile.name, profile.title, tuple(room), profile.multiprocessors, profile.capability, notes)


def of_facts(facts: Rig, profiles: Sequence[RigProfile], where: str = "the facts") -> PlanRig:
    """The rig of doctor's facts; profiles: shipped ones, whose knowledge of a GPU of the same name is used.

    Raises CouldNotRun where no GPU's memory is known.
    """
    known = {profile.gpu: profile for profile in profiles}
    if not facts.gpus:
        what = "has no GPU" if facts.gpus is not None else "does not say which GPUs there are"
        raise CouldNotRun(f"{where} {what}", MEND_FACTS)
    rooms: list[GpuRoom] = []
    notes: list[str] = []
    held: dict[int, list[str]] = {}
    guessed: dict[int, list[str]] = {}
    for gpu in facts.gpus:
        if gpu.memory_total is None:
            notes.append(f"GPU {gpu.index} is left out: {gpu.problem or 'its memory is not known'}")
            continue
        total, estimated = _usable(gpu, known)
        if estimated:
            guessed.setdefault(gpu.memory_total, []).append(str(gpu.index))
        used = _used(gpu, total)
        held.setdefault(used // MIB, []).append(str(gpu.index))
        rooms.append(GpuRoom(f"GPU {gpu.index}", total, used))
    if not rooms:
        raise CouldNotRun(f"{where} knows the memory of none of its {len(facts.gpus)} GPUs", MEND_FACTS)
    for size, numbers in guessed.items():
        notes.append(f"GPU {', '.join(numbers)}: what CUDA reports of {size / GIB:.2f} GiB is an estimate")
    for size, numbers in held.items():
        if size > NOTED_MIB:
            notes.append(f"GPU {', '.join(numbers)}: others hold {size} MiB{' each' if len(numbers) > 1 else ''}")
    names = list(dict.fromkeys(gpu.name or "GPU without a name" for gpu in facts.gpus))
    if len(names) > 1:
        notes.append(f"GPUs of several kinds ({', '.join(names)}): the slowest and the smallest set the pace")
    capabilities = [gpu.capability for gpu in facts.gpus if gpu.capability]
    processors = [known[name].multiprocessors for name in names if name in known]
    return PlanRig(
        slug=f"rig-{len(rooms)}gpu",
        title=f"{len(rooms)}x {', '.join(names)} ({where})",
        gpus=tuple(rooms),
        multiprocessors=max(processors, default=FEW_MULTIPROCESSORS),
        capability=min(capabilities, default=None),
        notes=tuple(notes),
        mark=facts.mark,
    )


def _usable(gpu: Gpu, known: dict[str, RigProfile]) -> tuple[int, bool]:
    """Bytes that CUDA reports, and whether that is an estimate."""
    assert gpu.memory_total is not None
    profile = known.get(gpu.name or "")
    # the same name with another size is another card (a 3080 of 10, 12 or 20 GiB), or one with ECC on
    if profile is not None and abs(gpu.memory_total - profile.memory_mib * MIB) < 64 * MIB:
        return profile.usable_mib * MIB, profile.usable_estimated
    return gpu.memory_total - CUDA_RESERVE, True


def _used(gpu: Gpu, usable: int) -> int:
    """Bytes that others hold: by what is free, for not every process is named; but the driver's own share is no use."""
    if gpu.memory_free is not None:
        return max(0, min(usable, usable - gpu.memory_free))
    return min(usable, sum(process.memory or 0 for process in gpu.processes or ()))
