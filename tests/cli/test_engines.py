"""The other engine is offered where a command has one to offer, and nowhere else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import tasks
from sm86.cli import build, demo, engines, image
from sm86.errors import CouldNotRun
from sm86.host.docker import EngineNotRunning, NoDocker
from sm86.spec import load_envelope

HINT = "--engine local"


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Docker: no socket, no program."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_server_may_run_without_docker(no_docker: None) -> None:
    with pytest.raises(NoDocker) as caught:
        engines.open_engine(load_envelope("cpu-smoke"), "docker")
    assert caught.value.mend.startswith("install Docker Engine 20.10 or newer, or ") and HINT in caught.value.mend


def test_the_demo_too(no_docker: None) -> None:
    with pytest.raises(CouldNotRun) as caught:
        demo.demo()
    assert caught.value.mend.count(HINT) == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_build_may_not(no_docker: None, dry_run: bool) -> None:
    with pytest.raises(CouldNotRun) as caught:
        build.build(target="cpu", dry_run=dry_run)
    assert caught.value.mend and HINT not in caught.value.mend


def test_neither_may_what_looks_at_images(no_docker: None) -> None:
    with pytest.raises(CouldNotRun) as caught:
        image.check("sm86-vllm:1")
    assert caught.value.mend and HINT not in caught.value.mend


def test_the_failure_keeps_its_kind_and_evidence() -> None:
    with pytest.raises(EngineNotRunning) as caught, engines.or_local():
        raise EngineNotRunning("the connection failed", "see docker info", ("reset by peer",))
    assert caught.value.evidence == ("reset by peer",) and caught.value.mend.startswith("see docker info, or use ")


@pytest.mark.parametrize("module", [build, image], ids=lambda module: module.__name__)
def test_no_task_about_images_takes_an_engine(module: ModuleType) -> None:
    """What the tests above rest on."""
    texts = [inspect.getsource(task.body) for task in vars(tasks).values() if hasattr(task, "body")]
    name = module.__name__.rpartition(".")[2]
    ours = [text for text in texts if re.search(rf"from sm86.cli import {name}\b", text)]
    assert ours and not any(re.search(r"\bengine\b", text.split('"""')[0]) for text in ours)
