"""An image's facts, gathered: its own (the probe run inside) and the engine's about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.files import open_regular
from sm86.host.docker import DockerGateway
from sm86.image.check.probe import SCHEMA, VERSION
from sm86.image.judge.rules import Outside
from sm86.json_text import parse as parse_json

PROBE = ("python3", "-P", "-m", "sm86.image.check.probe")
PROBE_S = 600.0
"""Importing torch and vLLM from a cold disk takes a minute; hashing every file of a GPU image takes several."""


def inside(docker: DockerGateway, image: str, files: bool = False) -> dict[str, Any]:
    """What the probe says, run in a throw-away container without network: for a check, or `files` for a comparison.

    Raises CouldNotRun when it says nothing.
    """
    argv = (*PROBE, *(("--files",) if files else ()))
    code, out, err = docker.image_inside(image, argv, PROBE_S)
    try:
        # an imported library may print before the facts, which stand alone on the last line
        facts = parse_json(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        words = tuple(err.strip().splitlines()[-5:])
        mend = "it may be of another project, or of another version of this one: rebuild it"
        raise CouldNotRun(f"{image} has no probe of this program (exit code {code})", mend, words) from None
    if facts.get("schema") != SCHEMA or facts.get("version") != VERSION:
        raise CouldNotRun(f"{image} answers with facts of another version", "rebuild the image from this revision")
    return facts


def listing(docker: DockerGateway, image: str) -> dict[str, Any]:
    """What an image is compared by: taken from the image, or from a file that `invoke image.digest --out` wrote.

    Raises CouldNotRun: no such image or file, or a file of something else.
    """
    path = Path(image)
    if not (image.endswith(".json") or path.is_file()):
        return inside(docker, image, files=True)
    try:
        with open_regular(path) as file:
            facts = parse_json(file.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise CouldNotRun(f"cannot read {image}: {error}", "write it with invoke image.digest --out") from None
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA or not facts.get("files"):
        raise CouldNotRun(f"{image} is no listing of an image", "write it with invoke image.digest --out")
    return facts


def outside(docker: DockerGateway, image: str) -> Outside:
    """What the engine says of the image. Raises CouldNotRun where there is none."""
    facts = docker.image(image)
    if facts is None:
        raise CouldNotRun(f"there is no image {image}", "build it, or name one that `docker images` lists")
    user, environment = docker.image_config(image)
    history = docker.image_history(image)
    return Outside(
        user, environment, facts.labels, tuple(command for command, _ in history), tuple(size for _, size in history)
    )
