"""Bytes of a server's log -> the messages in them, each with its physical line number and the process that wrote it.

What stands between a log and its messages: terminal escape codes, tqdm bars that rewrite one physical line with
carriage returns, `docker compose` names, Docker timestamps, worker prefixes (several on one line when workers
interleave), the logger's own header, bad UTF-8, a byte order mark, and cuts at both ends. File names and line
numbers in the logger's header change with every release and are never looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SEGMENT_LIMIT = 64 * 1024
"""Bytes kept of one segment (the text between two line ends or carriage returns); the rest of it is dropped."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[@-Z\\^_=>]"
)
_WRAPPERS = re.compile(
    r"(?:[\w.-]+ +\| )?"  # docker compose: the container's name
    r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?)?"  # docker logs -t
)
_PREFIX = re.compile(r"\((?P<name>[A-Za-z]\w*) pid=(?P<pid>\d{1,10})(?:, ip=[^()]*)?\) ?")
_HEADER = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[[^\]\[]{1,160}\] ?"
)
_UVICORN = re.compile(r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): {1,8}")
_RANK = re.compile(r"_TP(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Source:
    """The process that wrote a message, from its prefix: `Worker_TP3`, `EngineCore`, `APIServer`."""

    name: str
    pid: int

    @property
    def rank(self) -> int | None:
        """Tensor-parallel rank of a worker; None for other processes."""
        found = _RANK.search(self.name)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its text without prefix and header, its level ("" where none is written) and its writer."""

    text: str
    level: str
    source: Source | None


class Blocks:
    """Chunks of any size -> blocks that end at a line end or carriage return.

    Memory is bounded: at most SEGMENT_LIMIT bytes of an unfinished segment are kept, whatever its length.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """The finished part of what was given so far; empty while a segment is unfinished."""
        if self._rest:
            data = self._rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[cut : cut + SEGMENT_LIMIT]
        return data[:cut]

    def close(self) -> bytes:
        """The unfinished segment at the end of the log."""
        rest, self._rest = self._rest, b""
        return rest


def decode(segment: bytes) -> str:
    """Text of one segment: bad UTF-8 replaced, byte order mark and escape codes removed, cut at the limit."""
    text = segment[:SEGMENT_LIMIT].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text.removeprefix("\ufeff")


def messages(text: str, inherited: Source | None) -> list[Message]:
    """The messages of one segment. `inherited`: who wrote the part of the physical line before it, if known.

    A prefix without text of its own (its text follows on another line) gives no message.
    """
    wrapper = _WRAPPERS.match(text)
    text = text[wrapper.end() :] if wrapper else text
    found: list[Message] = []
    source, start = inherited, 0
    for prefix in _PREFIX.finditer(text):
        found += _split_headers(text[start : prefix.start()], source)
        source, start = Source(prefix["name"], int(prefix["pid"])), prefix.end()
    return found + _split_headers(text[start:], source)


def last_source(segment: bytes, inherited: Source | None) -> Source | None:
    """The writer that the end of a segment belongs to, without building its messages."""
    if b" pid=" not in segment:
        return inherited
    last = inherited
    for prefix in _PREFIX.finditer(decode(segment)):
        last = Source(prefix["name"], int(prefix["pid"]))
    return last


def _split_headers(text: str, source: Source | None) -> list[Message]:
    """Cut where the logger's header stands, so that messages glued to a bar or to each other come apart."""
    pieces: list[Message] = []
    level, start = "", 0
    for header in _HEADER.finditer(text):
        pieces += _message(text[start : header.start()], level, source)
        level, start = header["level"], header.end()
    return pieces + _message(text[start:], level, source)


def _message(text: str, level: str, source: Source | None) -> list[Message]:
    if not level and (uvicorn := _UVICORN.match(text)):
        level, text = uvicorn["level"], text[uvicorn.end() :]
    return [Message(text, level, source)] if text.strip() else []
