"""The shared memory itself: without a name, so that no other user can open it and nothing is left after any death.

A memfd lies in no folder and counts against no /dev/shm limit (a container's default is 64 MiB); it goes with the last
process that maps it. Where a sandbox forbids it, a file of /dev/shm serves, readable by its owner alone and unlinked
before anybody else hears of it: the others get the open file, not a name.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile

SHM = "/dev/shm"
NAME = "sm86-allreduce"


def create(size: int, folder: str = SHM) -> int:
    """A new segment of `size` bytes, all of it reserved; the descriptor. Raises OSError: no memory, no such folder."""
    try:
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        fd = _unlinked_file(folder)
    try:
        os.fchmod(fd, 0o600)
        # reserved now: a page that cannot be had later would end the process with a bus error
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _unlinked_file(folder: str) -> int:
    fd, path = tempfile.mkstemp(prefix=f".{NAME}.", dir=folder)
    os.unlink(path)
    return fd


class Mapping:
    """One process's view of the segment. `address` is valid until `close`."""

    def __init__(self, fd: int, size: int) -> None:
        if os.fstat(fd).st_size < size:
            raise OSError(f"the segment has {os.fstat(fd).st_size} bytes, {size} are needed")
        self.size = size
        self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with contextlib.suppress(OSError, AttributeError):
            # a forked child shares the pages but not the GPU's registration of them
            self._memory.madvise(mmap.MADV_DONTFORK)
        self._view: ctypes.Array[ctypes.c_char] | None = (ctypes.c_char * size).from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)

    def close(self) -> None:
        """Unmap."""
        self._view = None
        with contextlib.suppress(BufferError):
            self._memory.close()
