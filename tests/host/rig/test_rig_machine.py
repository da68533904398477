"""What the files of a machine tell: the bus, IOMMU, ACS, memory, processes, driver files, the kernel's log, disks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sm86.doctor.facts import Gpu, GpuProcess, Iommu
from sm86.host.rig import disk_child, driver_files, kernel_log, owners, shm, sysfs
from sm86.host.rig.disks import disks
from tests.host.rig.machine import Machine


@pytest.fixture
def box(tmp_path) -> Machine:
    return Machine(tmp_path)


def acs(control: int, at: int = 0x148) -> bytes:
    """Config space with an ACS capability behind another one."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | at << 20).to_bytes(4, "little")
    config[at : at + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[at + 6 : at + 8] = control.to_bytes(2, "little")
    return bytes(config)


SWITCHED = (
    "pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0",
    "pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:08.0/0000:04:00.0",
    "pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:10.0/0000:05:00.0/0000:06:00.0/0000:07:00.0",
    "pci0000:00/0000:00:03.1/0000:08:00.0",
    "pci0000:40/0000:40:01.1/0000:41:00.0",
    "pci0000:80/0000:80:01.1/0000:81:00.0",
)


def test_cards_with_link_and_place(box) -> None:
    box.gpu(SWITCHED[0], group=7)
    box.gpu(SWITCHED[5], numa=-1, current_link_width="4\n", current_link_speed="Unknown\n", max_link_width="255\n")
    first, second = sysfs.cards(box.root)
    assert (first.bus_id, first.numa, first.cpus, first.iommu_group) == ("0000:03:00.0", 0, "0-31", 7)
    assert (first.generation, first.max_generation, first.width, first.slot_width) == (1, 4, 16, 16)
    assert first.bridges == ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0")
    assert (second.numa, second.generation, second.width, second.max_width) == (None, None, 4, None)


def test_links_from_the_places_on_the_bus(box) -> None:
    for path, numa in zip(SWITCHED, (0, 0, 0, 0, 0, 1), strict=True):
        box.gpu(path, numa)
    square = sysfs.links(sysfs.cards(box.root))
    assert square is not None
    assert square[0] == ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
    assert [row[at] for at, row in enumerate(square)] == ["X"] * 6
    assert all(square[one][other] == square[other][one] for one in range(6) for other in range(6))


def test_no_bus_and_no_cards_are_two_things(box, tmp_path) -> None:
    assert sysfs.cards(box.root) == ()
    assert sysfs.cards(tmp_path / "nowhere") is None
    assert sysfs.links(()) is None


@pytest.mark.parametrize(
    ("kind", "cmdline", "passthrough"),
    [
        ("identity", "quiet", True),
        ("DMA-FQ", "quiet iommu=pt", False),
        (None, "quiet amd_iommu=on iommu=pt", True),
        (None, "quiet", False),
    ],
)
def test_iommu(box, kind: str | None, cmdline: str, passthrough: bool) -> None:
    box.gpu(SWITCHED[3], group=12)
    box.write("proc/cmdline", cmdline)
    if kind:
        box.write("sys/kernel/iommu_groups/12/type", f"{kind}\n")
    found = sysfs.iommu(box.root, sysfs.cards(box.root))
    assert (found.active, found.passthrough) == (True, passthrough)
    assert found.settings == tuple(word for word in cmdline.split() if "iommu" in word)


def test_iommu_off_and_unknown(box, tmp_path) -> None:
    (box.root / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert sysfs.iommu(box.root, ()).active is False
    assert sysfs.iommu(tmp_path / "nowhere", None) == Iommu(None, None, (), None)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (acs(0x1D), ("0000:00:03.1",)),
        (acs(0x04), ("0000:00:03.1",)),
        (acs(0x01), ()),
        (bytes(4096), ()),
        (bytes(64), None),
        (acs(0x1D)[:0x140] + bytes(4), ()),
    ],
    ids=["all on", "request redirect", "validation alone", "no capability", "not root", "cut"],
)
def test_acs(box, config: bytes, found) -> None:
    box.gpu(SWITCHED[3])
    box.device("pci0000:00/0000:00:03.1", config=config)
    assert sysfs.iommu(box.root, sysfs.cards(box.root)).acs_redirect == found


def test_a_chain_of_capabilities_that_bites_its_tail_ends() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert sysfs.acs_control(bytes(config)) == 0


CPUINFO = (
    "processor\t: 0\nmodel name\t: AMD EPYC 7763\nphysical id\t: 0\nflags\t\t: fpu {}\n\n"
    "processor\t: 1\nphysical id\t: 1\n"
)


def test_the_host(box) -> None:
    box.write("proc/cpuinfo", CPUINFO.format("sse"))
    box.write("proc/meminfo", "MemTotal:       1024 kB\nMemAvailable:    512 kB\nSwapTotal:         0 kB\n")
    box.write("proc/uptime", "3600.25 7000.00\n")
    box.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    box.write("etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n')
    for node, cpus in ((0, "0-31"), (10, "32-63")):
        box.write(f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
        box.write(f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:        2048 kB\n")
    found = sysfs.host(box.root)
    assert (found.cpu, found.cores, found.sockets, found.virtual) == ("AMD EPYC 7763", 2, 2, "")
    assert (found.memory_total, found.memory_available, found.swap_total) == (1 << 20, 1 << 19, 0)
    assert (found.uptime, found.kernel, found.system) == (3600.25, "6.8.0-45-generic", "Ubuntu 24.04 LTS")
    assert found.nodes is not None and [(node.node, node.cpus, node.memory) for node in found.nodes] == [
        (0, "0-31", 2 << 20),
        (10, "32-63", 2 << 20),
    ]


def test_a_host_that_tells_nothing(box) -> None:
    found = sysfs.host(box.root)
    assert (found.memory_total, found.cpu, found.uptime, found.nodes, found.virtual) == (None,) * 5


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        ({"proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2"}, "wsl"),
        ({".dockerenv": ""}, "container"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({}, "unnamed hypervisor"),
    ],
)
def test_kinds_of_machine(box, files: dict[str, str], virtual: str) -> None:
    box.write("proc/cpuinfo", CPUINFO.format("hypervisor"))
    for path, text in files.items():
        box.write(path, text)
    assert sysfs.host(box.root).virtual == virtual


ID, GONE = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("cgroup", "owner"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", "container sm86-262k"),
        (f"12:devices:/docker/{ID}\n11:cpu:/docker/{ID}\n", "container sm86-262k"),
        (f"0::/system.slice/docker-{GONE}.scope\n", "dead container bbbbbbbbbbbb"),
        (f"0::/kubepods/besteffort/pod1/cri-containerd-{GONE}.scope\n", "container bbbbbbbbbbbb"),
        ("0::/user.slice/user-1000.slice\n", "host"),
    ],
)
def test_whose_process_it_is(box, cgroup: str, owner: str) -> None:
    box.process(71, "VLLM::Worker_TP3", cgroup)
    gpus = (Gpu(0, processes=(GpuProcess(71), GpuProcess(72))), Gpu(1))
    found = owners.with_owners(gpus, box.root, {ID: "sm86-262k"})
    assert found[1].processes is None
    assert found[0].processes is not None
    named, unseen = found[0].processes
    assert (named.title, named.owner) == ("VLLM::Worker_TP3", owner)
    assert unseen.owner == "unseen"


def test_without_an_engine_no_container_is_called_dead(box) -> None:
    box.process(71, "python3", f"0::/system.slice/docker-{GONE}.scope\n")
    (gpu,) = owners.with_owners((Gpu(0, processes=(GpuProcess(71),)),), box.root, None)
    assert gpu.processes is not None and gpu.processes[0].owner == "container bbbbbbbbbbbb"


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 1 2026\n"


def test_driver_files(box) -> None:
    box.write("proc/driver/nvidia/version", OPEN)
    box.write("usr/lib/x86_64-linux-gnu/libcuda.so.580.126.09", "")
    box.write("usr/lib/x86_64-linux-gnu/libcuda.so.1", "")
    box.write("usr/lib64/libnvidia-ml.so.570.86.15", "")
    found = driver_files.look(box.root, {})
    assert (found.module, found.kind) == ("580.126.09", "open")
    assert found.versions == ("570.86.15", "580.126.09")
    box.write("proc/driver/nvidia/version", CLOSED)
    assert (driver_files.look(box.root, {}).module, driver_files.look(box.root, {}).kind) == (
        "570.86.15",
        "proprietary",
    )


def test_no_driver_files(box) -> None:
    assert driver_files.look(box.root, {}) == driver_files.Files(None, None, (), ())


def test_forward_compatibility_counts_only_where_the_library_is(box) -> None:
    box.write("usr/local/cuda-13.0/compat/libcuda.so.1", "")
    path = {"LD_LIBRARY_PATH": "/usr/local/cuda-13.0/compat:/usr/local/cuda-12/compat:/usr/lib"}
    assert driver_files.look(box.root, path).compat == ("/usr/local/cuda-13.0/compat",)
    box.write("etc/ld.so.conf.d/compat.conf", "/usr/local/cuda-13.0/compat\n")
    assert driver_files.look(box.root, {}).compat == ("/usr/local/cuda-13.0/compat",)


def program(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


LINE = "[    5.000000] box kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."


def test_the_journal_goes_before_the_ring(tmp_path) -> None:
    journal = program(tmp_path / "journalctl", f"print({LINE!r})")
    log = kernel_log.kernel_log(tmp_path / "none", (journal,))
    assert (log.readable, log.source) == (True, "journal")
    assert log.xids is not None and log.xids[0].number == 79


@pytest.mark.parametrize("text", ["", "raise SystemExit(1)", "print('')"])
def test_a_journal_that_shows_nothing_was_not_read(tmp_path, text: str) -> None:
    journal = program(tmp_path / "journalctl", text)
    (tmp_path / "kmsg").write_text("6,1,0,-;Linux version 6.8.0\n3,2,5000000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=9\n")
    log = kernel_log.kernel_log(tmp_path / "kmsg", (journal,))
    assert (log.readable, log.source) == (True, "kernel ring")
    assert log.xids is not None and log.xids[0].number == 31
    assert kernel_log.kernel_log(tmp_path / "none", (journal,)).readable is False


def test_a_journal_that_hangs_is_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kernel_log, "JOURNAL_S", 1.0)
    journal = program(tmp_path / "journalctl", "import time; time.sleep(600)")
    assert kernel_log.kernel_log(tmp_path / "none", (journal,)).readable is False


def test_shared_memory_and_its_leftovers(box) -> None:
    for name in ("nccl-Ab12Cd", "psm_1234", "sem.mp-x", "pulse-shm-1"):
        box.write(f"dev/shm/{name}", "x")
    box.process(71, "python3", maps="7f00-7f01 rw-s 00000000 00:1a 2 /dev/shm/psm_1234\n")
    assert shm.leftovers(box.root / "dev/shm", box.root) == ("nccl-Ab12Cd", "sem.mp-x")
    total, free = shm.space(box.root / "dev/shm")
    assert total is not None and free is not None and 0 <= free <= total
    assert shm.space(box.root / "nowhere") == (None, None)
    assert shm.leftovers(box.root / "nowhere", box.root) is None


def test_a_process_that_hides_its_maps_leaves_it_open(box) -> None:
    box.write("dev/shm/nccl-Ab12Cd", "x")
    (box.root / "proc/72").mkdir()
    assert shm.leftovers(box.root / "dev/shm", box.root) is None


def test_disks_of_this_machine(tmp_path) -> None:
    found, missed = disks((("weights", str(tmp_path / "not" / "there"), None), ("images", str(tmp_path), True)))
    assert missed == ()
    weights, images = found
    assert (weights.exists, images.exists, images.present, images.readable) == (False, True, True, True)
    assert images.free is not None and images.total is not None and 0 <= images.free <= images.total
    assert images.filesystem and weights.device == images.device


def test_a_dead_mount_is_named_and_left(tmp_path) -> None:
    hanging = (sys.executable, "-c", 'import time; print(\'{"path": "/a", "free": 5}\', flush=True); time.sleep(600)')
    found, missed = disks((("weights", "/a", None), ("images", "/b", None)), hanging, 2.0)
    assert [(disk.use, disk.free) for disk in found] == [("weights", 5), ("images", None)]
    assert missed == ("the disk of images at /b: no answer within 2 s (a dead mount?)",)


MOUNTS = r"""22 27 0:21 / /proc rw - proc proc rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 27 0:40 / /mnt/with\040space rw - nfs4 nas:/x rw
41 27 0:41 / /mnt rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/home/x", "ext4"), ("/mnt/with space/models", "nfs4"), ("/mnt/models", "9p"), ("/mnt2", "ext4")],
)
def test_the_filesystem_of_a_path(tmp_path, place: str, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert disk_child.filesystem(place, str(tmp_path / "mountinfo")) == kind
    assert disk_child.filesystem(place, str(tmp_path / "none")) is None


def test_a_spinning_disk_behind_a_partition(tmp_path) -> None:
    disk = tmp_path / "devices/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "queue").mkdir()
    (disk / "queue/rotational").write_text("1\n")
    blocks = tmp_path / "block"
    blocks.mkdir()
    (blocks / "8:1").symlink_to(disk / "sda1")
    assert disk_child.rotational(os.makedev(8, 1), str(blocks)) is True
    (disk / "queue/rotational").write_text("0\n")
    assert disk_child.rotational(os.makedev(8, 1), str(blocks)) is False
    assert disk_child.rotational(os.makedev(0, 40), str(blocks)) is None
