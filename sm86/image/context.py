"""What of the repository reaches an image; the same list as `.dockerignore`, for questions about revisions."""

from __future__ import annotations

SOURCES = ("pyproject.toml", "README.md", "sm86", "docker/Dockerfile", "docker/locks")
"""Tracked files and folders that end in an image, or decide what does."""

DOCKERFILE = "docker/Dockerfile"
WHEELS = "docker/wheels"
