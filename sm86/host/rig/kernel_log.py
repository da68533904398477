"""The kernel's log of this boot: from the journal, which keeps all of it, else from the kernel's own ring."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from sm86.doctor.facts import KernelLog
from sm86.doctor.kernel_text import from_lines
from sm86.errors import CouldNotRun
from sm86.host.process import run
from sm86.host.processes import oom_kills

JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", "-n", "200000")
JOURNAL_S = 8.0
MOST_RECORDS = 500_000


def kernel_log(kmsg: Path = Path("/dev/kmsg"), journal: tuple[str, ...] = JOURNAL) -> KernelLog:
    """What either source holds; readable False where neither may be read."""
    from dataclasses import replace

    log = _journal(journal)
    if log.readable is not True:
        ring = _ring(kmsg)
        log = ring if ring.readable else log
    return replace(log, oom_kills=oom_kills())


def _journal(argv: tuple[str, ...]) -> KernelLog:
    if not shutil.which(argv[0]):
        return KernelLog(readable=False, source="no journal")
    try:
        told = run(argv, JOURNAL_S)
    except CouldNotRun:
        return KernelLog(readable=False, source="journal")
    # who may not read the system's journal is shown his own, which has no line of the kernel
    return from_lines(told.out.splitlines(), "journal")


def _ring(kmsg: Path) -> KernelLog:
    lines: list[str] = []
    try:
        handle = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return KernelLog(readable=False, source="kernel ring")
    try:
        while len(lines) < MOST_RECORDS:
            try:
                record = os.read(handle, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # older records were overwritten while we read
                    continue
                break
            if not record:
                break
            lines += record.decode("utf-8", "replace").splitlines()
    finally:
        os.close(handle)
    return from_lines(lines, "kernel ring")
