"""Which revision of this product is running: from the image's build record, else from the git checkout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.host.process import run

UNKNOWN = "unknown"
GIT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Provenance:
    """git_rev: 40 hex digits or "unknown"; git_dirty: None where it cannot be told.

    What comes from the build record is None outside an image.
    """

    git_rev: str
    git_dirty: bool | None
    lock_hash: str | None = None
    pins: Mapping[str, Any] | None = None
    variant: str | None = None
    image_id: str | None = None


def find(build: Mapping[str, Any] | None, environment: Mapping[str, str], package: Path | None = None) -> Provenance:
    """package: the folder of this package; its checkout is asked when there is no build record."""
    if build is None:
        rev, dirty = from_checkout(package or Path(__file__).resolve().parents[1])
        return Provenance(rev, dirty, image_id=environment.get("SM86_IMAGE_ID"))
    dirty = build.get("git_dirty")
    pins = build.get("pins")
    return Provenance(
        git_rev=str(build.get("git_rev") or UNKNOWN),
        git_dirty=dirty if isinstance(dirty, bool) else None,
        lock_hash=_text(build.get("lock_hash")),
        pins=pins if isinstance(pins, dict) else None,
        variant=_text(build.get("variant")),
        image_id=environment.get("SM86_IMAGE_ID"),
    )


def _text(value: object) -> str | None:
    return str(value) if value else None


def from_checkout(folder: Path) -> tuple[str, bool | None]:
    """Revision and whether the tree was changed, of the checkout that holds `folder`.

    Without the git command, or where git refuses another user's checkout, the revision is read from .git itself,
    and whether the tree is changed stays open.
    """
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if root is None:
        return UNKNOWN, None
    try:
        rev = run(("git", "-C", str(root), "rev-parse", "HEAD"), timeout=GIT_TIMEOUT_S)
        changes = run(("git", "-C", str(root), "status", "--porcelain"), timeout=GIT_TIMEOUT_S)
    except CouldNotRun:
        return read_head(root / ".git"), None
    if not rev.ok:
        return read_head(root / ".git"), None
    return rev.out.strip(), bool(changes.out.strip()) if changes.ok else None


def read_head(git: Path) -> str:
    """The revision that .git's HEAD points to: a branch (its own file or a packed one), a bare revision, a worktree."""
    try:
        if git.is_file():
            # a worktree: the file names its folder, which names the common one
            git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or UNKNOWN
        common = git / "commondir"
        base = (git / common.read_text().strip()).resolve() if common.is_file() else git
        return _resolve(base, head.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


def _resolve(base: Path, ref: str) -> str:
    if (base / ref).is_file():
        return (base / ref).read_text().strip() or UNKNOWN
    packed = base / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split(" ", 1)[0] for line in lines if line.endswith(f" {ref}")), UNKNOWN)
