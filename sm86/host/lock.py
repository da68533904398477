"""Makes the requirement locks: the resolver is uv, the texts are `sm86.image.locks`.

    python -m sm86.host.lock [NAME ...]       default: all of them

Needs the package index. Each file is replaced whole, and only after all of them were resolved.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from sm86.errors import CouldNotRun, Sm86Error
from sm86.files import write_atomic
from sm86.host.process import run
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
from sm86.spec.load import load_pins

RESOLVE_S = 900


def write_locks(root: Path, names: tuple[str, ...] = ()) -> tuple[Path, ...]:
    """Resolve and write the locks below `root` (all, or those of these names); the paths written.

    Raises CouldNotRun: no uv, unknown name, no network, or requirements that cannot be met together.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise CouldNotRun("there is no program uv", "pip install uv")
    pins = load_pins()
    locks = resolved_locks(pins)
    written = {"cpu-torch": torch_cpu_lock, "native-source": vllm_source_lock}
    known = (*(lock.name for lock in locks), *written)
    for name in names:
        if name not in known:
            raise CouldNotRun(f"there is no lock {name!r}", f"the locks are: {', '.join(known)}")
    wanted = names or known
    texts: dict[str, str] = {}
    for lock in locks:
        if lock.name in wanted:
            followed = f"{lock.follows}.txt" if lock.follows else ""
            text = texts.get(followed) or _read(root / LOCKS_DIR / followed)
            texts[lock.file] = _resolve(uv, lock, tuple(f"{n}=={v}" for n, v in locked_versions(text).items()))
    for name, text_of in written.items():
        if name in wanted:
            texts[f"{name}.txt"] = text_of(pins)
    paths = tuple(root / LOCKS_DIR / file for file in texts)
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text)
    return paths


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _resolve(uv: str, lock: Lock, followed: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="sm86-lock-") as place:
        folder = Path(place)
        source, out = folder / "requirements.in", folder / "pylock.toml"
        source.write_text("\n".join(lock.requirements) + "\n")
        (folder / "excludes").write_text("\n".join(lock.excluded or ()) + "\n")
        (folder / "constraints").write_text("\n".join((*lock.constraints, *followed)) + "\n")
        argv = resolver_argv(lock, uv, str(source), str(folder / "excludes"), str(folder / "constraints"), str(out))
        print(f"{lock.file} ...", file=sys.stderr)
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


def main(arguments: list[str]) -> int:
    try:
        for path in write_locks(Path.cwd(), tuple(arguments)):
            print(f"written {path.relative_to(Path.cwd())}")
    except Sm86Error as error:
        print("\n".join((error.what, f"mend: {error.mend}", *error.evidence)), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
