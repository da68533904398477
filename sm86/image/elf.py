"""The few facts of an ELF file that an image needs: what may be stripped of it, whether that kept it whole, and in
which folders it has the loader look. Pure."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

Buffer = bytes | mmap.mmap

_SYMTAB, _LOAD, _DYNAMIC = 2, 1, 2
_STRINGS, _RPATH, _RUNPATH = 5, 15, 29


def is_elf(data: Buffer) -> bool:
    """Whether this is a 64-bit little-endian ELF file."""
    return bytes(data[:6]) == b"\x7fELF\x02\x01"


def strippable_bytes(data: Buffer) -> int:
    """Bytes in symbol tables, their names and debug sections: what `strip --strip-unneeded` can take away.

    Raises ValueError for a damaged file.
    """
    return sum(size for name, kind, size in _sections(data) if kind == _SYMTAB or _is_debug(name))


def loads_whole(data: Buffer) -> bool:
    """Whether every loadable segment lies where the loader can map it: offset and address equal modulo its alignment.

    Some tools that add names to a library move its segments, and older versions of strip then break that.
    """
    for kind, offset, address, in_file, align in _segments(data):
        if kind == _LOAD and (offset % (align or 1) != address % (align or 1) or offset + in_file > len(data)):
            return False
    return True


def loader_paths(data: Buffer) -> tuple[str, ...]:
    """Folders in which the file has the loader look before the system's own (RPATH, RUNPATH), "" the current one.

    Raises ValueError for a damaged file.
    """
    found: list[str] = []
    try:
        entries = dict(reversed([(tag, value) for _, tag, value in _dynamic(data)]))
        for tag in (_RPATH, _RUNPATH):
            if tag in entries:
                start = _offset(data, entries[_STRINGS]) + entries[tag]
                found += bytes(data[start : start + 4096]).split(b"\0", 1)[0].decode("utf-8", "replace").split(":")
    except (struct.error, KeyError, StopIteration) as error:
        raise ValueError(f"damaged ELF file: {error}") from None
    return tuple(found)


def without_loader_paths(data: bytes) -> bytes:
    """The file with no RPATH and no RUNPATH; everything else lies where it lay. Raises ValueError as above."""
    changed = bytearray(data)
    try:
        entries = list(_dynamic(data))
        kept = [(tag, value) for _, tag, value in entries if tag not in (_RPATH, _RUNPATH)]
        # what is left over ends the table, as its last entry does
        kept += [(0, 0)] * (len(entries) - len(kept))
        for (place, _, _), (tag, value) in zip(entries, kept, strict=True):
            struct.pack_into("<QQ", changed, place, tag, value)
    except struct.error as error:
        raise ValueError(f"damaged ELF file: {error}") from None
    return bytes(changed)


def _segments(data: Buffer) -> Iterator[tuple[int, int, int, int, int]]:
    """(kind, offset, address, bytes in the file, alignment) of every segment."""
    (table,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    for index in range(count):
        kind, _, offset, address, _, in_file, _, align = struct.unpack_from("<IIQQQQQQ", data, table + index * size)
        yield kind, offset, address, in_file, align


def _dynamic(data: Buffer) -> Iterator[tuple[int, int, int]]:
    """(place in the file, tag, value) of every entry that the loader reads, the one that ends the table included."""
    for kind, offset, _, in_file, _ in _segments(data):
        if kind != _DYNAMIC:
            continue
        for place in range(offset, offset + in_file, 16):
            tag, value = struct.unpack_from("<QQ", data, place)
            yield place, tag, value
            if tag == 0:
                return


def _offset(data: Buffer, address: int) -> int:
    """Where in the file lies what the loader puts at this address."""
    return next(
        offset + address - start
        for kind, offset, start, in_file, _ in _segments(data)
        if kind == _LOAD and start <= address < start + in_file
    )


def _is_debug(name: str) -> bool:
    return name.startswith(".debug") or name == ".strtab"


def _sections(data: Buffer) -> list[tuple[str, int, int]]:
    try:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
        if not headers:
            return []
        names = bytes(data[headers[names_at][4] : headers[names_at][4] + headers[names_at][5]])
        return [
            (names[h[0] : names.index(b"\0", h[0])].decode("ascii", "replace"), h[1], 0 if h[1] == 8 else h[5])
            for h in headers
        ]
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged ELF file: {error}") from None
