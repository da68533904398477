"""Makes an image's packages out of the installed ones: rebuilt libraries in, what is not needed out.

    python -m sm86.image.steps.assemble --variant native --native DIR --out FILE
    python -m sm86.image.steps.assemble --variant wheel --out FILE

Runs inside a build. FILE says what was done: device code of every kernel library, what was rebuilt, left out, stripped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun, Sm86Error
from sm86.image.elf import is_elf, loads_whole, strippable_bytes, without_loader_paths
from sm86.image.fatbin import architectures
from sm86.image.steps.pruning import FLASH_ATTENTION, GROUPS, REFUSAL, STRIP_ABOVE_BYTES
from sm86.json_text import parse as parse_json


def assemble(site: Path, variant: str, native: Path | None) -> dict[str, Any]:
    """Change the packages in `site` and return what was done. `native`: folder that the native build wrote.

    Raises CouldNotRun: a rebuilt library or something to be left out is not there, so the table is of other packages.
    """
    done: dict[str, Any] = {"variant": variant}
    if variant == "native":
        if native is None or not (native / "native.json").is_file():
            raise CouldNotRun(f"there is no native build in {native}", "build the stage `native` first")
        done["native"] = _replace(site, native)
        done["left_out"] = _leave_out(site)
        done["stripped_bytes"] = _strip(site)
    done["libraries"] = {str(path.relative_to(site)): library_facts(path) for path in sorted(site.glob("vllm/**/*.so"))}
    return done


def library_facts(path: Path) -> dict[str, Any]:
    """Size, SHA-256 and device code of a library; `sass` and `ptx` count images by architecture."""
    found = architectures(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest, "sass": found.sass, "ptx": found.ptx}


def _replace(site: Path, native: Path) -> dict[str, Any]:
    record: dict[str, Any] = parse_json((native / "native.json").read_bytes())
    for name in record["libraries"]:
        if not (site / name).is_file():
            raise CouldNotRun(f"the package has no {name} to replace", "the native build is of another vLLM")
        # the linker notes the folders that it linked in, the driver's stub among them; torch, which comes first, has
        # loaded what these libraries need, and the published ones name no folder either
        (site / name).write_bytes(without_loader_paths((native / name).read_bytes()))
    return record


def _leave_out(site: Path) -> dict[str, int]:
    """pattern -> bytes that it took."""
    taken: dict[str, int] = {}
    for group in GROUPS:
        for pattern in group.patterns:
            found = [path for path in site.glob(pattern) if path.exists() or path.is_symlink()]
            if not found:
                raise CouldNotRun(f"{pattern} is not there to be left out", "look at sm86/image/steps/pruning.py again")
            taken[pattern] = sum(_size(path) for path in found)
            for path in found:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    (site / f"{FLASH_ATTENTION}.py").write_text(REFUSAL)
    return taken


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(item.lstat().st_size for item in path.rglob("*") if not item.is_dir())
    return path.lstat().st_size


def _strip(site: Path) -> int:
    """Take symbol tables and debug sections off the libraries that carry many; bytes saved."""
    saved = 0
    for path in _libraries(site):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if not is_elf(data) or strippable_bytes(data) < STRIP_ABOVE_BYTES:
                continue
        before, beside = path.stat(), path.with_name(path.name + ".stripped")
        done = subprocess.run(
            ["strip", "--strip-unneeded", "-o", str(beside), str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            beside.unlink(missing_ok=True)
            raise CouldNotRun(f"cannot strip {path}: {' '.join(done.stderr.split())[-200:]}", "see what strip says")
        with beside.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            whole = loads_whole(data)
        if whole:
            saved += before.st_size - beside.stat().st_size
            beside.chmod(before.st_mode)
            os.replace(beside, path)
        else:
            print(f"not stripped, it would not load: {path.relative_to(site)}")
            beside.unlink()
    return saved


def _libraries(site: Path) -> Iterator[Path]:
    for path in sorted(site.rglob("*.so*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > STRIP_ABOVE_BYTES:
            yield path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.image.steps.assemble")
    parser.add_argument("--variant", choices=("native", "wheel"), required=True)
    parser.add_argument("--native", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        done = assemble(Path(sysconfig.get_path("platlib")), options.variant, options.native)
        options.out.write_text(json.dumps(done, indent=2) + "\n")
    except Sm86Error as error:
        print(f"{error.what}\n  {error.mend}", file=sys.stderr)
        return error.exit_code
    taken = sum(done.get("left_out", {}).values())
    print(f"left out {taken / 1e6:.0f} MB, stripped {done.get('stripped_bytes', 0) / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
