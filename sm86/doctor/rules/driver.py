"""The NVIDIA driver and the kernel's log of its faults. Pure."""

from __future__ import annotations

from sm86.doctor.facts import Rig, Xid
from sm86.doctor.finding import Finding, fail, ok, unknown, warn
from sm86.doctor.want import Want
from sm86.doctor.words import gpus_of, spread, version_numbers

INSTALL = "install the driver (580 or newer, from your distribution or NVIDIA) and reboot"

NVML = {
    "mismatch": (
        "the driver's library and its kernel module are of two versions",
        "every program that wants the GPUs fails until they agree",
        "the driver was updated under a running kernel: reboot",
    ),
    "hang": (
        "the driver does not answer",
        "a driver that hangs does not come back by itself, and a server that asks it hangs, too",
        "see dmesg for Xid lines; power the machine off and on (a plain reboot may hang as well)",
    ),
    "error": ("the driver answers with an error", "nothing can use the GPUs", "see dmesg (NVRM); reload it, or reboot"),
}

XID_FAIL = {
    48: "an uncorrectable memory error",
    61: "a fault of the card's own firmware",
    62: "a fault of the card's own firmware",
    63: "a memory row was retired",
    64: "a memory row could not be retired",
    74: "an NVLink fault",
    79: "the GPU fell off the bus",
    92: "many single-bit memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the card's GSP firmware stopped answering",
    120: "the card's GSP firmware failed",
    154: "the driver wants the GPU reset, or the machine rebooted",
}
XID_WARN = {
    13: "a program's fault, or bad memory",
    31: "a program's page fault",
    43: "a program's context was stopped",
    45: "a program's work was taken away, often after another fault",
}


def driver(rig: Rig, want: Want) -> Finding | None:
    """It is there, answers, and serves CUDA 13.0.1; and it is the validated one, or not."""
    rule, facts = "driver", rig.driver
    why = "the image is built for CUDA 13.0.1"
    if rig.gpus == () and facts.nvml in (None, "missing", "no driver") and not facts.version:
        return None
    if facts.nvml in NVML:
        what, why, mend = NVML[facts.nvml]
        words = f": {facts.problem}" if facts.problem and facts.nvml == "error" else ""
        return fail(rule, what + words, why, mend)
    if facts.nvml == "no driver" or facts.loaded is False:
        return fail(rule, "no NVIDIA driver is loaded", why, INSTALL)
    if facts.version is None:
        if facts.nvml == "missing" and facts.loaded:
            return unknown(
                rule,
                f"a driver is loaded, but NVML is not there: {facts.problem or 'no library'}",
                why,
                "install the product with its host extra (it brings nvidia-ml-py), and the driver's user libraries",
            )
        return unknown(rule, "the driver's version is not known", why, "run the doctor on the machine itself")
    number = version_numbers(facts.version)
    told = f"{facts.version}{f' ({facts.module} kernel module)' if facts.module else ''}"
    floor = ".".join(f"{part:02d}" for part in want.driver_floor)
    if not number:
        return unknown(rule, f"the driver's version reads {facts.version!r}", why, f"see that it is {floor} or newer")
    if number[0] < want.driver_floor[0]:
        return fail(
            rule,
            f"{told} is too old",
            f"{why}, which needs {floor} or newer: it would end with error 803 or 804",
            INSTALL,
        )
    if number < want.driver_floor:
        return warn(rule, f"{told} is older than {floor}", f"{why}; this is a preview of the 580 branch", INSTALL)
    if facts.cuda is not None and facts.cuda < (13, 0):
        return fail(
            rule,
            f"{told} serves CUDA {facts.cuda[0]}.{facts.cuda[1]}",
            f"{why}; an older libcuda stands before the driver's own",
            "look for other copies of libcuda.so.1 in the loader's path (ldconfig -p)",
        )
    if facts.version == want.driver:
        return ok(rule, f"{told}, the validated version")
    age = "newer" if number > version_numbers(want.driver) else "older"
    return ok(rule, f"{told}, serves CUDA 13.0.1; the validated version is {want.driver}, this one is {age}")


def libraries(rig: Rig, want: Want) -> Finding | None:
    """One driver's libraries only, and no forward compatibility in the way."""
    rule = "driver-libraries"
    if rig.gpus == () and not rig.driver.version:
        return None
    if rig.toolkit.compat_folders:
        return warn(
            rule,
            f"CUDA forward compatibility libraries in the loader's path: {', '.join(rig.toolkit.compat_folders)}",
            "GeForce cards cannot use them: CUDA then ends with error 804",
            "take the folder out of LD_LIBRARY_PATH and /etc/ld.so.conf.d",
        )
    if rig.driver.several is None:
        return unknown(
            rule,
            "which driver libraries there are is not known",
            "two drivers' libraries in one process end with error 803",
            "run the doctor on the machine itself",
        )
    if len(rig.driver.several) > 1:
        return warn(
            rule,
            f"driver files of {len(rig.driver.several)} versions: {', '.join(rig.driver.several)}",
            "two drivers' libraries in one process end with error 803, or with a version mismatch",
            "remove the packages of the old driver, run ldconfig, and reboot",
        )
    return ok(rule, "one driver's libraries")


def xid(rig: Rig, want: Want) -> Finding | None:
    """What the driver wrote into the kernel's log since boot."""
    rule, log = "xid", rig.kernel_log
    if not rig.gpus and not rig.host.nvidia_devices:
        return None
    why = "an Xid is the driver's own word for a fault: a GPU that shows some today drops out of a server tomorrow"
    if log.readable is not True or log.xids is None:
        return unknown(
            rule,
            "the kernel's log could not be read",
            why,
            "run the doctor as root, or as a member of adm or systemd-journal",
        )
    bad = [entry for entry in log.xids if entry.number in XID_FAIL]
    if bad:
        return fail(
            rule,
            _xids(bad),
            why,
            "79 and 154: check power cables, risers, PCIe slot and heat, then power off and "
            "on; memory faults: warranty; 119 and 120: another driver version",
        )
    if log.xids:
        return warn(
            rule,
            _xids(list(log.xids)),
            "one alone is a program's fault; many, or on one card only, point to the card",
            "note what ran then; watch whether the same card comes again",
        )
    return ok(rule, "no Xid since boot")


def _xids(entries: list[Xid]) -> str:
    counts: dict[tuple[int, str | None], int] = {}
    for entry in entries:
        counts[entry.number, entry.bus_id] = counts.get((entry.number, entry.bus_id), 0) + 1
    parts = []
    for (number, bus), times in list(counts.items())[:5]:
        meaning = XID_FAIL.get(number) or XID_WARN.get(number)
        parts.append(
            f"Xid {number}{f' ({meaning})' if meaning else ''}{f' on {bus}' if bus else ''}"
            f"{f', {times} times' if times > 1 else ''}"
        )
    return "; ".join(parts) + ("; and more" if len(counts) > 5 else "")


def kernel_faults(rig: Rig, want: Want) -> Finding | None:
    """Faults of the bus and the IOMMU in the kernel's log."""
    rule, log = "bus-faults", rig.kernel_log
    if (not rig.gpus and not rig.host.nvidia_devices) or log.readable is not True or log.others is None:
        return None
    if not log.others:
        return ok(rule, "no PCIe or IOMMU fault in the kernel's log")
    count = log.other_count or len(log.others)
    faults = [line for line in log.others if "IO_PAGE_FAULT" in line or "DMAR" in line]
    if faults:
        return fail(
            rule,
            f"{count} lines of bus faults, the last: {faults[-1]}",
            "the IOMMU stopped a card's access: with peer access this is lost or wrong data",
            "boot with iommu=pt; with a patched driver, give peer access up first and see whether it stays away",
        )
    return warn(
        rule,
        f"{count} lines of bus faults, the last: {log.others[-1]}",
        "corrected errors slow a link down; uncorrected ones lose the card",
        "reseat the card, replace the riser, or set the slot to a lower PCIe generation in the BIOS",
    )


def replays(rig: Rig, want: Want) -> Finding | None:
    """PCIe replays: a few are usual since boot, growth under load is not."""
    rule = "pcie-replays"
    if not rig.gpus:
        return None
    why = "each replay repeats a packet that came wrong: the riser or the slot is marginal"
    mend = "reseat or replace the riser, or set the slot to a lower PCIe generation in the BIOS"
    grown = [load for load in (rig.probe.links if rig.probe else None) or () if load.replays]
    if grown:
        return fail(
            rule,
            f"{gpus_of(load.gpu for load in grown)}: {max(load.replays or 0 for load in grown)} replays in "
            "seconds of load",
            why,
            mend,
        )
    known = [gpu for gpu in rig.gpus if gpu.pcie.replays is not None]
    if not known:
        return unknown(rule, "the replay counters are not known", why, "run the doctor on the machine itself")
    many = [gpu for gpu in known if (gpu.pcie.replays or 0) > 100]
    if many:
        return warn(
            rule,
            f"replays since the driver was loaded: {spread(many, lambda gpu: gpu.pcie.replays)}",
            why,
            f"run `invoke doctor --probe` to see whether they grow; {mend}",
        )
    most = max(gpu.pcie.replays or 0 for gpu in known)
    return ok(rule, f"{f'at most {most}' if most else 'none'} since the driver was loaded")
