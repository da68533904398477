"""Which GPU architectures a shared library was compiled for, read from its bytes. Pure, no CUDA tools needed.

A library built by nvcc holds fat binaries in its ELF section `.nv_fatbin`: regions that start with a
header (magic 0xBA55ED50, 16 bytes, length of what follows) and hold entries, each a header and a
payload: machine code (SASS) for one architecture, or PTX. The layout was read off libraries that
nvcc 13.0 built, and agrees with what `cuobjdump --list-elf --list-ptx` says of them.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm86.errors import CouldNotRun

SECTION = b".nv_fatbin"
REGION_MAGIC = 0xBA55ED50
KINDS = {1: "ptx", 2: "sass"}

Buffer = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class Image:
    """One compiled image: kind "sass" or "ptx", architecture such as 86, stored size in bytes."""

    kind: str
    arch: int
    size: int


@dataclass(frozen=True, slots=True)
class Architectures:
    """A library's images counted: `sass[86]` is how many are machine code for sm_86, `ptx[80]` PTX for compute_80."""

    sass: dict[int, int]
    ptx: dict[int, int]
    size: int

    def __str__(self) -> str:
        parts = [f"sm_{arch} x{count}" for arch, count in sorted(self.sass.items())]
        parts += [f"compute_{arch} x{count}" for arch, count in sorted(self.ptx.items())]
        return ", ".join(parts) or "no device code"


def architectures(path: Path) -> Architectures:
    """Architectures of a shared library; empty for one without device code.

    Raises CouldNotRun when the file cannot be read, is no 64-bit ELF file or its fat binaries are damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = list(images(data))
    except (OSError, ValueError, struct.error) as error:
        raise CouldNotRun(
            f"cannot read device code of {path}: {error}", "give a shared library (ELF, 64 bit)"
        ) from None
    return Architectures(
        dict(Counter(image.arch for image in found if image.kind == "sass")),
        dict(Counter(image.arch for image in found if image.kind == "ptx")),
        sum(image.size for image in found),
    )


def images(data: Buffer) -> Iterator[Image]:
    """Every device image of an ELF file. Raises ValueError for a file that is no ELF or is damaged."""
    section = _section(data)
    if section is None:
        return
    position, end = section
    while position + 16 <= end:
        magic, _, header_size, size = struct.unpack_from("<IHHQ", data, position)
        if magic != REGION_MAGIC:
            # regions are aligned to 8 bytes; what lies between them is padding
            position += 8
            continue
        region_end = position + header_size + size
        if region_end > end:
            raise ValueError("a fat binary runs past its section")
        yield from _entries(data, position + header_size, region_end)
        position = region_end


def _entries(data: Buffer, position: int, end: int) -> Iterator[Image]:
    while position + 32 <= end:
        kind, _, header_size, size = struct.unpack_from("<HHIQ", data, position)
        (arch,) = struct.unpack_from("<I", data, position + 28)
        if header_size < 32 or position + header_size + size > end:
            raise ValueError("an entry of a fat binary runs past its region")
        if kind in KINDS:
            yield Image(KINDS[kind], arch, size)
        position += header_size + size


def _section(data: Buffer) -> tuple[int, int] | None:
    """Offsets of `.nv_fatbin`, start and end; None where there is none."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    if table + entry_size * count > len(data):
        raise ValueError("the file is cut off")
    headers = [struct.unpack_from("<IIQQQQ", data, table + index * entry_size) for index in range(count)]
    if not headers:
        return None
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        start = names + name
        if data[start : start + len(SECTION) + 1] == SECTION + b"\0":
            if offset + size > len(data):
                raise ValueError("the section runs past the end of the file")
            return offset, offset + size
    return None
