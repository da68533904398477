"""Each rule: rigs on which it fails or warns, the good rig on which it is ok, unknown where its fact is missing."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.doctor.facts import (
    Disk,
    Docker,
    Driver,
    GpuProcess,
    Host,
    HostBandwidth,
    Iommu,
    KernelLog,
    LinkLoad,
    NumaNode,
    PeerCopy,
    Port,
    Probe,
    Rig,
    Toolkit,
    Topology,
    Xid,
)
from sm86.doctor.finding import FAIL, OK, UNKNOWN, WARN, Finding
from sm86.doctor.judge import RULES, judge
from sm86.doctor.want import Want
from tests.doctor.rigs import BAD, GOOD, claimed, first, gpus, part, with_links

G = 1 << 30
WANT = Want()


def findings(rig: Rig) -> dict[str, Finding]:
    found = judge(rig, WANT).findings
    assert len({finding.rule for finding in found}) == len(found), "two findings of one rule"
    return {finding.rule: finding for finding in found}


@dataclass(frozen=True)
class Case:
    rule: str
    state: str
    words: str
    rig: Rig


def probed(**changes: Any) -> Rig:
    assert GOOD.probe is not None
    return replace(GOOD, probe=replace(GOOD.probe, **changes))


def log(*xids: int, others: tuple[str, ...] = ()) -> Rig:
    entries = tuple(Xid(number, "0000:21:00.0", 5.0) for number in xids)
    return replace(GOOD, kernel_log=KernelLog(True, "journal", entries, others, len(others)))


def but_for(one: int, other: int, word: str | None, usual: str = "PHB") -> tuple[tuple[str | None, ...], ...]:
    """A square of `usual`, but for one pair."""
    return tuple(
        tuple("X" if row == column else word if {row, column} == {one, other} else usual for column in range(8))
        for row in range(8)
    )


def iommu(**changes: Any) -> Iommu:
    return replace(GOOD.host.iommu, **changes)


def disk(use: str, **changes: Any) -> Rig:
    return replace(GOOD, disks=tuple(replace(d, **changes) if d.use == use else d for d in GOOD.disks or ()))


def idle(width: int, generation: int = 1) -> Rig:
    rig = gpus(lambda gpu: {"pcie": replace(gpu.pcie, width=width, generation=generation)})
    return replace(rig, probe=None)


def loaded(width: int, generation: int, rate: float = 24.0, gpu: int = 2) -> Rig:
    links = tuple(
        LinkLoad(at, rate, rate, None, generation if at == gpu else 4, width if at == gpu else 16, 0) for at in range(8)
    )
    return probed(links=links)


def copies(**changes: Any) -> Rig:
    good = (PeerCopy(0, 1, True, "right", "peer", 20.0), PeerCopy(1, 0, True, "right", "peer", 21.0))
    return replace(claimed(), probe=Probe("CUDA driver API", "ok", copies=(replace(good[0], **changes), good[1])))


CASES = (
    Case("gpu-count", FAIL, "no NVIDIA GPU", replace(GOOD, gpus=())),
    Case("gpu-count", FAIL, "7 GPUs", part("host", first(7), nvidia_devices=7)),
    Case("gpu-count", FAIL, "PCI bus has 8 NVIDIA GPUs, the driver serves 7", first(7)),
    Case("gpu-count", WARN, "PCI bus has 9 NVIDIA GPUs", part("host", nvidia_devices=9)),
    Case("gpu-count", FAIL, "GPU 5 cannot be asked: GPU is lost", gpus(lambda gpu: {"problem": "GPU is lost"}, [5])),
    Case("gpu-count", UNKNOWN, "PCI bus shows 8", replace(GOOD, gpus=None)),
    Case("gpu-model", FAIL, "NVIDIA H200, 9.0", gpus(lambda gpu: {"capability": (9, 0), "name": "NVIDIA H200"})),
    Case("gpu-model", WARN, "8.6 (GPUs 1-7)", gpus(lambda gpu: {"name": "RTX A5000"}, [0])),
    Case("gpu-model", WARN, "8.9", gpus(lambda gpu: {"capability": (8, 9), "name": "RTX 4090"})),
    Case("gpu-model", UNKNOWN, "not known", gpus(lambda gpu: {"capability": None}, [3])),
    Case("gpu-memory", FAIL, "20.00 GiB", gpus(lambda gpu: {"memory_total": 20 * G})),
    Case(
        "gpu-memory", WARN, "48.00 GiB (GPU 0)", gpus(lambda gpu: {"memory_total": 48 * G, "memory_free": 47 * G}, [0])
    ),
    Case("gpu-memory", UNKNOWN, "not known", gpus(lambda gpu: {"memory_total": None}, [7])),
    Case(
        "gpu-memory-free", FAIL, "GPU 4 has 22.76 GiB of 24.00", gpus(lambda gpu: {"memory_free": int(22.76 * G)}, [4])
    ),
    Case(
        "gpu-memory-free",
        WARN,
        "container sm86-80k-4seq",
        gpus(
            lambda gpu: {
                "memory_free": G,
                "processes": (GpuProcess(9, 22 * G, "VLLM::Worker_TP0", "container sm86-80k-4seq"),),
            }
        ),
    ),
    Case("gpu-memory-free", UNKNOWN, "not known", gpus(lambda gpu: {"memory_free": None}, [0])),
    Case(
        "gpu-processes",
        FAIL,
        "dead containers on GPU 3",
        gpus(
            lambda gpu: {
                "processes": (GpuProcess(71, 9 * G, "VLLM::Worker_PP0_TP0_DCP0", "dead container 0123456789ab"),)
            },
            [3],
        ),
    ),
    Case(
        "gpu-processes",
        WARN,
        "not by a process that can be seen",
        gpus(lambda gpu: {"processes": (GpuProcess(71, 9 * G, None, "unseen"),)}, [3]),
    ),
    Case("gpu-processes", WARN, "GPU 6", gpus(lambda gpu: {"memory_used": 9 * G}, [6])),
    Case("gpu-processes", UNKNOWN, "not known", gpus(lambda gpu: {"processes": None}, [0])),
    Case("ecc", FAIL, "uncorrected memory errors", gpus(lambda gpu: {"ecc": True, "ecc_errors": 2}, [1])),
    Case("ecc", WARN, "ECC is on", gpus(lambda gpu: {"ecc": True, "ecc_errors": 0})),
    Case("ecc", WARN, "on (GPU 1)", gpus(lambda gpu: {"ecc": True, "ecc_errors": 0}, [1])),
    Case("ecc", UNKNOWN, "not known", gpus(lambda gpu: {"capability": None})),
    Case(
        "gpu-clocks", FAIL, "GPU 5 is slowed down (heat", gpus(lambda gpu: {"throttle": ("hw_thermal_slowdown",)}, [5])
    ),
    Case("gpu-clocks", FAIL, "brake", gpus(lambda gpu: {"throttle": ("hw_power_brake_slowdown",)}, [5])),
    Case("gpu-clocks", WARN, "by hand", gpus(lambda gpu: {"throttle": ("applications_clocks_setting",)}, [5])),
    Case("gpu-clocks", WARN, "differ", gpus(lambda gpu: {"sm_clock_max": 1400}, [5])),
    Case("gpu-clocks", UNKNOWN, "not known", gpus(lambda gpu: {"throttle": None, "sm_clock": None}, [5])),
    Case("power-limit", WARN, "200 W (GPU 5)", gpus(lambda gpu: {"power_limit": 200.0}, [5])),
    Case("power-limit", WARN, "200 W, lowered from 350 W", gpus(lambda gpu: {"power_limit": 200.0})),
    Case("power-limit", UNKNOWN, "not known", gpus(lambda gpu: {"power_limit": None}, [5])),
    Case("gpu-hung", FAIL, "GPUs 0-7: 96 % busy at 18 W", gpus(lambda gpu: {"utilization": 96, "power": 18.0})),
    Case("gpu-hung", UNKNOWN, "not known", gpus(lambda gpu: {"power": None}, [5])),
    Case("temperature", FAIL, "93 °C", gpus(lambda gpu: {"temperature": 93}, [5])),
    Case("temperature", WARN, "GPU 5 is hottest, 84 °C", gpus(lambda gpu: {"temperature": 84}, [5])),
    Case("temperature", UNKNOWN, "not known", gpus(lambda gpu: {"temperature": None}, [5])),
    Case("gpu-mode", FAIL, "MIG", gpus(lambda gpu: {"mig": True}, [5])),
    Case("gpu-mode", FAIL, "prohibited", gpus(lambda gpu: {"compute_mode": "prohibited"}, [5])),
    Case("gpu-mode", WARN, "GPU 0 drives a display", gpus(lambda gpu: {"display": True}, [0])),
    Case("gpu-mode", WARN, "persistence mode is off on GPUs 0-7", gpus(lambda gpu: {"persistence": False})),
    Case("gpu-mode", UNKNOWN, "not known", gpus(lambda gpu: {"persistence": None}, [5])),
    Case("driver", FAIL, "no NVIDIA driver is loaded", replace(GOOD, driver=Driver("no driver", loaded=False))),
    Case("driver", FAIL, "does not answer", part("driver", nvml="hang")),
    Case("driver", FAIL, "two versions", part("driver", nvml="mismatch")),
    Case("driver", FAIL, "Unknown Error", part("driver", nvml="error", problem="Unknown Error")),
    Case("driver", FAIL, "550.54.14 (open kernel module) is too old", part("driver", version="550.54.14")),
    Case("driver", FAIL, "serves CUDA 12.8", part("driver", cuda=(12, 8))),
    Case("driver", WARN, "580.65.05", part("driver", version="580.65.05")),
    Case("driver", UNKNOWN, "NVML is not there", part("driver", nvml="missing", version=None)),
    Case("driver", UNKNOWN, "reads 'tomorrow'", part("driver", version="tomorrow")),
    Case("driver-libraries", WARN, "2 versions", part("driver", several=("570.86.15", "580.126.09"))),
    Case(
        "driver-libraries", WARN, "forward compatibility", part("toolkit", compat_folders=("/usr/local/cuda/compat",))
    ),
    Case("driver-libraries", UNKNOWN, "not known", part("driver", several=None)),
    Case("xid", FAIL, "Xid 79 (the GPU fell off the bus) on 0000:21:00.0", log(13, 79)),
    Case("xid", FAIL, "154", log(154)),
    Case("xid", WARN, "Xid 31 (a program's page fault) on 0000:21:00.0, 2 times", log(31, 31)),
    Case("xid", WARN, "Xid 8 on", log(8)),
    Case("xid", UNKNOWN, "could not be read", replace(GOOD, kernel_log=KernelLog(readable=False))),
    Case("bus-faults", FAIL, "IO_PAGE_FAULT", log(others=("AMD-Vi: Event logged [IO_PAGE_FAULT device=21:00.0]",))),
    Case("bus-faults", WARN, "AER", log(others=("pcieport 0000:00:01.1: AER: Corrected error received",))),
    Case("pcie-replays", FAIL, "GPU 1: 37 replays", probed(links=(LinkLoad(1, replays=37),))),
    Case("pcie-replays", WARN, "4711", gpus(lambda gpu: {"pcie": replace(gpu.pcie, replays=4711)}, [2])),
    Case("pcie-replays", UNKNOWN, "not known", gpus(lambda gpu: {"pcie": replace(gpu.pcie, replays=None)})),
    Case("pcie-slots", WARN, "x4 (GPU 2)", gpus(lambda gpu: {"pcie": replace(gpu.pcie, slot_width=4)}, [2])),
    Case("pcie-slots", WARN, "x8 (GPU 2)", gpus(lambda gpu: {"pcie": replace(gpu.pcie, max_width=8)}, [2])),
    Case("pcie-slots", UNKNOWN, "not known", gpus(lambda gpu: {"pcie": replace(gpu.pcie, max_width=None)}, [2])),
    Case("pcie-links", FAIL, "GPU 2: generation 4 x4 under load", loaded(4, 4)),
    Case("pcie-links", FAIL, "GPU 2: generation 1 x16 under load", loaded(16, 1)),
    Case("pcie-links", WARN, "copied only 3.0 GB/s", loaded(16, 4, 3.0)),
    Case("pcie-links", UNKNOWN, "not judged (now generation 1 x16", idle(16)),
    Case("pcie-links", UNKNOWN, "not judged (now generation 1 x4", idle(4)),
    Case("topology", WARN, "by socket: 0-3 | 4-7", with_links("p04")),
    Case("topology", UNKNOWN, "not known", replace(GOOD, topology=Topology())),
    Case("topology", UNKNOWN, "1 of 28", replace(GOOD, topology=Topology(links=but_for(6, 7, None)))),
    Case(
        "numa",
        WARN,
        "GPU 5 without a NUMA node",
        part("host", gpus(lambda gpu: {"numa": None}, [5]), nodes=(NumaNode(0), NumaNode(1))),
    ),
    Case("numa", WARN, "node 0 has no memory", part("host", nodes=(NumaNode(0, "0-7", 0), NumaNode(1, "8-15", 9)))),
    Case("numa", UNKNOWN, "not known", part("host", gpus(lambda gpu: {"numa": None}), nodes=None)),
    Case("peer-access", WARN, "27 of 28 pairs", replace(GOOD, topology=Topology(peers=but_for(6, 7, "CNS", "OK")))),
    Case("peer-access", UNKNOWN, "not known", replace(GOOD, topology=replace(GOOD.topology, peers=None))),
    Case("peer-copies", FAIL, "wrong data: GPU 0 to GPU 1, 4096 bytes", copies(state="wrong", wrong=4096)),
    Case("peer-copies", FAIL, "did not end", copies(state="hang")),
    Case("peer-copies", FAIL, "peer mapping", copies(state="refused", problem="peer mapping resources exhausted")),
    Case("peer-copies", UNKNOWN, "not tried", replace(claimed(), probe=None)),
    Case("peer-copies", UNKNOWN, "no libcuda", replace(GOOD, probe=Probe(problem="no libcuda"))),
    Case("bar1", WARN, "256 MiB for 24.00 GiB", claimed()),
    Case("bar1", UNKNOWN, "not known", gpus(lambda gpu: {"bar1_total": None}, [2])),
    Case("iommu", FAIL, "while the driver claims", part("host", claimed(), iommu=iommu(passthrough=False))),
    Case(
        "iommu",
        WARN,
        "it translates (intel_iommu=on)",
        part("host", iommu=iommu(passthrough=False, settings=("intel_iommu=on",))),
    ),
    Case("iommu", UNKNOWN, "virtual machine (QEMU)", part("host", virtual="QEMU")),
    Case("iommu", UNKNOWN, "not known", part("host", iommu=Iommu())),
    Case(
        "acs",
        WARN,
        "request redirect is on for 1 bridge",
        part("host", claimed(), iommu=iommu(acs_redirect=("0000:00:01.1",))),
    ),
    Case("acs", UNKNOWN, "not known", part("host", claimed(), iommu=iommu(acs_redirect=None))),
    *(
        Case("docker", FAIL, words, replace(GOOD, docker=Docker(state=state, problem="odd")))
        for state, words in (
            ("missing", "not installed"),
            ("not running", "no engine"),
            ("no rights", "may not"),
            ("hang", "in time"),
            ("error", "odd"),
        )
    ),
    Case("docker", FAIL, "API 1.40", part("docker", api=(1, 40))),
    Case("docker", FAIL, "snap", part("docker", snap=True)),
    Case("docker", WARN, "rootless", part("docker", rootless=True)),
    Case("docker", UNKNOWN, "not known", replace(GOOD, docker=Docker())),
    Case("xid", FAIL, "79", replace(BAD, host=replace(BAD.host, nvidia_devices=None))),
    Case("compose", FAIL, "2.17.3", part("docker", compose="v2.17.3")),
    Case("compose", FAIL, "neither", part("docker", compose=None, compose_problem="neither answers")),
    Case("compose", UNKNOWN, "not known", part("docker", compose=None)),
    Case("compose", UNKNOWN, "'dev'", part("docker", compose="dev")),
    Case("docker", UNKNOWN, "no version", part("docker", api=None)),
    Case(
        "gpu-containers",
        FAIL,
        "not installed",
        part("docker", replace(GOOD, toolkit=Toolkit(programs=(), cdi_devices=())), runtimes=("runc",)),
    ),
    Case("gpu-containers", WARN, "default runtime", part("docker", default_runtime="nvidia")),
    Case("gpu-containers", WARN, "no-cgroups", part("toolkit", no_cgroups=True)),
    Case("gpu-containers", UNKNOWN, "not known", replace(GOOD, toolkit=Toolkit())),
    Case("cdi", FAIL, "written for driver 570.1", part("toolkit", cdi_driver="570.1")),
    Case("cdi", WARN, "2 of 8 GPUs", part("toolkit", cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1"))),
    Case("cgroup-driver", FAIL, "inside sm86-262k", part("docker", lost_gpus=("sm86-262k",))),
    Case("cgroup-driver", WARN, "systemd", part("docker", part("toolkit", cdi_devices=()), cgroup_driver="systemd")),
    Case("cgroup-driver", UNKNOWN, "not known", part("docker", cgroup_driver=None)),
    Case("restarts", WARN, "sm86-262k (35)", part("docker", restarting=("sm86-262k (35)",))),
    Case("machine", WARN, "WSL2", part("host", virtual="wsl")),
    Case("machine", WARN, "inside a container", part("host", virtual="container")),
    Case("machine", WARN, "virtual (QEMU)", part("host", virtual="QEMU")),
    Case("ram", FAIL, "16.00 GiB", part("host", memory_total=16 * G)),
    Case("ram", WARN, "48.00 GiB", part("host", memory_total=48 * G)),
    Case("ram", WARN, "9.00 GiB available", part("host", memory_available=9 * G)),
    Case("ram", WARN, "2 processes were ended", part("kernel_log", oom_kills=2)),
    Case("ram", UNKNOWN, "not known", part("host", memory_total=None)),
    Case("swap", WARN, "in use", part("host", swap_total=32 * G, swap_free=2 * G)),
    Case("swap", WARN, "none", part("host", swap_total=0, swap_free=0, memory_total=48 * G)),
    Case("shm", FAIL, "64 MiB", part("host", shm_total=64 << 20, shm_free=64 << 20)),
    Case("shm", FAIL, "leftovers: nccl-Ab12Cd", part("host", shm_free=1 << 20, shm_leftovers=("nccl-Ab12Cd",))),
    Case("shm", WARN, "psm_1", part("host", shm_leftovers=("psm_1",))),
    Case("shm", UNKNOWN, "not known", part("host", shm_total=None)),
    Case("disk-space", FAIL, "173 GB are needed", disk("weights", present=False, free=100 * 10**9)),
    Case("disk-space", FAIL, "60 GB are needed", disk("images", present=False, free=30 * 10**9)),
    Case(
        "disk-space",
        FAIL,
        "213 GB are needed",
        replace(
            GOOD,
            disks=(
                Disk("weights", free=180 * 10**9, device=1, present=False),
                Disk("images", free=180 * 10**9, device=1, present=False),
            ),
        ),
    ),
    Case("disk-space", WARN, "little room", disk("images", free=10 * 10**9)),
    Case("disk-space", UNKNOWN, "not known", replace(GOOD, disks=None)),
    Case("weights-disk", FAIL, "cannot be read", disk("weights", readable=False)),
    Case("weights-disk", FAIL, "tmpfs", disk("weights", filesystem="tmpfs")),
    Case("weights-disk", WARN, "9p", disk("weights", filesystem="9p")),
    Case("weights-disk", WARN, "spinning", disk("weights", rotational=True)),
    Case("weights-disk", UNKNOWN, "not known", disk("weights", filesystem=None)),
    Case(
        "port",
        FAIL,
        "8000 is taken by process 812",
        replace(GOOD, ports=(Port(8000, None, False, "process 812 (nc)"),)),
    ),
    Case("port", UNKNOWN, "could not be tried", replace(GOOD, ports=(Port(8000),))),
    Case("host-bandwidth", WARN, "18.0 GB/s", probed(host=(HostBandwidth(18.0, 16, 64, 5),))),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.words[:28]}")
def test_what_a_rule_finds(case: Case) -> None:
    found = findings(case.rig)[case.rule]
    assert found.state == case.state, found
    assert case.words in found.what
    assert found.why and found.mend, "who is told what is wrong is told why it matters and how to mend it"
    assert "\n" not in found.what + found.why + found.mend


FINE = (
    Case(
        "gpu-count",
        OK,
        "2 more than are needed",
        replace(
            GOOD,
            gpus=(*(GOOD.gpus or ()), *(replace(gpu, index=gpu.index + 8) for gpu in (GOOD.gpus or ())[:2])),
            topology=Topology(),
            host=replace(GOOD.host, nvidia_devices=10),
        ),
    ),
    Case("compose", OK, "2.20", part("docker", compose="v2.20")),
    Case("docker", OK, "engine", part("docker", api=(1, 41))),
    Case("gpu-memory-free", OK, "at least 23.56 GiB", GOOD),
    Case("ecc", OK, "off", gpus(lambda gpu: {"ecc": False})),
    Case("gpu-clocks", OK, "nothing holds them down", gpus(lambda gpu: {"throttle": ("sw_power_cap",)})),
    Case("gpu-hung", OK, "96 % busy", gpus(lambda gpu: {"utilization": 96, "power": 140.0})),
    Case("driver", OK, "newer", part("driver", version="590.44.01")),
    Case("driver", OK, "older", part("driver", version="580.82.07")),
    Case("driver", OK, "the validated version", GOOD),
    Case("pcie-links", OK, "generation 4 x16 under load, 24.9 GB/s", GOOD),
    Case("peer-access", OK, "as on the validated rig", GOOD),
    Case("peer-access", OK, "claimed for every pair", claimed()),
    Case("peer-copies", OK, "every value right, 20.0 to 21.0 GB/s", copies()),
    Case("peer-copies", OK, "all through host memory", GOOD),
    Case("bar1", OK, "the whole memory", gpus(lambda gpu: {"bar1_total": 32 * G}, rig=claimed())),
    Case("iommu", OK, "off", part("host", iommu=Iommu(False))),
    Case("acs", OK, "does not matter", part("host", iommu=iommu(acs_redirect=("0000:00:01.1",)))),
    Case("numa", OK, "one NUMA node", gpus(lambda gpu: {"numa": None})),
    Case("numa", OK, "node 1, CPUs", with_links("p06")),
    Case(
        "port", OK, "a server of this product", replace(GOOD, ports=(Port(8000, None, False, "container sm86-262k"),))
    ),
    Case("shm", OK, "free", part("host", part("docker", gpu_containers=("sm86-262k",)), shm_leftovers=("psm_1",))),
    Case("weights-disk", OK, "ext4", part("host", disk("weights", rotational=True), virtual="QEMU")),
    Case("ram", OK, "62", part("host", memory_total=62 * G)),
    Case("disk-space", OK, "there already", disk("weights", present=True, free=30 * 10**9)),
)


@pytest.mark.parametrize("case", FINE, ids=lambda case: f"{case.rule}: {case.words[:28]}")
def test_what_a_rule_lets_pass(case: Case) -> None:
    found = findings(case.rig)[case.rule]
    assert (found.state, case.words in found.what) == (OK, True), found


def test_a_lost_card_does_not_hide_what_the_others_tell() -> None:
    lost = gpus(lambda gpu: {name: None for name in ("memory_free", "power", "temperature", "processes")}, [5])
    found = findings(gpus(lambda gpu: {"problem": "GPU is lost"}, [5], lost))
    assert found["gpu-count"].state == FAIL
    assert {found[rule].state for rule in ("gpu-memory-free", "gpu-hung", "temperature", "gpu-processes")} == {OK}


def test_the_good_rig_is_good() -> None:
    report = judge(GOOD, WANT)
    assert [finding for finding in report.findings if finding.state != OK] == []
    assert (report.exit_code, report.not_applicable) == (0, 0)


def test_the_bad_rig_is_bad_in_all_its_ways() -> None:
    found = findings(BAD)
    failed = {rule for rule, finding in found.items() if finding.state == FAIL}
    assert failed >= {"gpu-memory-free", "gpu-processes", "driver", "xid", "pcie-links", "peer-copies", "iommu", "shm"}
    assert {rule for rule, finding in found.items() if finding.state == WARN} >= {"topology", "bar1", "weights-disk"}
    assert judge(BAD, WANT).exit_code == 1


def test_every_rule_has_a_case_where_it_is_not_ok_and_is_ok_somewhere() -> None:
    assert {case.rule for case in CASES} | {"uptime"} == set(findings(GOOD))
    assert len(findings(GOOD)) == len(RULES)


def test_what_is_not_known_is_never_ok() -> None:
    assert {finding.rule for finding in judge(Rig(), WANT).findings if finding.state == OK} == set()
    known_gpus = Rig(gpus=tuple(type(gpu)(gpu.index) for gpu in GOOD.gpus or ()))
    assert {rule for rule, finding in findings(known_gpus).items() if finding.state == OK} == {"gpu-count"}


def test_a_machine_without_nvidia_is_told_so_once() -> None:
    bare = Rig(gpus=(), driver=Driver("no driver", loaded=False), host=Host(memory_total=8 * G, nvidia_devices=0))
    report = judge(bare, WANT)
    assert [finding.rule for finding in report.findings if finding.state == FAIL] == ["gpu-count"]
    assert "no NVIDIA driver is loaded" in findings(bare)["gpu-count"].what
    assert "invoke demo" in findings(bare)["gpu-count"].mend
    assert report.not_applicable > 20


PARTS = [item.name for item in fields(Rig) if item.name not in ("mark", "taken", "product", "missed")]


@settings(deadline=None)
@given(st.sets(st.sampled_from(PARTS)), st.sets(st.integers(0, 7)))
def test_no_set_of_missing_facts_ends_a_rule(missing: set[str], gone: set[int]) -> None:
    empty = Rig()
    rig = replace(BAD, **{name: getattr(empty, name) for name in missing})
    if rig.gpus:
        rig = replace(rig, gpus=tuple(type(gpu)(gpu.index) if gpu.index in gone else gpu for gpu in rig.gpus))
        if rig.topology.links and len(rig.topology.links) != len(rig.gpus):
            rig = replace(rig, topology=Topology())
    for finding in judge(rig, WANT).findings:
        assert finding.state == OK or (finding.why and finding.mend)
