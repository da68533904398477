"""Whether a lock still holds what `invoke lock` wrote: a list of SHA-256 beside the locks. Pure, and needs no index.

A version or a hash that was altered by hand, or by a merge, is seen by nothing else before pip fetches the package.
The list has sha256sum's own form, so `sha256sum --check SHA256SUMS` says the same without this program.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

SUMS_FILE = "SHA256SUMS"
HEADER = "# Made by `invoke lock`: what each lock beside this file held when it was written."
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9._-]+)")


def sums_text(before: str, written: Mapping[str, bytes]) -> str:
    """The list with the files that were written (name -> contents) in it; what `before` says of others stays: a lock
    that was altered is not vouched for because another one is made anew."""
    known = dict(_entries(before)) | {name: _digest(data) for name, data in written.items()}
    return "\n".join([HEADER, *(f"{digest}  {name}" for name, digest in sorted(known.items()))]) + "\n"


def altered(sums: str, contents: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """(file, what is wrong) for each file of `contents` that the list does not vouch for, and for a damaged list."""
    if not sums.strip():
        yield SUMS_FILE, "is missing or empty"
        return
    known: dict[str, str] = {}
    for line in sums.splitlines():
        found = _LINE.fullmatch(line)
        if found is None and line and not line.startswith("#"):
            yield SUMS_FILE, f"holds a line that is no checksum: {line[:40]!r}"
        elif found and found[2] in known:
            yield SUMS_FILE, f"names {found[2]} twice"
        elif found:
            known[found[2]] = found[1]
    for name in sorted(contents):
        if name not in known:
            yield name, f"is not in {SUMS_FILE}"
        elif known[name] != _digest(contents[name]):
            yield name, f"is not what `invoke lock` wrote: its SHA-256 is another than in {SUMS_FILE}"


def _entries(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found:
            yield found[2], found[1]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
