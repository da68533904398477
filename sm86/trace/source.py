"""The bytes of a trace file, decompressed in bounded pieces. The only module here that opens traces.

isal's inflate is taken where it is installed (about five times faster than zlib's), zlib otherwise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun

PIECE = 2 << 20
COMPRESSED_PIECE = 256 << 10
SLICE = 16 << 10

GZIP = b"\x1f\x8b"
NEED = "give a trace of the PyTorch profiler: a file ending in .pt.trace.json or .pt.trace.json.gz"

# What people have at hand when they look for a trace, told by its first bytes.
FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"SQLite format 3", "an SQLite export of Nsight Systems", NEED),
    (b"PK\x03\x04", "a zip archive", "unpack it and give the trace inside"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first: zstd -d FILE"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it first: xz -d FILE"),
    (b"BZh", "compressed with bzip2", "unpack it first: bzip2 -d FILE"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch the file: git lfs pull"),
    (b"<", "a page of HTML or XML, not a trace", "download the file itself, not the page around it"),
)


class CpuAlone(CouldNotRun):
    """A whole trace of the PyTorch profiler, and no GPU event in it."""


class Truncation:
    """Why the bytes ended early; empty while they have not."""

    __slots__ = ("why",)

    def __init__(self) -> None:
        self.why = ""


def _inflater() -> Any:
    try:
        from isal import isal_zlib

        return isal_zlib.decompressobj(31)
    except ImportError:
        return zlib.decompressobj(31)


def _inflate_errors() -> tuple[Any, ...]:
    try:
        from isal import isal_zlib

        return zlib.error, isal_zlib.error
    except ImportError:
        return (zlib.error,)


def refuse_foreign(path: Path, start: bytes) -> None:
    """Raise CouldNotRun when the first bytes are those of a known file that is no JSON trace."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        raise CouldNotRun(f"{path} is empty", "record it again; vLLM writes the file at the end of /stop_profile")
    for magic, what, mend in FOREIGN:
        if text.startswith(magic):
            raise CouldNotRun(f"{path} is {what}", mend)
    if text[:1] not in (b"{", b"["):
        raise CouldNotRun(f"{path} is not a JSON trace", NEED)


def pieces(path: Path, cut: Truncation, progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """The file's bytes, gunzipped, in pieces of at most about PIECE bytes each.

    A .gz that ends early or is damaged gives everything before that point, and `cut.why` says so.
    progress: called with the number of bytes read from the file so far. Raises CouldNotRun when the
    file cannot be read.
    """
    try:
        with path.open("rb") as file:
            read = 0
            start = file.read(COMPRESSED_PIECE)
            if not start.startswith(GZIP):
                data = start
                while data:
                    read += len(data)
                    if progress:
                        progress(read)
                    yield data
                    data = file.read(PIECE)
                return
            inflater, errors = _inflater(), _inflate_errors()
            waiting: list[bytes] = []
            size = 0
            while start:
                read += len(start)
                if progress:
                    progress(read)
                # fed by small slices: what a damaged slice had given before the damage is lost
                for low in range(0, len(start), SLICE):
                    data = start[low : low + SLICE]
                    if inflater.eof:
                        if not data.startswith(GZIP):
                            yield b"".join(waiting)  # padding behind the last member
                            return
                        inflater = _inflater()
                    full = False
                    while data or full:
                        try:
                            out = inflater.decompress(data, PIECE)
                        except errors as error:
                            cut.why = f"the compressed data is damaged ({error})"
                            yield b"".join(waiting)
                            return
                        waiting.append(out)
                        size += len(out)
                        full = len(out) >= PIECE  # more may wait inside, with nothing left to feed
                        if size >= PIECE:
                            yield b"".join(waiting)
                            waiting, size = [], 0
                        data = inflater.unconsumed_tail
                        if inflater.eof:
                            data = inflater.unused_data
                            if not data.startswith(GZIP):
                                break
                            inflater = _inflater()
                start = file.read(COMPRESSED_PIECE)
            yield b"".join(waiting)
            if not inflater.eof:
                cut.why = "the compressed file ends early"
    except OSError as error:
        raise CouldNotRun(
            f"cannot read {path}: {error.strerror or error}", "check the path and its permissions"
        ) from None
