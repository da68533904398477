"""The papers of an image - its build record and its SBOM - copied out of it, to lie beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.host.docker import DockerGateway
from sm86.json_text import parse as parse_json

FOLDER = Path(".cache") / "images"
INSIDE = {"build": "/opt/sm86/build.json", "sbom": "/opt/sm86/sbom.cdx.json"}
READ_S = 60.0


def papers(docker: DockerGateway, image: str) -> dict[str, Any]:
    """ "build" and "sbom" as the image holds them. Raises CouldNotRun for an image that has not got them."""
    return {name: _read(docker, image, path) for name, path in INSIDE.items()}


def write_papers(
    docker: DockerGateway, image: str, beside: Path, more: dict[str, Any] | None = None
) -> tuple[Path, ...]:
    """Write `<beside>.build.json`, with what the engine and `more` say of the image added, and `<beside>.sbom.json`.

    Raises CouldNotRun: no such image, no papers in it, a folder that cannot be written to.
    """
    facts = docker.image(image)
    if facts is None:
        raise CouldNotRun(f"there is no image {image}", "build it, or name one that `docker images` lists")
    found = papers(docker, image)
    history = docker.image_history(image)
    seen = {"image": image, "image_id": facts.id, "size_bytes": facts.size, "layers": [size for _, size in history]}
    texts = {
        "build": json.dumps({**found["build"], **seen, **(more or {})}, indent=2) + "\n",
        "sbom": json.dumps(found["sbom"], indent=1) + "\n",
    }
    paths = tuple(beside.with_name(f"{beside.name}.{name}.json") for name in texts)
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            write_atomic(path, text)
    except OSError as error:
        raise CouldNotRun(f"cannot write {error.filename}: {error.strerror}", "choose another folder") from None
    return paths


def file_name(image: str) -> str:
    """An image's name as a file's: "sm86-vllm:0.26.0" -> "sm86-vllm-0.26.0"."""
    return re.sub(r"[^\w.-]+", "-", image)


def _read(docker: DockerGateway, image: str, path: str) -> Any:
    code, out, _ = docker.image_inside(image, ("cat", path), READ_S)
    try:
        if code == 0:
            return parse_json(out)
    except ValueError:
        pass
    raise CouldNotRun(f"{image} has no {path}", "it was not built by this version: build it with invoke build")
