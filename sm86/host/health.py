"""One question to a server: does it answer, and with what status. Proxies in the environment are never used."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

ANSWER_WITHIN_S = 2.0


def health(base_url: str, path: str = "/health", answer_within_s: float = ANSWER_WITHIN_S) -> int | None:
    """HTTP status of GET `path`; None where nothing answers as an HTTP server within the time."""
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=answer_within_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read(1024)
        return response.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
