"""A folder that stands for a machine's /: sysfs, procfs and settings, as far as the doctor reads them."""

from __future__ import annotations

from pathlib import Path


class Machine:
    """Writes files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("sys/bus/pci/devices", "proc", "dev/shm"):
            (root / folder).mkdir(parents=True)

    def write(self, path: str, text: str | bytes) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        return place

    def device(self, path: str, **files: str | bytes) -> Path:
        """A PCI device at its place in the tree, "pci0000:00/0000:00:01.1/0000:01:00.0", and in the list of all."""
        folder = self.root / "sys/devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        link = self.root / "sys/bus/pci/devices" / folder.name
        if not link.exists():
            link.symlink_to(folder)
        return folder

    def gpu(self, path: str, numa: int = 0, group: int | None = None, **files: str | bytes) -> None:
        """An RTX 3090 at that place; the bridges above it are made, too."""
        parts = path.split("/")
        for end in range(2, len(parts)):
            self.device("/".join(parts[:end]), vendor="0x1022\n", **{"class": "0x060400\n"}, max_link_width="16\n")
        facts: dict[str, str | bytes] = {
            "vendor": "0x10de\n",
            "class": "0x030000\n",
            "numa_node": f"{numa}\n",
            "local_cpulist": "0-31\n",
            "current_link_speed": "2.5 GT/s PCIe\n",
            "current_link_width": "16\n",
            "max_link_speed": "16.0 GT/s PCIe\n",
            "max_link_width": "16\n",
        }
        folder = self.device(path, **{**facts, **files})
        # its sound device has the same vendor and is no GPU
        self.device(path[:-1] + "1", vendor="0x10de\n", **{"class": "0x040300\n"})
        if group is not None:
            place = self.root / "sys/kernel/iommu_groups" / str(group)
            place.mkdir(parents=True, exist_ok=True)
            (folder / "iommu_group").symlink_to(place)

    def process(self, pid: int, title: str, cgroup: str = "0::/user.slice\n", maps: str = "") -> None:
        self.write(f"proc/{pid}/cmdline", title.replace(" ", "\0"))
        self.write(f"proc/{pid}/cgroup", cgroup)
        self.write(f"proc/{pid}/maps", maps)
