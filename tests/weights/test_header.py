"""The header of a safetensors file: every kind of fault has its words, and what is accepted the library accepts."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm86.weights import header
from sm86.weights.header import HeaderFault, Tensor, length_of, parse
from tests.weights.checkpoints import header_of

GOOD = {
    "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]},
}


def judged(values: Any, extra: int = 0) -> header.Header:
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return parse(text, 8 + len(text) + 20 + extra)


def fault(values: Any, extra: int = 0) -> str:
    with pytest.raises(HeaderFault) as found:
        judged(values, extra)
    words = str(found.value)
    assert "\n" not in words and words.isprintable() and len(words) < 300
    return words


def test_a_good_header_is_read() -> None:
    found = judged({"__metadata__": {"format": "pt"}, **GOOD})
    assert found.tensors == {"a": Tensor("F16", (2, 3)), "b": Tensor("I64", ())}
    assert found.metadata == {"format": "pt"} and found.data_bytes == 20


def test_tensors_may_lie_in_any_order_and_be_empty_and_the_header_may_end_in_spaces() -> None:
    assert len(judged(dict(reversed(GOOD.items()))).tensors) == 2
    empty = {**GOOD, "c": {"dtype": "F32", "shape": [0, 5], "data_offsets": [12, 12]}}
    assert judged(empty).tensors["c"].shape == (0, 5)
    assert judged(json.dumps(GOOD).encode() + b"     ").data_bytes == 20


@pytest.mark.parametrize(
    ("start", "size", "words"),
    [
        (b"", 0, "is empty"),
        (b"abc", 3, "no safetensors file: it has 3 bytes"),
        (struct.pack("<Q", 1), 100, "no safetensors file"),
        (struct.pack("<Q", 100_000_001), 1 << 40, "100,000,001 bytes"),
        (b"\xff" * 8, 100, "no safetensors file"),
        (b"<html>si", 4000, "no safetensors file"),
        (struct.pack("<Q", 93), 100, "is cut short in its header"),
    ],
)
def test_lengths_that_cannot_be(start: bytes, size: int, words: str) -> None:
    with pytest.raises(HeaderFault) as found:
        length_of(start, size)
    assert words in str(found.value)


def test_the_largest_length_that_is_allowed() -> None:
    assert length_of(struct.pack("<Q", 100_000_000), 100_000_008) == 100_000_000


def changed(name: str = "a", **values: Any) -> dict[str, Any]:
    return {**GOOD, name: {**GOOD[name], **values}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (b"[]", "does not begin with an opening brace"),
        (b" {}", "does not begin with an opening brace"),
        (b"\xef\xbb\xbf{}", "does not begin with an opening brace"),
        (b"{", "not JSON"),
        (b'{"a": \xff}', "not JSON"),
        (b"{}x", "not JSON"),
        (b'{"a":' * 20000, "nests too deeply"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": {"dtype": "F16"}, "a": 1}', "names a twice"),
        (b'{"a": {"dtype": "F16", "dtype": "F32"}}', "names dtype twice"),
        (b'{"\\ud800": {"dtype": "U8", "shape": [20], "data_offsets": [0, 20]}}', "not Unicode"),
        ({"__metadata__": []}, "table of texts"),
        ({"__metadata__": {"a": 1}}, "table of texts"),
        ({"a": 1}, "has no type, shape and two offsets"),
        ({"a": {"dtype": "F16", "shape": [1]}}, "has no type, shape and two offsets"),
        (changed(data_offsets=[0]), "has no type, shape and two offsets"),
        (changed(data_offsets=[0, 12, 13]), "has no type, shape and two offsets"),
        (changed(data_offsets="ab"), "no place in the file"),
        (changed(data_offsets=[0, 12.0]), "no place in the file"),
        (changed(data_offsets=[-1, 11]), "no place in the file"),
        (changed(data_offsets=[12, 0]), "no place in the file"),
        (changed(data_offsets=[0, 10**30]), "no place in the file"),
        (changed(shape=[2, True]), "no list of sizes"),
        (changed(shape=[2, -3]), "no list of sizes"),
        (changed(shape=[2.0, 3]), "no list of sizes"),
        (changed(shape="23"), "no list of sizes"),
        (changed(shape=[10**40]), "no list of sizes"),
        (changed(shape=[2**40, 2**40]), "more bytes than a file can have"),
        (changed(shape=[2**62, 2**62, 0]), "more bytes than a file can have"),
        (changed(dtype="F17"), "which the format does not know"),
        (changed(dtype=7), "which the format does not know"),
        (changed(dtype=["F16"]), "which the format does not know"),
        (changed(dtype="F32"), "its type and shape need 24"),
        (changed(dtype="F4", shape=[5], data_offsets=[0, 12]), "its type and shape need 2.5"),
        (changed("b", data_offsets=[8, 16]), "overlaps the one before it"),
        (changed("b", data_offsets=[16, 24]), "leaves 4 bytes before it unused"),
        (changed("a", data_offsets=[20, 32]), "leaves 12 bytes before it unused"),
    ],
)
def test_faults_in_the_text(values: Any, words: str) -> None:
    assert words in fault(values)


def test_a_number_of_too_many_digits_is_no_json() -> None:
    assert "not JSON" in fault(b'{"a": {"dtype": "U8", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 1]}}')


def test_a_file_that_is_shorter_or_longer_than_its_header_says() -> None:
    assert "the download is not complete" in fault(GOOD, extra=-1)
    assert "1 more than its header tells of" in fault(GOOD, extra=1)


def test_a_name_with_control_characters_or_without_end_is_shown_harmlessly() -> None:
    assert "\x1b" not in fault({"\x1b[2J" + "x" * 5000: 1})


FIELD = st.sampled_from(["dtype", "shape", "data_offsets", "name", "cut", "grow"])
ODD = st.one_of(st.integers(-3, 40), st.sampled_from(["F16", "I64", "F4", "U8", "", None, [], [0], [0, 20], [20, 0]]))


@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(sorted(header.BITS)), st.lists(st.integers(0, 5), max_size=3)), max_size=4
    ),
    field=st.none() | FIELD,
    value=ODD,
)
def test_what_is_accepted_the_library_accepts(
    shapes: list[tuple[str, list[int]]], field: str | None, value: Any
) -> None:
    safetensors = pytest.importorskip("safetensors")
    tensors = {}
    for number, (dtype, shape) in enumerate(shapes):
        # types of less than a byte need a whole number of bytes
        whole = [*shape, 8] if header.BITS[dtype] % 8 else shape
        tensors[f"t{number}"] = Tensor(dtype, tuple(whole))
    text, data = header_of(tensors)
    values = json.loads(text)
    if tensors and field in ("dtype", "shape", "data_offsets"):
        values["t0"][field] = value
    elif field == "name":
        values["__metadata__"] = value
    body = json.dumps(values).encode()
    size = data + {"cut": -1, "grow": 1}.get(field or "", 0)
    if size < 0:
        return
    file = struct.pack("<Q", len(body)) + body + bytes(size)
    try:
        found = parse(body, len(file))
    except HeaderFault:
        assert field is not None, "a header as the library writes it was refused"
        return
    try:
        names = {name for name, _ in safetensors.deserialize(file)}
    except TypeError:
        return  # a type that the library reads and its Python side does not know
    assert names == set(found.tensors)
