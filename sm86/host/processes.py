"""Processes of this machine, read from /proc: who they are, so that a reused number is never taken for one."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One live process. start_ticks: clock ticks from boot to its start; with the boot id it names it for good."""

    pid: int
    state: str
    session: int
    start_ticks: int
    title: str

    @property
    def is_zombie(self) -> bool:
        return self.state in ("Z", "X")


def boot_id() -> str:
    """Changes with every boot of the machine; "" where the system does not tell."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_process(pid: int) -> Process | None:
    """The process of that number; None where there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    # the second field is the program's name in brackets, which may itself hold brackets and spaces
    fields = text[text.rfind(")") + 2 :].split()
    title = " ".join(part.decode("utf-8", "replace") for part in command.split(b"\0") if part)
    return Process(pid, fields[0], int(fields[3]), int(fields[19]), title or text[text.find("(") + 1 : text.rfind(")")])


def all_processes() -> list[Process]:
    """Every process that can be seen."""
    found = (read_process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process]


def session_members(session: int, not_before: int) -> list[Process]:
    """Live processes of a session that started at or after `not_before` clock ticks."""
    return [
        process
        for process in all_processes()
        if process.session == session and process.start_ticks >= not_before and not process.is_zombie
    ]


def send(pid: int, sig: signal.Signals) -> bool:
    """Send a signal to one process; False when it is gone or not ours."""
    try:
        os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory since boot; None where it does not tell."""
    try:
        for line in (PROC / "vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
