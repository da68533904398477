"""How the segment reaches the group's processes and nobody else, and how a process's end is noticed.

Rank 0 listens on an abstract Unix socket (no file, gone with the process) for the length of the set-up. Who connects
must run as the same user and know the token that went through the group's own exchange; it then gets the segment's
descriptor. The connections stay: when a process ends, however it ends, the kernel closes its side.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import struct
import time

_CREDENTIALS = struct.Struct("3i")
_TOKEN_BYTES = 32
SETUP_S = 30.0


class Link:
    """The open connections of one process: on rank 0 one to every other rank, elsewhere one to rank 0."""

    def __init__(self, peers: dict[int, socket.socket]) -> None:
        self._peers = peers

    def gone(self, wait_s: float) -> list[int]:
        """Ranks whose process has closed its side, after at most `wait_s` seconds. Each is told once."""
        if not self._peers:
            time.sleep(wait_s)
            return []
        poll = select.poll()
        ranks = {}
        for rank, peer in self._peers.items():
            poll.register(peer, select.POLLIN | select.POLLHUP)
            ranks[peer.fileno()] = rank
        ended = []
        for fd, _ in poll.poll(wait_s * 1000):
            rank = ranks[fd]
            # nothing is ever sent after the set-up, so readable means ended
            self._peers.pop(rank).close()
            ended.append(rank)
        return ended

    def close(self) -> None:
        """Close this side; the peers are told."""
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()
        self._peers = {}


class Offer:
    """Rank 0's side of the set-up."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self.address = f"sm86-allreduce-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.address)
        self._listener.listen(world)

    def hand_out(self, fd: int, timeout_s: float = SETUP_S) -> Link:
        """Give the descriptor to every other rank. Raises OSError (TimeoutError included) when one does not come."""
        peers: dict[int, socket.socket] = {}
        end = time.monotonic() + timeout_s
        try:
            while len(peers) < self.world - 1:
                self._listener.settimeout(max(0.01, end - time.monotonic()))
                peer, _ = self._listener.accept()
                rank = self._admit(peer)
                if rank is None or rank in peers or not 0 < rank < self.world:
                    peer.close()
                    continue
                socket.send_fds(peer, [b"s"], [fd])
                peers[rank] = peer
        except OSError:
            for peer in peers.values():
                peer.close()
            raise
        finally:
            self.close()
        for peer in peers.values():
            peer.settimeout(None)
        return Link(peers)

    def _admit(self, peer: socket.socket) -> int | None:
        """The rank of a process of this user that knows the token; None for anybody else."""
        peer.settimeout(5.0)
        _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.geteuid():
            return None
        wanted = 2 * _TOKEN_BYTES + 2
        try:
            said = b""
            while len(said) < wanted:
                piece = peer.recv(wanted - len(said))
                if not piece:
                    return None
                said += piece
        except OSError:
            return None
        if not hmac.compare_digest(said[:-2], self.token.encode()):
            return None
        return int(said[-2:]) if said[-2:].isdigit() else None

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def fetch(address: str, token: str, rank: int, timeout_s: float = SETUP_S) -> tuple[Link, int]:
    """Another rank's side: the link and the segment's descriptor. Raises OSError when rank 0 does not give them."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect("\0" + address)
        sock.sendall(token.encode() + b"%02d" % rank)
        _, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if not fds:
            raise OSError("rank 0 did not hand out the segment")
        sock.settimeout(None)
        return Link({0: sock}), fds[0]
    except OSError:
        sock.close()
        raise


def same_machine() -> str:
    """Equal for processes that can meet: one boot of one kernel, one network namespace, where these sockets live."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    with contextlib.suppress(OSError):
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    return boot
