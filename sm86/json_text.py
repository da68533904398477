"""JSON that comes from outside: whatever is wrong with it is a ValueError, also when it nests too deeply to be read."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes, **hooks: Any) -> Any:
    """The value of a JSON text (bytes: UTF-8, UTF-16 or UTF-32). Raises ValueError for anything that is none.

    hooks: `object_pairs_hook`, `parse_constant` and the like of the standard json module.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        # a few kilobytes of brackets are enough; Python names no ValueError for it
        raise ValueError("it nests too deeply") from None
