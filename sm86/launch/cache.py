"""The folder of compiled kernels, bound to the build that made them: kernels of another image are removed before use.

A stamp in the folder names the build. Only a folder that carries a stamp is ever emptied; links in it are removed,
not followed. While a server runs it holds a share of the folder's lock, so no start of another build empties it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun

FRESH, REUSED, CLEARED = "fresh", "reused", "cleared"

STAMP = ".sm86-build"
LOCK = ".sm86-lock"
_CLEARING = "being cleared"
_NOT_OURS_BUT_HARMLESS = frozenset({"lost+found"})

WAIT_S = 10.0
"""A start that is just checking or emptying the folder holds its lock alone for a moment."""

FOLDERS: Mapping[str, str] = {
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TILELANG_CACHE_DIR": "tilelang",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "HF_HOME": "huggingface",
    "XDG_CACHE_HOME": "xdg",
}
"""Variables that the engine and its libraries read for a folder they write to, and its name below the cache.

Checked in the sources of vLLM 0.26.0, Triton, torch 2.11, TileLang 0.1.9, FlashInfer 0.6.14 and huggingface_hub;
CUDA_CACHE_PATH is the driver's own for code that it compiles from PTX.
"""


def identity(build: Mapping[str, Any] | None, versions: Mapping[str, str | None]) -> str:
    """What compiled kernels depend on: in an image its lock, pins and kernel variant, else the installed versions."""
    if build:
        what: Any = {key: build.get(key) for key in ("lock_hash", "pins", "variant", "target", "base")}
    else:
        what = dict(versions)
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def prepare(folder: Path, build_identity: str, wait_s: float = WAIT_S) -> str:
    """Make the folder ready for this build and keep a share of its lock: FRESH, REUSED or CLEARED.

    Raises CouldNotRun: it cannot be written, it holds files that no stamp vouches for, or a running server of
    another build uses it.
    """
    handle = _open_lock(folder)
    try:
        state = _prepare(folder, build_identity, handle, time.monotonic() + wait_s)
    except BaseException:
        os.close(handle)
        raise
    os.set_inheritable(handle, True)
    return state


def variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set; what the user has set stays as it is."""
    return {name: str(folder / place) for name, place in FOLDERS.items() if not environment.get(name)}


def _open_lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise _not_writable(folder, error) from None


def _prepare(folder: Path, build_identity: str, handle: int, deadline: float) -> str:
    while True:
        if _lock(handle, fcntl.LOCK_EX):
            state = _make_ready(folder, build_identity)
            # not one step for the kernel: another build's start may come between, and then has emptied it
            if _lock(handle, fcntl.LOCK_SH) and _stamp_of(folder) == build_identity:
                return state
            continue
        if _stamp_of(folder) == build_identity and _lock(handle, fcntl.LOCK_SH):
            return REUSED
        if time.monotonic() >= deadline:
            raise CouldNotRun(
                f"the cache {folder} is in use by a running server of another build",
                "stop that server first, or name another folder in SM86_CACHE_DIR",
            )
        time.sleep(0.1)


def _lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_ready(folder: Path, build_identity: str) -> str:
    stamp = _stamp_of(folder)
    try:
        if stamp == build_identity:
            _probe(folder)
            return REUSED
        if stamp is None:
            others = {entry.name for entry in os.scandir(folder)} - {LOCK, STAMP} - _NOT_OURS_BUT_HARMLESS
            if others:
                raise CouldNotRun(
                    f"the cache folder {folder} holds files of something else ({sorted(others)[0]} ...)",
                    "name an empty folder in SM86_CACHE_DIR; this one is left as it is",
                )
        else:
            # the stamp stays, under a word that fits no build: a start that is cut off here is taken up by the next
            _write_stamp(folder, _CLEARING)
            _empty(folder)
        _write_stamp(folder, build_identity)
    except OSError as error:
        raise _not_writable(folder, error) from None
    return FRESH if stamp is None else CLEARED


def _empty(folder: Path) -> None:
    for entry in list(os.scandir(folder)):
        if entry.name in (STAMP, LOCK) or entry.name in _NOT_OURS_BUT_HARMLESS:
            continue
        if entry.is_dir(follow_symlinks=False):
            if os.path.ismount(entry.path):
                raise CouldNotRun(
                    f"{entry.path} in the cache is a mount of its own", "mount it elsewhere; it is not emptied"
                )
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _probe(folder: Path) -> None:
    """A folder that can be read but not written would fail only minutes later, in some library."""
    path = folder / f"{STAMP}.{os.getpid()}"
    path.write_bytes(b"")
    path.unlink()


def _stamp_of(folder: Path) -> str | None:
    path = folder / STAMP
    try:
        return path.read_text(encoding="utf-8").strip() if not path.is_symlink() else None
    except (OSError, UnicodeDecodeError):
        return None


def _write_stamp(folder: Path, text: str) -> None:
    temporary = folder / f"{STAMP}.{os.getpid()}"
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, folder / STAMP)


def _not_writable(folder: Path, error: OSError) -> CouldNotRun:
    return CouldNotRun(
        f"the cache folder {folder} cannot be written by user {os.getuid()}: {error.strerror}",
        f"chown it to {os.getuid()}:{os.getgid()}, or name another folder in SM86_CACHE_DIR",
    )
