"""What the ranks tell each other while they set up: a gather of small values. Two ways to do it, one interface.

Every rank makes the same gathers in the same order, so each decision that follows from one is the same everywhere.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from sm86.backend.collectives.failure import SetupFailed

_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 20


class Exchange(Protocol):
    """The ranks 0 to world - 1 of one group, one process each."""

    rank: int
    world: int

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value (JSON's types), in the order of the ranks. Raises SetupFailed when a rank is gone."""


class GroupExchange:
    """Over a process group of torch that works on CPUs (gloo), such as vLLM's `cpu_group`."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self._group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def gather(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values


class SocketExchange:
    """Over a Unix socket in a folder that only this user can enter; rank 0 listens. For processes without torch's
    groups: benchmarks, tests, the comm matrix. `timeout_s` bounds every wait for another rank."""

    def __init__(self, path: Path, rank: int, world: int, timeout_s: float = 60.0) -> None:
        self.rank, self.world = rank, world
        self._peers: list[socket.socket] = []
        if rank == 0:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.settimeout(timeout_s)
                listener.bind(str(path))
                listener.listen(world)
                found: dict[int, socket.socket] = {}
                while len(found) < world - 1:
                    try:
                        peer, _ = listener.accept()
                    except TimeoutError:
                        raise SetupFailed(f"only {len(found) + 1} of {world} ranks came") from None
                    peer.settimeout(timeout_s)
                    found[int(_receive(peer))] = peer
                self._peers = [found[number] for number in range(1, world)]
        else:
            self._peers = [_connect(lambda s: s.connect(str(path)), timeout_s)]
            _send(self._peers[0], rank)

    def gather(self, value: Any) -> list[Any]:
        try:
            if self.rank:
                _send(self._peers[0], value)
                return _receive(self._peers[0])
            values = [value, *(_receive(peer) for peer in self._peers)]
            for peer in self._peers:
                _send(peer, values)
            return values
        except (OSError, EOFError) as error:
            raise SetupFailed(f"a rank is gone or does not answer: {error or 'end of its messages'}") from error

    def close(self) -> None:
        """End the connections."""
        for peer in self._peers:
            peer.close()


def _connect(how: Callable[[socket.socket], None], timeout_s: float) -> socket.socket:
    end = time.monotonic() + timeout_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        try:
            how(sock)
            return sock
        except OSError as error:
            sock.close()
            if time.monotonic() > end:
                raise SetupFailed(f"rank 0 cannot be reached: {error}") from error
            time.sleep(0.01)


def _send(sock: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive(sock: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > _LONGEST:
        raise EOFError(f"a message of {length} bytes")
    return json.loads(_exactly(sock, length))


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
