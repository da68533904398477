"""A rig and what is wanted of it -> a report. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sm86.doctor.facts import Rig
from sm86.doctor.finding import Finding, Report
from sm86.doctor.placement import place
from sm86.doctor.rules import containers, driver, gpus, links, machine
from sm86.doctor.want import Want

Rule = Callable[[Rig, Want], Finding | None]

OF_CARDS: tuple[Rule, ...] = (
    gpus.model,
    gpus.memory,
    gpus.memory_free,
    gpus.processes,
    gpus.errors,
    gpus.throttle,
    gpus.power,
    gpus.hung,
    gpus.temperature,
    gpus.mode,
    driver.replays,
    links.slots,
    links.links_under_load,
)
"""Judged over the cards that answer: one that is lost has its own finding, and must not hide the others."""

RULES: tuple[Rule, ...] = (
    gpus.count,
    *OF_CARDS,
    driver.driver,
    driver.libraries,
    driver.xid,
    driver.kernel_faults,
    links.topology,
    links.numa,
    links.peers,
    links.peer_copies,
    links.bar1,
    links.iommu,
    links.acs,
    containers.docker,
    containers.compose,
    containers.toolkit,
    containers.cdi,
    containers.cgroups,
    containers.restarts,
    machine.kind,
    machine.ram,
    machine.swap,
    machine.shm,
    machine.disks,
    machine.weights_disk,
    machine.ports,
    machine.uptime,
    machine.host_memory,
)


def judge(rig: Rig, want: Want) -> Report:
    """Every rule that applies, in order, and the placement of the wanted ranks."""
    answering = replace(rig, gpus=None if rig.gpus is None else tuple(gpu for gpu in rig.gpus if not gpu.problem))
    found = (rule(answering if rule in OF_CARDS else rig, want) for rule in RULES)
    findings = tuple(finding for finding in found if finding is not None)
    return Report(
        findings=findings,
        placement=place(rig, want.ranks),
        envelope=want.envelope,
        mark=rig.mark,
        missed=rig.missed,
        not_applicable=len(RULES) - len(findings),
    )
