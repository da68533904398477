"""Stages copy single files of this package, so that a change elsewhere does not run them again: are those enough?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import ROOT

DOCKERFILE = ROOT / "docker/Dockerfile"
IMPORT = "import importlib, sys; sys.path.insert(0, sys.argv[1]); importlib.import_module(sys.argv[2])"


def stages() -> dict[str, list[list[str]]]:
    """Stage to its instructions, each split at blanks; continued lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "FROM":
            name = words[3] if len(words) > 3 else name
            found[name] = []
        elif words and name:
            found[name].append(words)
    return found


def modules(run: list[str]) -> set[str]:
    """Modules of this package that a RUN starts."""
    return set(re.findall(r"-m (sm86[\w.]*)", " ".join(run)))


def cases() -> list[tuple[str, str]]:
    """(stage, module) wherever the package is put together from single files: in /build, and for the SBOM's tool."""
    return [("sbom-tool", "sm86.image.steps.sbom")] + [
        (stage, module)
        for stage, steps in stages().items()
        if any(step[0] == "COPY" and step[-1].startswith("/build/") for step in steps)
        for step in steps
        if step[0] == "RUN"
        for module in sorted(modules(step))
    ]


def put_together(stage: str, target: Path) -> None:
    for step in stages()[stage]:
        top = next((top for top in ("/build/", "/opt/sbom-tool/") if step[-1].startswith(top)), None)
        if step[0] != "COPY" or top is None:
            continue
        folder = target / PurePosixPath(step[-1]).relative_to(top)
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in (word for word in step[1:-1] if not word.startswith("--")):
            files = [path for path in ROOT.glob(pattern.rstrip("/")) if path.name != "__pycache__"]
            assert files, f"{stage} copies {pattern}, and there is no such file"
            for path in files:
                if path.is_dir():
                    shutil.copytree(path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(path, folder)


def test_the_stages_are_found() -> None:
    found = dict.fromkeys(module for _, module in cases())
    assert {
        "sm86.backend.attention.build",
        "sm86.backend.collectives.build",
        "sm86.image.steps.assemble",
    } <= found.keys()
    assert "sm86.image.native.build" in found


@pytest.mark.parametrize(("stage", "module"), cases())
def test_a_stage_has_what_its_program_imports(stage: str, module: str, tmp_path: Path) -> None:
    put_together(stage, tmp_path)
    # without site-packages: the checkout itself is installed there
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT, str(tmp_path), module], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
