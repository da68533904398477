"""Is a port of this machine free, and if not, who has it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host.processes import PROC, read_process

_LISTENING = "0A"


class PortTaken(CouldNotRun):
    """Something else listens on the port."""


def require_free_port(port: int, holder: str | None = None, host: str = "127.0.0.1") -> None:
    """Raise PortTaken when `port` cannot be bound on `host`, naming who has it where that can be seen.

    holder: who the caller knows to hold it ("container x"); else the process is looked up.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return
        except OSError as error:
            code = error.errno
    if code == errno.EACCES:
        raise CouldNotRun(f"port {port} is reserved for root", "give a port of 1024 or more: --port N or SM86_PORT=N")
    if code == errno.EADDRNOTAVAIL:
        raise CouldNotRun(f"{host} is no address of this machine", "set SM86_BIND to 127.0.0.1, or to one that it has")
    holder = holder or holder_of(port) or "another process"
    raise PortTaken(f"port {port} is taken by {holder}", f"stop it, or choose another port: --port {_next(port)}")


def holder_of(port: int) -> str | None:
    """The process that listens on a TCP port, in words; None where it cannot be seen (another user's)."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (PROC / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for folder in PROC.iterdir():
        if folder.name.isdigit() and _holds(folder / "fd", inodes):
            process = read_process(int(folder.name))
            if process:
                return f"process {process.pid} ({_short(process.title)})"
    return None


def _holds(descriptors: Path, inodes: set[str]) -> bool:
    try:
        links = list(descriptors.iterdir())
    except OSError:
        return False
    return any(_target(link) in inodes for link in links)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        # closed while we looked; the others still count
        return ""


def _short(title: str) -> str:
    return title if len(title) <= 60 else title[:57] + "..."


def _next(port: int) -> int:
    return port + 1 if port < 65535 else port - 1
