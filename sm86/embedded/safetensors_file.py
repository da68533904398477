"""Writing bfloat16 tensors as one safetensors file, tensor by tensor.

The format (8 bytes of header length, a JSON header, the raw data) is written here because NumPy has no
bfloat16, so the library's NumPy side cannot write it, and its torch side would make torch a need of the tests.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

BYTES = 2


def to_bfloat16(values: numpy.ndarray) -> numpy.ndarray:
    """float32 -> the 16 bits of the nearest bfloat16 (ties to even), same shape, uint16. NaN stays NaN."""
    import numpy

    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")


def write_safetensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, numpy.ndarray]]
) -> None:
    """Write `tensors` (name, float32 values), which must come in the order of `shapes` and match it.

    One tensor is held in memory at a time. Raises ValueError for another name, order or shape, OSError for a full disk.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + count * BYTES]}
        offset += count * BYTES
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for (expected, shape), (name, values) in zip(shapes.items(), tensors, strict=True):
            if (name, values.shape) != (expected, shape):
                raise ValueError(f"tensor {name} of shape {values.shape} where {expected} of shape {shape} belongs")
            file.write(to_bfloat16(values).tobytes())
