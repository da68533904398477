"""`invoke build`: makes the image of a target."""

from __future__ import annotations

import json as json_module
import shlex
import sys
from pathlib import Path

from sm86.errors import EXIT_OK
from sm86.host import build as host
from sm86.image.arguments import ENVIRONMENT
from sm86.image.names import TARGETS, VARIANTS

SCHEMA = "sm86.built"
VERSION = 1


def build(
    target: str = "gpu",
    image: str | None = None,
    offline_base: bool = False,
    wheels: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    no_cache: bool = False,
    cubin: bool = False,
    variant: str = VARIANTS[0],
) -> int:
    """Build an image; steps go to stderr as they run, the result to stdout.

    target: "gpu" or "cpu"; image: another tag than the services use; wheels: a folder of wheels to use before
    the index; cubin: with FlashInfer's prebuilt kernels; variant: "native" or "wheel", of the GPU image.
    Raises CouldNotRun, BuildFailed among them (exit 2).
    """
    root = Path.cwd()
    request = host.Request(target, image, offline_base, wheels, cubin, no_cache, variant)
    if target not in TARGETS:
        raise host.refused_target(target)
    docker = host.engine()
    the = host.plan(request, root, docker, _say)
    for note in the.notes:
        _say(note)
    if dry_run:
        return _show_plan(the, json)
    built = host.build(the, root, docker, _say)
    if json:
        print(
            json_module.dumps(
                {
                    "schema": SCHEMA,
                    "version": VERSION,
                    "target": target,
                    "variant": the.build.variant or None,
                    "image": built.image,
                    "image_id": built.image_id,
                    "size_bytes": built.size,
                    "base": built.base,
                    "git_rev": the.build.git_rev or None,
                    "git_dirty": the.build.git_dirty,
                    "seconds": round(built.seconds, 1),
                    "log": str(built.log),
                    "papers": [str(path) for path in built.papers],
                },
                indent=2,
            )
        )
        return EXIT_OK
    print(f"built {built.image}: {built.size / 1e9:.2f} GB, on {built.base}, in {built.seconds:.0f} s")
    print(f"build record and SBOM: {', '.join(str(path.relative_to(root)) for path in built.papers)}")
    if the.build.git_dirty:
        print("note: files differ from the revision, and the image says so (git_dirty)")
    return EXIT_OK


def _show_plan(the: host.Plan, json: bool) -> int:
    if json:
        print(
            json_module.dumps(
                {
                    "schema": SCHEMA,
                    "version": VERSION,
                    "dry_run": True,
                    "argv": the.argv,
                    "environment": ENVIRONMENT,
                    "base": the.build.base,
                    "make_base": the.make_base,
                    "wheel_folders": [str(folder) for folder in the.wheels],
                },
                indent=2,
            )
        )
        return EXIT_OK
    if the.make_base:
        print(f"make the base image {the.build.base} from Debian packages (debootstrap)")
    for folder in the.wheels:
        print(f"link the wheels of the lock from {folder} into docker/wheels")
    print(" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()), shlex.join(the.argv))
    return EXIT_OK


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
