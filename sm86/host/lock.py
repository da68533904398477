"""Makes the requirement locks: the resolver is uv, the texts are `sm86.image.locks`.

Needs the package index. Each file is replaced whole, and only after all of them were resolved.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular, write_atomic
from sm86.host.base import registry_digest
from sm86.host.process import run
from sm86.image.lock_check import BASE_FILE, NOT_PINNED, base_lock, locked_base, problems
from sm86.image.lock_sums import SUMS_FILE, sums_text
from sm86.image.locks import (
    LOCKS_DIR,
    Lock,
    lock_text,
    locked_versions,
    resolved_locks,
    resolver_argv,
    torch_cpu_lock,
    vllm_source_lock,
)
from sm86.image.names import OFFICIAL_BASE
from sm86.spec.load import load_pins

RESOLVE_S = 900
MAX_LOCK_BYTES = 4 << 20
"""The longest lock has 21 kB; what is a hundred times that is no lock, and is not read into memory."""
BASE = "base"
_WRITTEN = {"cpu-torch": torch_cpu_lock, "native-source": vllm_source_lock}
"""Locks of one file each whose hashes are constants: the resolver is not asked."""

Say = Callable[[str], None]


def known_names() -> tuple[str, ...]:
    """Names of all locks, in the order in which they are made."""
    return (*(lock.name for lock in resolved_locks(load_pins())), *_WRITTEN, BASE)


def choose(names: tuple[str, ...]) -> tuple[str, ...]:
    """These locks, or all. Raises CouldNotRun for a name that no lock has."""
    known = known_names()
    for name in names:
        if name not in known:
            raise CouldNotRun(f"there is no lock {name!r}", f"the locks are: {', '.join(known)}")
    return names or known


def check_locks(root: Path, files: tuple[str, ...] | None = None) -> list[str]:
    """What of the locks below `root` does not follow from the pins, or is not as it was written; of these files only,
    where given. Raises CouldNotRun for one that cannot be read."""
    folder = root / LOCKS_DIR
    found = {path.name: _bytes(path) for path in (*sorted(folder.glob("*.txt")), folder / SUMS_FILE)}
    sums = found.pop(SUMS_FILE).decode("utf-8", "replace")
    return problems(found, sums, load_pins(), files)


def write_locks(root: Path, names: tuple[str, ...] = (), say: Say = print) -> tuple[Path, ...]:
    """Resolve and write the locks below `root` (all, or those of these names); the paths written.

    Raises CouldNotRun: no uv, unknown name, no network, or requirements that cannot be met together.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise CouldNotRun("there is no program uv", "pip install uv")
    pins = load_pins()
    locks = resolved_locks(pins)
    wanted = choose(names)
    texts: dict[str, str] = {}
    for lock in locks:
        if lock.name in wanted:
            followed = f"{lock.follows}.txt" if lock.follows else ""
            text = texts.get(followed) or (_read(root / LOCKS_DIR / followed) if followed else "")
            say(f"{lock.file} ...")
            texts[lock.file] = _resolve(uv, lock, tuple(f"{n}=={v}" for n, v in locked_versions(text).items()))
    for name, text_of in _WRITTEN.items():
        if name in wanted:
            texts[f"{name}.txt"] = text_of(pins)
    if BASE in wanted:
        say(f"asking the registry for {OFFICIAL_BASE} ...")
        texts[BASE_FILE] = base_lock(registry_digest(OFFICIAL_BASE))
        if NOT_PINNED in texts[BASE_FILE]:
            # a digest that is known is not given up because nobody answers today
            texts[BASE_FILE] = _kept(root) or texts[BASE_FILE]
            say(f"no registry answers: {locked_base(texts[BASE_FILE])} stays as it is")
    # the sums last: where writing ends in between, the next check names what does not fit
    texts[SUMS_FILE] = sums_text(_read(root / LOCKS_DIR / SUMS_FILE), {n: text.encode() for n, text in texts.items()})
    paths = tuple(root / LOCKS_DIR / file for file in texts)
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text)
    return paths


def _kept(root: Path) -> str:
    text = _read(root / LOCKS_DIR / BASE_FILE)
    return text if locked_base(text).startswith(f"{OFFICIAL_BASE}@sha256:") else ""


def _read(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _bytes(path: Path) -> bytes:
    """The contents, none for a file that is not there."""
    try:
        return read_regular(path, MAX_LOCK_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        why = error.strerror or str(error)
        raise CouldNotRun(f"cannot read {path}: {why}", "git checkout docker/locks, or invoke lock") from None


def _resolve(uv: str, lock: Lock, followed: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="sm86-lock-") as place:
        folder = Path(place)
        source, out = folder / "requirements.in", folder / "pylock.toml"
        source.write_text("\n".join(lock.requirements) + "\n")
        (folder / "excludes").write_text("\n".join(lock.excluded or ()) + "\n")
        (folder / "constraints").write_text("\n".join((*lock.constraints, *followed)) + "\n")
        argv = resolver_argv(lock, uv, str(source), str(folder / "excludes"), str(folder / "constraints"), str(out))
        result = run(argv, timeout=RESOLVE_S)
        if not result.ok:
            raise CouldNotRun(
                f"{lock.file} could not be resolved",
                "see whether the package index answers and the pins can be met together",
                result.last_words(6),
            )
        try:
            return lock_text(lock, tomllib.loads(out.read_text()))
        except ValueError as error:
            raise CouldNotRun(f"{lock.file}: {error}", "pin a version that has a wheel for x86-64 Linux") from None
