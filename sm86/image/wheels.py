"""Which local wheel files a build may use instead of an index. Pure.

Only wheels of the lock that has an index of its own are looked for; what they hold is proven by their hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sm86.image.locks import PYTHONS, locked_versions

SUFFIX = "x86_64.whl"


def wanted(names: Iterable[str], lock: str) -> tuple[str, ...]:
    """File names among `names` that are wheels of a requirement in the lock's text, for a Python that has a lock."""
    versions = locked_versions(lock)
    tags = tuple("cp" + python.replace(".", "") for python in PYTHONS)
    return tuple(
        sorted(
            name
            for name in names
            if name.endswith(SUFFIX)
            and len(parts := name.removesuffix(".whl").split("-")) == 5
            and versions.get(parts[0].replace("_", "-").lower()) == parts[1]
            and parts[2] in tags
        )
    )


def digests(lock: str) -> frozenset[str]:
    """Every SHA-256 that the lock's text accepts."""
    return frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))
