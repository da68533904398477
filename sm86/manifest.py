"""The `[sm86]` lines of a server's log: one format, one parser, for the launcher and everything that reads logs.

    [sm86] manifest begin v1
    [sm86] key=value
    [sm86] manifest end
    [sm86] backend key=value        (later parts: a section name before the key)

A value is plain text on one line; a value that starts with `[`, `{` or `"` is JSON (so is any text
that would otherwise be read as such, or that holds control characters).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sm86.json_text import parse as parse_json

PREFIX = "[sm86] "
BEGIN = "manifest begin v1"
END = "manifest end"
MANIFEST_SECTION = "manifest"
VERSION = 1

_ENTRY = re.compile(r"(?:(?P<section>[a-z][a-z0-9_-]*) )?(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)=(?P<value>.*)", re.DOTALL)
_MARK = re.compile(r"manifest (?P<what>begin v(?P<version>\d+)|end)")

Value = str | int | float | bool | list | dict | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Begin (with its format version) or end (version 0) of a manifest."""

    begin: bool
    version: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key=value` line; `section` is "manifest" for the launcher's own."""

    section: str
    key: str
    value: Value


def format_value(value: Value) -> str:
    """One line of text that `parse_value` gives back; numbers, booleans and None become their text."""
    if isinstance(value, (list, tuple, dict)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        # line separators such as U+0085 are legal inside JSON, but would break the line in two
        return text if text.isprintable() else json.dumps(value, separators=(",", ":"))
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "none"}[value]
    text = str(value)
    if not text or text[0] in '[{"' or text != text.strip() or not text.isprintable():
        return json.dumps(text)
    return text


def parse_value(text: str) -> Value:
    """JSON where it is JSON, the text itself otherwise (broken JSON stays text)."""
    if text[:1] in ("[", "{", '"'):
        try:
            return parse_json(text)
        except ValueError:
            return text
    return text


def format_entry(key: str, value: Value, section: str = MANIFEST_SECTION) -> str:
    """`[sm86] key=value`, or `[sm86] section key=value` for another section."""
    head = "" if section == MANIFEST_SECTION else f"{section} "
    return f"{PREFIX}{head}{key}={format_value(value)}"


def format_manifest(entries: Mapping[str, Value]) -> list[str]:
    """The whole block, begin and end included."""
    return [PREFIX + BEGIN, *(format_entry(key, value) for key, value in entries.items()), PREFIX + END]


def parse_line(text: str) -> Mark | Entry | None:
    """What an `[sm86]` line says; None for any other line. `text` starts at the prefix (worker prefixes removed)."""
    if not text.startswith(PREFIX):
        return None
    rest = text[len(PREFIX) :].rstrip("\r\n")
    mark = _MARK.fullmatch(rest)
    if mark:
        return Mark(mark["what"] != "end", int(mark["version"] or 0))
    entry = _ENTRY.fullmatch(rest)
    if entry:
        return Entry(entry["section"] or MANIFEST_SECTION, entry["key"], parse_value(entry["value"]))
    return None


def manifest_of(lines: Iterable[str]) -> dict[str, Value] | None:
    """The last complete manifest in the lines, by key; None where there is none."""
    found: dict[str, Value] | None = None
    current: dict[str, Value] | None = None
    for line in lines:
        item = parse_line(line)
        if isinstance(item, Mark):
            if item.begin:
                current = {}
            elif current is not None:
                found, current = current, None
        elif isinstance(item, Entry) and current is not None and item.section == MANIFEST_SECTION:
            current[item.key] = item.value
    return found
