"""The few facts of an ELF file that decide whether it may be stripped, and whether stripping kept it whole. Pure."""

from __future__ import annotations

import mmap
import struct

Buffer = bytes | mmap.mmap

_SYMTAB, _LOAD = 2, 1


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
    (table,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    for index in range(count):
        kind, _, offset, address, _, in_file, _, align = struct.unpack_from("<IIQQQQQQ", data, table + index * size)
        if kind == _LOAD and (offset % (align or 1) != address % (align or 1) or offset + in_file > len(data)):
            return False
    return True


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
