"""The header of a safetensors file: names, types, shapes and places of its tensors, or what is wrong with it. Pure.

Written here and not taken from the safetensors library, because the library opens a file for loading: it names one
fault and stops, has no shape and type of all tensors at once in its Python side (one call per tensor), and is not
there in every place that judges a checkpoint. What is accepted here the library accepts too; a test holds that.

The format, as the library 0.8 reads it: 8 bytes little-endian length, that many bytes of JSON in UTF-8 that begin
with `{` and may end in spaces, then the tensors' bytes, in any order but without gap, overlap or rest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sm86.json_text import parse as parse_json

LENGTH_BYTES = 8
MAX_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library."""

METADATA = "__metadata__"

BITS: Mapping[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element of each type."""

_LARGEST = 2**63
_FOREIGN = "no safetensors file"


class Tensor(NamedTuple):
    """One tensor's type and shape. A named tuple: a checkpoint has a hundred thousand, compared with expected ones."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """A file's tensors by name, the file's own metadata, and the bytes of the tensors."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    data_bytes: int


class HeaderFault(ValueError):
    """What is wrong, as the rest of a sentence that begins with the file's name."""


def length_of(start: bytes, file_bytes: int) -> int:
    """The header's length in bytes. start: the file's first 8 bytes. Raises HeaderFault."""
    if file_bytes == 0:
        raise HeaderFault("is empty")
    if len(start) < LENGTH_BYTES:
        raise HeaderFault(f"is {_FOREIGN}: it has {file_bytes} bytes")
    (length,) = struct.unpack("<Q", start)
    if not 2 <= length <= MAX_HEADER:
        raise HeaderFault(f"is {_FOREIGN}: its header would have {length:,} bytes, {MAX_HEADER:,} at most are allowed")
    if length > file_bytes - LENGTH_BYTES:
        raise HeaderFault(f"is cut short in its header: {file_bytes:,} bytes of at least {length + LENGTH_BYTES:,}")
    return int(length)


def parse(header: bytes, file_bytes: int) -> Header:
    """The header's contents. file_bytes: the size of the whole file. Raises HeaderFault for the first fault."""
    values = _object(header)
    metadata = _metadata(values.pop(METADATA, {}))
    tensors: dict[str, Tensor] = {}
    places: list[tuple[int, int, str]] = []
    for name, value in values.items():
        try:
            dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise HeaderFault(f"is {_FOREIGN}: {_shown(name)} has no type, shape and two offsets") from None
        tensors[name] = Tensor(dtype, _shape(name, shape))
        _check_size(name, tensors[name], begin, end)
        places.append((begin, end, name))
    data_bytes = _check_places(places)
    wanted = LENGTH_BYTES + len(header) + data_bytes
    if file_bytes < wanted:
        raise HeaderFault(f"has {file_bytes} bytes, but its header tells of {wanted}: the download is not complete")
    if file_bytes > wanted:
        raise HeaderFault(f"has {file_bytes} bytes, {file_bytes - wanted} more than its header tells of")
    return Header(tensors, metadata, data_bytes)


def _object(header: bytes) -> dict[str, Any]:
    if header[:1] != b"{":
        raise HeaderFault(f"is {_FOREIGN}: its header does not begin with an opening brace")
    try:
        value = parse_json(header.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except HeaderFault:
        raise
    except ValueError:
        raise HeaderFault(f"is {_FOREIGN}: its header is not JSON in UTF-8, or nests too deeply") from None
    assert isinstance(value, dict), "a JSON text that begins with a brace is an object"
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise HeaderFault(f"names {_shown(twice)} twice in its header")
    return values


def _no_constant(text: str) -> Any:
    raise HeaderFault(f"is {_FOREIGN}: its header holds {text}")


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise HeaderFault(f"is {_FOREIGN}: its {METADATA} is not a table of texts")
    return value


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    good = type(shape) is list
    for extent in shape if good else ():
        good = good and type(extent) is int and 0 <= extent < _LARGEST
    if not good:
        raise HeaderFault(f"gives {_shown(name)} a shape that is no list of sizes")
    return tuple(shape)


def _check_size(name: str, tensor: Tensor, begin: Any, end: Any) -> None:
    # a lone half of a character pair is JSON to Python, and to no other reader
    if not name.isascii() and any("\ud800" <= sign <= "\udfff" for sign in name):
        raise HeaderFault(f"is {_FOREIGN}: a name in its header is not Unicode text")
    bits = BITS.get(tensor.dtype) if type(tensor.dtype) is str else None
    if bits is None:
        raise HeaderFault(f"gives {_shown(name)} the type {_shown(str(tensor.dtype))}, which the format does not know")
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < _LARGEST:
        raise HeaderFault(f"gives {_shown(name)} offsets that are no place in the file")
    for extent in tensor.shape:
        bits *= extent
        if bits > _LARGEST:
            # also before a later size of zero: other readers count in 64 bits
            raise HeaderFault(f"gives {_shown(name)} a shape of more bytes than a file can have")
    if bits != 8 * (end - begin):
        raise HeaderFault(f"gives {_shown(name)} {end - begin:,} bytes; its type and shape need {bits / 8:,g}")


def _check_places(places: list[tuple[int, int, str]]) -> int:
    at = 0
    for begin, end, name in sorted(places):
        if begin != at:
            fault = "overlaps the one before it" if begin < at else f"leaves {begin - at:,} bytes before it unused"
            raise HeaderFault(f"is damaged: in its header {_shown(name)} {fault}")
        at = end
    return at


def _shown(name: str, most: int = 80) -> str:
    printable = "".join(sign if sign.isprintable() else "?" for sign in name[: most + 1])
    return printable if len(printable) <= most else printable[:most] + "..."
