"""Compiles the packages of an image to bytecode, by content and not by time.

    python -m sm86.image.steps.bytecode FOLDER

At run time the image's files cannot be written, so what is not compiled now is compiled at every start. Packages
carry some files for other versions of Python, or templates that are no Python at all: those are named and left out,
as an installer does; any other failure ends the build.
"""

from __future__ import annotations

import os
import py_compile
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def compile_file(path: str) -> str | None:
    """Write the bytecode of one file; the path itself when the file is not in this Python's language."""
    try:
        py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    except py_compile.PyCompileError as error:
        if isinstance(error.exc_value, (SyntaxError, ValueError)):
            return path
        raise
    return None


def compile_folder(folder: Path, jobs: int) -> tuple[int, tuple[str, ...]]:
    """(files seen, files left out) below the folder, with that many processes."""
    paths = sorted(str(path) for path in folder.rglob("*.py") if path.is_file())
    if jobs == 1:
        return len(paths), _left_out(map(compile_file, paths))
    with ProcessPoolExecutor(jobs) as pool:
        return len(paths), _left_out(pool.map(compile_file, paths, chunksize=64))


def _left_out(results: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(path for path in results if path)


def main(arguments: list[str]) -> int:
    print("compiling ...")
    seen, left_out = compile_folder(Path(arguments[0]), len(os.sched_getaffinity(0)))
    for path in left_out:
        print(f"not this Python's language, left out: {path}")
    print(f"{seen - len(left_out)} of {seen} files compiled")
    return 0 if seen else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
