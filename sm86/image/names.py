"""What the images are called: the one place that names them."""

from __future__ import annotations

import re

from sm86.spec.load import load_pins

TARGETS = ("gpu", "cpu")
"""Targets of the Dockerfile that end in a server: for a rig, and for the embedded default."""

VARIANTS = ("native", "wheel")
"""Where the GPU image's kernel libraries come from: compiled for SM 8.6 from vLLM's source, or as published.

The first is the default: it is what the runbook's rig runs, holds code for that chip alone and is much smaller.
"""

OFFICIAL_BASE = "python:3.12.12-slim-bookworm"
"""The base image where a registry answers."""

OFFLINE_BASE = "sm86-base:bookworm"
"""The base image made from Debian packages where none does; Debian's own Python."""

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?", re.ASCII)


def is_image_name(name: str) -> bool:
    """Whether an image can be given this name: registry and port, path in lower case, tag. Source: Docker's grammar."""
    return _NAME.fullmatch(name) is not None


def target_of(engine: str) -> str:
    """The Dockerfile target that serves an envelope's engine ("cuda" or "cpu")."""
    return "cpu" if engine == "cpu" else "gpu"


def image_name(target: str) -> str:
    """The name and tag an image of that target gets: the tag is the version of the vLLM inside."""
    if target == "cpu":
        return f"sm86-vllm-cpu:{load_pins().version('cpu-vllm')}"
    return f"sm86-vllm:{load_pins().version('vllm')}"
