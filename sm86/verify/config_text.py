"""Reading the Python-like text of vLLM's config line and of its non-default arguments. Pure.

The texts hold reprs that are no Python literals (`<CUDAGraphMode.FULL: 2>`, `SpeculativeConfig(...)`), and a log may
cut them anywhere; so they are cut into fields by brackets and quotes, and a field that is not finished is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPEN, _CLOSE = "([{<", ")]}>"
_ENUM = re.compile(r"<(?:\w+\.)*(?P<name>\w+): .*>")
_DIGITS = 12
_INTERESTING = re.compile(r"""['"()\[\]{}<>,\\]""")


def split_fields(text: str, finished: bool = False) -> Iterator[str]:
    """Parts of `text` between its top-level commas. The last one counts only if `finished` (the text is whole)."""
    depth, quote, start, position = 0, "", 0, 0
    while found := _INTERESTING.search(text, position):
        char, position = found[0], found.end()
        if char == "\\":
            position += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(depth - 1, 0)
        elif char == "," and depth == 0:
            yield text[start : found.start()]
            start = position
    if finished and depth == 0 and not quote and text[start:].strip():
        yield text[start:]


def keyword_fields(text: str) -> dict[str, str]:
    """`a=1, b='x', c={...}` -> values by name, as text. The last one must close a bracket or quote."""
    fields: dict[str, str] = {}
    whole = text.rstrip().endswith((")", "]", "}", "'", '"', ">"))
    for part in split_fields(text, finished=whole):
        name, equals, value = part.strip().partition("=")
        if equals and name.isidentifier():
            fields.setdefault(name, value.strip())
    return fields


def dict_fields(text: str) -> dict[str, str]:
    """`{'a': 1, 'b': [2]}` -> values by key, as text; empty for other text. A cut text gives its finished entries."""
    text = text.strip()
    if not text.startswith("{"):
        return {}
    whole = text.endswith("}")
    fields: dict[str, str] = {}
    for part in split_fields(text[1 : -1 if whole else None], finished=whole):
        key, colon, value = part.strip().partition(": ")
        if colon and key[:1] in "'\"" and key[:1] == key[-1:]:
            fields.setdefault(key[1:-1], value.strip())
    return fields


def plain(value: str) -> str:
    """The value without quotes or enum repr: `'fp8'` -> fp8, `<CUDAGraphMode.FULL: 2>` -> FULL."""
    value = value.strip()
    enum = _ENUM.fullmatch(value)
    if enum:
        return enum["name"]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.rpartition(".")[2] if re.fullmatch(r"(?:[A-Z]\w*\.)+[A-Z_]+", value) else value


def integers(value: str) -> list[int] | None:
    """`[1, 4]` -> [1, 4]; None for anything else, a number that no setting could have included."""
    inner = re.fullmatch(r"[\[(]([\d, ]*)[\])]", value.strip())
    numbers = re.findall(r"\d+", inner[1]) if inner else []
    if inner is None or any(len(number) > _DIGITS for number in numbers):
        return None
    return [int(number) for number in numbers]
