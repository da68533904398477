"""The build record: what an image was made from, written into it while it is built.

    python -m sm86.image.steps.record --target cpu --variant wheel --base IMAGE --context DIR --out FILE
    python -m sm86.image.steps.record --target gpu ... --assembled FILE --kernels DIR

No time is in it: two builds of the same files give the same record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun, Sm86Error
from sm86.files import write_atomic
from sm86.image.context import SOURCES
from sm86.image.git_facts import GitFacts, read_git
from sm86.image.lock_sums import SUMS_FILE, altered
from sm86.image.locks import LOCKS_DIR, files_of, lock_hash
from sm86.image.steps.assemble import library_facts
from sm86.json_text import parse as parse_json
from sm86.spec.load import load_pins

SCHEMA = "sm86.build"
VERSION = 1


def make_record(
    target: str, variant: str, base: str, python: str, git: GitFacts, locks: dict[str, bytes], cubin: bool = False
) -> dict[str, Any]:
    """The record as plain values. `locks`: contents of the lock files used, by name."""
    pins = load_pins().by_name
    used = {
        name: pin.version
        for name, pin in pins.items()
        if name.startswith("cpu-") == (target == "cpu") and (cubin or name != "flashinfer-cubin")
    }
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "git_rev": git.rev,
        "git_dirty": git.dirty,
        "lock_hash": lock_hash(locks),
        "locks": {name: hashlib.sha256(locks[name]).hexdigest() for name in sorted(locks)},
        "base": base,
        "python": python,
        "target": target,
        "variant": variant,
        "pins": used,
    }


def kernel_facts(assembled: Path | None, kernels: Path | None) -> dict[str, Any]:
    """What the GPU image's libraries hold, what was rebuilt and left out; {} for an image without kernels."""
    try:
        found: dict[str, Any] = parse_json(assembled.read_bytes()) if assembled else {}
    except (OSError, ValueError) as error:
        raise CouldNotRun(f"cannot read {assembled}: {error}", "see the step that assembles the packages") from None
    own = sorted(kernels.glob("*/*.so")) if kernels else []
    libraries = {f"sm86/backend/{path.parent.name}/{path.name}": library_facts(path) for path in own}
    if found or libraries:
        found["libraries"] = {**found.get("libraries", {}), **libraries}
    found.pop("variant", None)
    return found


def git_facts_of(rev: str, dirty: str, context: Path) -> GitFacts:
    """What the builder handed over ("" for nothing); without it, what the build context itself says."""
    if rev:
        return GitFacts(rev, {"true": True, "false": False}.get(dirty))
    return read_git(context, SOURCES)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.image.steps.record")
    for name in ("--target", "--variant", "--base", "--context", "--out"):
        parser.add_argument(name, required=True)
    for name in ("--git-rev", "--git-dirty", "--cubin"):
        parser.add_argument(name, default="")
    for name in ("--assembled", "--kernels"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args(arguments)
    context, cubin = Path(options.context), options.cubin == "1"
    version = platform.python_version()
    files = files_of(options.target, ".".join(version.split(".")[:2]), cubin, options.variant)
    try:
        try:
            locks = {name: (context / LOCKS_DIR / name).read_bytes() for name in files}
            sums = (context / LOCKS_DIR / SUMS_FILE).read_text(errors="replace")
        except OSError as error:
            raise CouldNotRun(
                f"{error.filename}: {error.strerror}", "use a base image with Python 3.11 or 3.12, which have locks"
            ) from None
        # a build that no `invoke build` started has been asked for this by nobody yet
        for name, why in altered(sums, locks):
            raise CouldNotRun(f"{LOCKS_DIR}/{name} {why}", "git checkout docker/locks, or invoke lock")
        git = git_facts_of(options.git_rev, options.git_dirty, context)
        record = make_record(options.target, options.variant, options.base, version, git, locks, cubin)
        record.update(kernel_facts(options.assembled, options.kernels))
        write_atomic(Path(options.out), json.dumps(record, indent=2) + "\n")
    except Sm86Error as error:
        print(f"{error.what}\n  {error.mend}", file=sys.stderr)
        return error.exit_code
    print(f"{record['target']} {record['variant']} of {record['git_rev']}, locks {record['lock_hash'][:12]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
