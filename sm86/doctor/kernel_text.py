"""Lines of the kernel's log -> the faults of GPUs and their bus. Pure.

Understands `journalctl -k -o short-monotonic`, `dmesg` and the records of /dev/kmsg.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sm86.doctor.facts import KernelLog, Xid

KEPT = 20
SHOWN = 160

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b,? ?(.*)")
_FAULT = re.compile(
    r"IO_PAGE_FAULT|DMAR: .*(?:fault|DRHD)|AER: (?:.* )?(?:error|Error)|PCIe Bus Error|"
    r"NVRM: (?:GPU .* has fallen off|.*RmInitAdapter failed)|GPU has fallen off the bus"
)
_KMSG = re.compile(r"[0-9]+,[0-9]+,([0-9]+),[^;]*;(.*)")
_STAMPED = re.compile(r"(?:<[0-9]+>)?\[ *([0-9]+\.[0-9]+)\]\s+(?:\S+ kernel: )?(.*)")


def from_lines(lines: Iterable[str], source: str) -> KernelLog:
    """The faults in these lines. A log that held no line at all was not read: it is not a clean one."""
    xids: list[Xid] = []
    others: list[str] = []
    count = other_count = 0
    for line in lines:
        if not line.strip():
            continue
        count += 1
        at, text = _stamp(line)
        found = _XID.search(text)
        if found:
            xids.append(Xid(int(found[2]), _bus(found[1]), at, " ".join(found[3].split())[:SHOWN]))
        elif _FAULT.search(text):
            other_count += 1
            others = [*others[1 - KEPT :], " ".join(text.split())[:SHOWN]]
    if not count:
        return KernelLog(readable=False, source=source)
    return KernelLog(True, source, tuple(xids), tuple(others), other_count)


def _stamp(line: str) -> tuple[float | None, str]:
    record = _KMSG.match(line)
    if record:
        return int(record[1]) / 1e6, record[2]
    stamped = _STAMPED.match(line)
    return (float(stamped[1]), stamped[2]) if stamped else (None, line)


def _bus(text: str) -> str:
    """ "0000:01:00" as "0000:01:00.0", the way the bus itself is written."""
    return (text if "." in text else f"{text}.0").lower()
