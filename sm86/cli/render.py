"""`invoke render`: the files that follow from the specs, written, or compared with `--check`."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from sm86.errors import EXIT_FINDING, EXIT_OK
from sm86.render import Change, apply, compare, render_all
from sm86.render.all import ROOT
from sm86.spec import load_all, load_pins

_WORDS = {
    "missing": ("written", "is missing"),
    "differs": ("written", "differs from the specs"),
    "stale": ("removed", "belongs to no envelope"),
}


def render(check: bool = False, json: bool = False, root: Path = ROOT) -> int:
    """Write what differs, and remove rendered files that no envelope has; with `check` only say so.

    Returns 0, or 1 when `check` finds a difference. A file that is right is not touched.
    """
    files = render_all(load_all(), load_pins())
    changes = compare(files, root)
    if not check:
        apply(files, changes, root)
    if json:
        print(json_module.dumps(_values(files.keys(), changes, check), indent=2))
    else:
        _say(len(files), changes, check)
    return EXIT_FINDING if check and changes else EXIT_OK


def _say(count: int, changes: tuple[Change, ...], check: bool) -> None:
    for change in changes:
        done, found = _WORDS[change.state]
        print(f"{change.path} {found}" if check else f"{done} {change.path}")
    if not changes:
        print(f"{count} files are as the specs want them")
    elif check:
        print("mend: run invoke render, and commit what it writes")


def _values(paths, changes: tuple[Change, ...], check: bool) -> dict[str, object]:  # type: ignore[no-untyped-def]
    states = {change.path: change.state for change in changes}
    every = sorted({*paths, *states})
    return {
        "schema": "sm86.render",
        "version": 1,
        "check": check,
        "written": not check,
        "files": [{"path": path, "state": states.get(path, "same")} for path in every],
    }
