"""Who can reach the segment: the group's own processes and nobody else, and nothing of it has a name."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from sm86.backend.collectives import link, segment


@pytest.fixture
def fd():
    made = segment.create(8192)
    yield made
    os.close(made)


def test_the_segment_has_no_name_and_one_owner(fd: int) -> None:
    assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"), "no /dev/shm limit counts"
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert os.fstat(fd).st_size == 8192 and os.fstat(fd).st_blocks * 512 >= 8192, "reserved, not promised"
    assert not os.get_inheritable(fd)


def test_without_memfd_an_unlinked_file_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    made = segment.create(4096, str(tmp_path))
    try:
        assert list(tmp_path.iterdir()) == []
        assert stat.S_IMODE(os.fstat(made).st_mode) == 0o600 and os.fstat(made).st_nlink == 0
    finally:
        os.close(made)


def test_memory_that_is_not_there_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        segment.create(4096, str(tmp_path))
    assert set(os.listdir("/proc/self/fd")) == before and list(tmp_path.iterdir()) == []


def test_a_mapping_of_a_smaller_file_is_refused(fd: int) -> None:
    with pytest.raises(OSError, match="are needed"):
        segment.Mapping(fd, 1 << 20)


def test_two_mappings_share_the_memory(fd: int) -> None:
    import ctypes

    one, two = segment.Mapping(fd, 8192), segment.Mapping(fd, 8192)
    ctypes.c_uint32.from_address(one.address + 4096).value = 77
    assert ctypes.c_uint32.from_address(two.address + 4096).value == 77
    one.close()
    two.close()


def stranger(address: str, said: bytes) -> bytes:
    """What somebody gets who connects and says this."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect("\0" + address)
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        data, fds, _, _ = socket.recv_fds(sock, 16, 4)
        assert not fds
        return data


def test_only_who_knows_the_token_gets_the_segment(fd: int) -> None:
    offer = link.Offer(2)
    found: list[link.Link] = []
    thread = threading.Thread(target=lambda: found.append(offer.hand_out(fd, 20)), daemon=True)
    thread.start()
    assert stranger(offer.address, b"0" * 64 + b"01") == b""
    assert stranger(offer.address, b"short") == b""
    assert stranger(offer.address, offer.token.encode() + b"07") == b"", "no such rank"
    assert stranger(offer.address, offer.token.encode() + b"xx") == b""
    theirs, got = link.fetch(offer.address, offer.token, 1)
    thread.join()
    assert os.fstat(got).st_ino == os.fstat(fd).st_ino
    os.close(got)
    with pytest.raises(OSError):
        link.fetch(offer.address, offer.token, 1)  # nobody listens any more
    assert found[0].gone(0.01) == []
    theirs.close()
    assert found[0].gone(5.0) == [1]
    assert found[0].gone(0.01) == [], "told once"
    found[0].close()


def test_a_rank_that_does_not_come_is_not_waited_for_longer(fd: int) -> None:
    with pytest.raises(OSError):
        link.Offer(3).hand_out(fd, 0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_have_it(fd: int) -> None:
    """Neither through the socket, with the token even, nor through /proc."""
    offer = link.Offer(2)
    path = f"/proc/{os.getpid()}/fd/{fd}"
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            opened = True
            try:
                os.close(os.open(path, os.O_RDWR))
            except OSError:
                opened = False
            os.write(ready[1], b"1")
            got = True
            try:
                link.fetch(offer.address, offer.token, 1, 10)
            except OSError:
                got = False
            code = 10 * opened + 20 * got
        finally:
            os._exit(code)
    try:
        os.read(ready[0], 1)
        with pytest.raises(OSError):
            offer.hand_out(fd, 2.0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        for end in (*ready, *done):
            os.close(end)


def test_the_machine_is_named_equally_by_its_processes() -> None:
    assert link.same_machine() == link.same_machine() != ""
