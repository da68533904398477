"""The part of this machine's pip configuration that a build can use. Pure.

Paths of this machine mean nothing inside a build, and a constraints file could only fight with the lock:
what goes in is how to reach the package index. Folders of wheels are handled apart (`sm86.image.wheels`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

REACHING = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_SECTIONS = (":env:", "install", "global")


def parse_listing(listing: str) -> dict[str, str]:
    """name -> value out of `pip config list`: the environment before [install] before [global], as pip does it."""
    found: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.rpartition(".")
        if not (equals and dot):
            continue
        try:
            found.setdefault(section, {})[name] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
    merged: dict[str, str] = {}
    for section in reversed(_SECTIONS):
        merged.update(found.get(section, {}))
    return merged


def portable_config(settings: Mapping[str, str]) -> str:
    """A pip.conf for the build, or "" where nothing of the settings is needed there."""
    lines = []
    for name in REACHING:
        words = [word for word in settings.get(name, "").split() if not _is_local(word)]
        if words:
            lines.append(f"{name} = " + "\n    ".join(words))
    return "\n".join(["[global]", *lines]) + "\n" if lines else ""


def find_links_folders(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Folders of this machine that pip's find-links setting names."""
    words = settings.get("find-links", "").split()
    return tuple(word.removeprefix("file://") for word in words if _is_local(word))


def _is_local(word: str) -> bool:
    return word.startswith(("/", "~", ".", "file:"))
