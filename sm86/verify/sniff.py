"""Is this a log at all: what the first bytes betray of an empty, binary, compressed or foreign file. Pure."""

from __future__ import annotations

import re

from sm86.errors import CouldNotRun

SNIFF_BYTES = 64 * 1024

_MEND = "give the server's log as plain text (docker logs, or the file that the launcher's output went to)"
_PACKED = ((b"\x1f\x8b", "gzip", "gunzip -c"), (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"), (b"\xfd7zXZ", "xz", "xz -dc"))
_VLLM = re.compile(
    rb"\[sm86\] |^sm86: |vllm|vLLM|\(\w+ pid=\d+\) "
    rb"|(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[|^INFO: {5}",
    re.M,
)


def refuse_if_binary(head: bytes, where: str) -> None:
    """Raise CouldNotRun when the first bytes cannot be a log's. `head`: up to SNIFF_BYTES; `where` names the log."""
    for magic, name, command in _PACKED:
        if head.startswith(magic):
            raise CouldNotRun(f"{where} is compressed ({name})", f"unpack it: {command} FILE | ... --log -")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CouldNotRun(f"{where} is UTF-16 text", "save it as UTF-8 (PowerShell's > writes UTF-16), then try again")
    if b"\0" in head:
        raise CouldNotRun(f"{where} is binary, not a log (it has NUL bytes)", _MEND)
    # a cut at the end may halve one character; anything beyond a few bad bytes in a hundred is no text
    bad = head.decode("utf-8", "replace").count("\ufffd")
    if bad > 3 + len(head) // 20:
        raise CouldNotRun(f"{where} is binary, not a log (it is not UTF-8 text)", _MEND)


def empty(where: str) -> CouldNotRun:
    """The refusal of a log without a word in it."""
    return CouldNotRun(
        f"{where} is empty", "give the log of a server that was started (invoke logs --envelope E shows whether it was)"
    )


def foreign(where: str) -> CouldNotRun:
    """The refusal of a text in which neither vLLM nor the launcher ever speaks."""
    return CouldNotRun(f"{where} has no line of vLLM or of the launcher in it", "it is the wrong file; " + _MEND)


def speaks_vllm(chunk: bytes) -> bool:
    """Whether anything in these bytes looks like a line of vLLM or of the launcher."""
    return _VLLM.search(chunk) is not None
