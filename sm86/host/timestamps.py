"""Times as Docker and the product write them. Pure."""

from __future__ import annotations

from datetime import datetime


def epoch(rfc3339: str) -> float:
    """Seconds since the epoch of an RFC 3339 time in UTC ("Z" or "+00:00"; nanoseconds are cut), 0 for other text."""
    text = rfc3339.removesuffix("Z").removesuffix("+00:00")
    head, dot, rest = text.partition(".")
    try:
        return datetime.fromisoformat(head + (f".{rest[:6].ljust(6, '0')}" if dot else "") + "+00:00").timestamp()
    except ValueError:
        return 0.0
