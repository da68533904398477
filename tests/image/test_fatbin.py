"""Architectures are read from a library's bytes; a damaged library is refused and never half read."""

import struct

import pytest

from sm86.errors import CouldNotRun
from sm86.image.fatbin import Architectures, architectures, images


def entry(kind: int, arch: int, payload: bytes, header: int = 64) -> bytes:
    head = struct.pack("<HHIQ", kind, 0x101, header, len(payload)).ljust(28, b"\0") + struct.pack("<I", arch)
    return head.ljust(header, b"\0") + payload


def region(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(section: bytes, name: bytes = b".nv_fatbin") -> bytes:
    """The least ELF file that holds one named section, its string table and its section headers."""
    names = b"\0" + name + b"\0.shstrtab\0"
    start = 64
    table = start + len(section) + len(names)
    header = b"\x7fELF\x02\x01\x01".ljust(0x28, b"\0") + struct.pack("<Q", table)
    header = header.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, 3, 2)
    rows = [(0, 0, 0), (1, start, len(section)), (2 + len(name), start + len(section), len(names))]
    headers = [struct.pack("<IIQQQQ", at, 1, 0, 0, offset, size).ljust(64, b"\0") for at, offset, size in rows]
    return header.ljust(64, b"\0") + section + names + b"".join(headers)


TWO_REGIONS = region(entry(2, 86, b"x" * 40), entry(1, 80, b"y" * 16)) + b"\0" * 8 + region(entry(2, 86, b"z" * 8))


def test_regions_padding_and_both_kinds(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(TWO_REGIONS))
    assert architectures(path) == Architectures({86: 2}, {80: 1}, 64)
    assert str(architectures(path)) == "sm_86 x2, compute_80 x1"


def test_a_library_without_device_code(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(b"text", b".text"))
    assert architectures(path) == Architectures({}, {}, 0)
    assert str(architectures(path)) == "no device code"


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" * 50, b"\x7fELF\x01" + b"\0" * 100])
def test_no_library_at_all(tmp_path, data):
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    with pytest.raises(CouldNotRun):
        architectures(path)


def test_missing_file(tmp_path):
    with pytest.raises(CouldNotRun, match=r"nowhere\.so"):
        architectures(tmp_path / "nowhere.so")


def test_a_region_or_entry_that_runs_past_its_end_is_damage():
    long_region = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 10_000)
    with pytest.raises(ValueError, match="past its section"):
        list(images(elf(long_region + b"\0" * 100)))
    long_entry = bytearray(region(entry(2, 86, b"x" * 8)))
    struct.pack_into("<Q", long_entry, 16 + 8, 10_000)
    with pytest.raises(ValueError, match="past its region"):
        list(images(elf(bytes(long_entry))))


def test_truncated_anywhere_is_refused_or_reads_nothing_less(tmp_path):
    whole = elf(TWO_REGIONS)
    path = tmp_path / "lib.so"
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CouldNotRun):
            architectures(path)
