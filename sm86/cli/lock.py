"""`invoke lock`: resolves what the images are made from, or checks that the locks are those of the pins, unaltered."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path

from sm86.errors import EXIT_FINDING, EXIT_OK, printable

SCHEMA = "sm86.locks"
VERSION = 1


def lock(names: tuple[str, ...] = (), check: bool = False, dry_run: bool = False, json: bool = False) -> int:
    """Write or check the locks (all, or these names); exit code 1 with `check` when one is not of the pins, or altered.

    Raises CouldNotRun (exit 2): no uv, an unknown name, no package index, or pins that do not go together.
    """
    from sm86.host import lock as host

    root = Path.cwd()
    if check:
        files = tuple(f"{name}.txt" for name in host.choose(names)) if names else None
        return _check(host.check_locks(root, files), json, every=files is None)
    if dry_run:
        chosen = host.choose(names)
        print(json_module.dumps(_values(would_write=chosen)) if json else "\n".join(f"would write {n}" for n in chosen))
        return EXIT_OK
    written = [str(path.relative_to(root)) for path in host.write_locks(root, names, _say)]
    print(json_module.dumps(_values(written=written)) if json else "\n".join(f"written {path}" for path in written))
    return EXIT_OK


def _check(found: list[str], json: bool, every: bool) -> int:
    if json:
        print(json_module.dumps(_values(problems=found), indent=2))
    elif found:
        print("\n".join((*map(printable, found), "mend: git checkout docker/locks, or make it anew: invoke lock")))
    else:
        print("every lock is of the pins, and as it was written" if every else "of the pins, and as it was written")
    return EXIT_FINDING if found else EXIT_OK


def _values(**more: object) -> dict[str, object]:
    return {"schema": SCHEMA, "version": VERSION, **more}


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
