"""`invoke image.check`, `image.diff`, `image.save` and `image.load`: what is in an image, proven from outside."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path

from sm86.errors import EXIT_FINDING, EXIT_OK, CouldNotRun
from sm86.image.names import TARGETS, image_name
from sm86.spec import load_pins

VERSION = 1
SHOWN_CHANGES = 60
SHOWN_PACKAGES = 20


def check(image: str | None = None, target: str = "gpu", json: bool = False) -> int:
    """Judge an image without a GPU. Exit code 0: nothing deviates, or the build record explains it; 1: it does."""
    from sm86.host.docker import require_engine
    from sm86.host.image_facts import inside, outside
    from sm86.image.judge.rules import exit_code, judge

    if target not in TARGETS:
        raise CouldNotRun(f"there is no target {target!r}", f"use one of: {', '.join(TARGETS)}")
    name = image or image_name(target)
    docker = require_engine()
    around, facts = outside(docker, name), inside(docker, name)
    findings = judge(facts, around, load_pins())
    code = exit_code(findings)
    if json:
        values = {
            "schema": "sm86.image-check",
            "version": VERSION,
            "image": name,
            "findings": [asdict(finding) for finding in findings],
            "libraries": facts.get("libraries"),
            "packages": facts.get("packages"),
            "layers": around.layers,
        }
        print(json_module.dumps(values, indent=2))
        return code
    print(f"{name}")
    for finding in findings:
        print(f"  {finding.state:<9} {finding.rule}: {finding.text}")
        if finding.state not in ("pass", "expected") and finding.mend:
            print(f"            mend: {finding.mend}")
    _show_libraries(facts.get("libraries") or {})
    _show_packages(facts.get("packages"))
    _show_layers(around.history, around.layers)
    print("every check passes" if code == EXIT_OK else "something deviates: see above")
    return code


def diff(before: str, after: str, json: bool = False) -> int:
    """What differs between two images: pins, packages, files. Exit code 0: nothing; 1: something.

    Each is an image, or a listing that `digest` wrote.
    """
    from sm86.host.docker import require_engine
    from sm86.host.image_facts import listing
    from sm86.image.judge.diff import diff as compare
    from sm86.image.judge.diff import tree_digest

    docker = require_engine()
    first, second = listing(docker, before), listing(docker, after)
    changes = compare(first, second)
    digests = tree_digest(first), tree_digest(second)
    if json:
        values = {
            "schema": "sm86.image-diff",
            "version": VERSION,
            "tree_digests": digests,
            "changes": [asdict(change) for change in changes],
        }
        print(json_module.dumps(values, indent=2))
    else:
        print(f"file tree of {before}: {digests[0]}\nfile tree of {after}: {digests[1]}")
        for change in changes[:SHOWN_CHANGES]:
            print(f"  {change.kind:<8} {change.name}: {change.before or 'not there'} -> {change.after or 'not there'}")
        if len(changes) > SHOWN_CHANGES:
            print(f"  ... and {len(changes) - SHOWN_CHANGES} more (--json shows all)")
        print("no difference" if not changes else f"{len(changes)} differences")
    return EXIT_FINDING if changes else EXIT_OK


def digest(image: str, out: str | None = None, json: bool = False) -> int:
    """Print the digest of an image's file tree; `out`: write what it was computed from, for `diff`, into this file."""
    from sm86.files import write_atomic
    from sm86.host.docker import require_engine
    from sm86.host.image_facts import listing
    from sm86.image.judge.diff import tree_digest

    facts = listing(require_engine(), image)
    found = tree_digest(facts)
    if out:
        write_atomic(Path(out), json_module.dumps(facts) + "\n")
    if json:
        values = {"schema": "sm86.image-digest", "version": VERSION, "image": image, "tree_digest": found}
        print(json_module.dumps({**values, "files": len(facts["files"])}, indent=2))
    else:
        print(f"{found}  {image} ({len(facts['files'])} files and folders)")
    return EXIT_OK


def save(image: str, archive: str, dry_run: bool = False) -> int:
    """Write an image and its checksum to files. dry_run: say whether they would fit, write nothing."""
    from sm86.host.docker import require_engine
    from sm86.host.image_archive import checksum_path, require_savable
    from sm86.host.image_archive import save as write
    from sm86.host.image_papers import write_papers

    docker = require_engine()
    if dry_run:
        size, free = require_savable(docker, image, Path(archive))
        print(f"would write {image}, about {size / 1e9:.1f} GB, to {archive}; {free / 1e9:.1f} GB are free there")
        return EXIT_OK
    digest = write(docker, image, Path(archive))
    print(f"{archive} holds {image}; SHA-256 {digest} (also in {checksum_path(Path(archive)).name})")
    try:
        print(f"build record and SBOM: {', '.join(map(str, write_papers(docker, image, Path(archive))))}")
    except CouldNotRun as fault:
        print(f"without build record and SBOM: {fault.what}")
    return EXIT_OK


def load(archive: str, dry_run: bool = False) -> int:
    """Load an image from an archive whose checksum is right. dry_run: compare the checksum, load nothing."""
    from sm86.host.docker import require_engine
    from sm86.host.image_archive import checked
    from sm86.host.image_archive import load as read

    if dry_run:
        print(f"would load {archive}; SHA-256 {checked(Path(archive))}")
        return EXIT_OK
    print(f"loaded {archive}; SHA-256 {read(require_engine(), Path(archive))}")
    return EXIT_OK


def _show_libraries(libraries: dict[str, dict[str, object]]) -> None:
    from sm86.image.fatbin import Architectures

    for name, facts in libraries.items():
        if "error" in facts or not (facts["sass"] or facts["ptx"]):
            continue
        sass = {int(k): v for k, v in facts["sass"].items()}  # type: ignore[attr-defined]
        ptx = {int(k): v for k, v in facts["ptx"].items()}  # type: ignore[attr-defined]
        print(f"  {int(str(facts['bytes'])) / 1e6:9.1f} MB  {name}: {Architectures(sass, ptx, 0)}")


def _show_packages(sizes: object) -> None:
    """The largest packages, as they are in the image; `sizes`: bytes by name, in "python" and in "debian"."""
    if not isinstance(sizes, dict) or "error" in sizes:
        why = sizes["error"] if isinstance(sizes, dict) else "its probe tells none, rebuild it to see them"
        print(f"  sizes of packages: not seen ({why})")
        return
    found = [
        (size, name if kind == "python" else f"{name} ({kind.capitalize()})")
        for kind, by_name in sizes.items()
        for name, size in by_name.items()
    ]
    found.sort(reverse=True)
    for size, name in found[:SHOWN_PACKAGES]:
        print(f"  {size / 1e6:9.1f} MB  package {name}")
    rest = found[SHOWN_PACKAGES:]
    print(f"  {sum(size for size, _ in rest) / 1e6:9.1f} MB  {len(rest)} smaller packages (--json names each)")


def _show_layers(history: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    for command, size in zip(history, sizes, strict=True):
        if size >= 1_000_000:
            print(f"  {size / 1e6:9.1f} MB  {' '.join(command.split())[:100]}")
    print(f"  {sum(sizes) / 1e6:9.1f} MB  together")
