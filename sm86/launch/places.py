"""Where the launcher keeps what it keeps: in a container the image's own places, else folders of the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.json_text import parse as parse_json

BUILD_FILE = Path("/opt/sm86/build.json")
CONTAINER_CACHE = Path("/cache")
CONTAINER_LOCKS = Path("/run/sm86")
KEY_FILE = Path("/run/secrets/sm86_api_key")


@dataclass(frozen=True, slots=True)
class Places:
    """build: the image's build record, None outside an image (a process of the machine)."""

    build: Mapping[str, Any] | None
    cache: Path
    locks: Path
    key_file: Path
    key_file_is_given: bool

    @property
    def traces(self) -> Path:
        """Where the profiler writes: a container's other folders are read-only or in memory."""
        return self.cache / "traces"

    @property
    def in_image(self) -> bool:
        return self.build is not None


def places(environment: Mapping[str, str], engine: str) -> Places:
    """The places for an engine kind; SM86_CACHE_DIR, SM86_LOCK_DIR, SM86_API_KEY_FILE and SM86_BUILD_FILE come first.

    The locks of a user lie in the home folder and not in /tmp: a cleaner that removes a lock file under a running
    server would let a second one start.
    """
    build = build_record(Path(environment.get("SM86_BUILD_FILE", BUILD_FILE)))
    home = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or os.path.expanduser("~"), ".cache"))
    own = home / "sm86"
    cache, locks = (
        (CONTAINER_CACHE, CONTAINER_LOCKS) if build is not None else (own / f"engine-{engine}", own / "locks")
    )
    given = environment.get("SM86_API_KEY_FILE")
    return Places(
        build=build,
        cache=Path(environment.get("SM86_CACHE_DIR", cache)),
        locks=Path(environment.get("SM86_LOCK_DIR", locks)),
        key_file=Path(given) if given else KEY_FILE,
        key_file_is_given=bool(given),
    )


def build_record(path: Path) -> Mapping[str, Any] | None:
    """The image's build record; None where there is none. A damaged one is an empty record: the image is there."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
