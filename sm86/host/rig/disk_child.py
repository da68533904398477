"""Questions about folders, as a program of its own: a dead network mount stops whoever asks it, for good.

Arguments: folders. Prints one JSON object for each, in order:
{"path", "exists", "readable", "total", "free", "filesystem", "rotational", "device"}. Imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any


def look(path: str) -> dict[str, Any]:
    """The folder's facts; those of its nearest parent where it is not there."""
    place = os.path.abspath(path)
    found: dict[str, Any] = {"path": place, "exists": os.path.isdir(place)}
    if found["exists"]:
        found["readable"] = os.access(place, os.R_OK | os.X_OK)
    while not os.path.exists(place) and place != "/":
        place = os.path.dirname(place)
    try:
        space, status = os.statvfs(place), os.stat(place)
    except OSError:
        return found
    found |= {
        "total": space.f_frsize * space.f_blocks,
        "free": space.f_frsize * space.f_bavail,
        "device": status.st_dev,
        "filesystem": filesystem(os.path.realpath(place)),
        "rotational": rotational(status.st_dev),
    }
    return found


def filesystem(place: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The kind of filesystem at a path: that of the longest mount point above it, the last one mounted there."""
    best, kind = -1, None
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        return None
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]
    return kind


def rotational(device: int, blocks: str = "/sys/dev/block") -> bool | None:
    """Whether the block device spins; None for filesystems that lie on none, or on several."""
    real = os.path.realpath(f"{blocks}/{os.major(device)}:{os.minor(device)}")
    for folder in (real, os.path.dirname(real)):
        try:
            with open(f"{folder}/queue/rotational", encoding="ascii") as file:
                return file.read().strip() == "1"
        except OSError:
            continue
    return None


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(look(argument)), flush=True)
