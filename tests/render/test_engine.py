"""What a Docker engine is given for a service: the last place where a `$` or an empty value could be made of a text."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from sm86.spec.argv import serve_argv
from tests.render.conftest import Clone, synthetic

pytestmark = pytest.mark.docker

IMAGE = "sm86-test-empty:1"
PROFILE = ("--project-name", "sm86-test-render", "--profile", "synthetic")


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    docker = pytest.importorskip("docker")
    client = docker.from_env(timeout=60)
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    client.api.import_image_from_data(empty.getvalue(), repository="sm86-test-empty", tag="1")
    yield client
    client.images.remove(IMAGE, force=True)
    client.close()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    """The synthetic envelope under names of its own throughout: the real volumes hold a rig's caches."""
    clone = Clone(tmp_path, [synthetic()])
    file = tmp_path / "compose/synthetic.yaml"
    text = file.read_text().replace("sm86-cache-gpu", "sm86-test-cache").replace("sm86-locks", "sm86-test-locks")
    file.write_text(text.replace('container_name: "synthetic"', 'container_name: "sm86-test-synthetic"'))
    (tmp_path / "models").mkdir()
    yield clone
    clone.compose(*PROFILE, "down", "--volumes", "--timeout", "1")


def _create(clone: Clone, image: str, **variables: str) -> CompletedProcess[str]:
    return clone.compose(*PROFILE, "create", "--no-build", SM86_IMAGE=image, **variables)


def test_the_engine_gets_exactly_the_specs(engine: Any, clone: Clone) -> None:
    envelope = clone.envelopes["synthetic"]
    done = _create(clone, IMAGE, NCCL_ALGO="Ring")
    assert done.returncode == 0, done.stderr
    facts = engine.containers.get("sm86-test-synthetic").attrs
    launcher = ["--envelope", "synthetic", "--envelope-digest", envelope.digest(), "--"]
    assert facts["Config"]["Cmd"] == [*launcher, *serve_argv(envelope)]
    # a name without `=` tells the engine to leave the variable out
    given = dict(entry.split("=", 1) for entry in facts["Config"]["Env"] if "=" in entry)
    assert given == {**dict(envelope.environment), "NCCL_ALGO": "Ring"}
    host = facts["HostConfig"]
    assert host["IpcMode"] == "host"
    assert host["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 3}
    assert host["Init"] is True
    assert host["CapDrop"] == ["ALL"]
    assert [request["Driver"] for request in host["DeviceRequests"]] == ["nvidia"]


def test_a_missing_models_folder_is_named_and_not_made(engine: Any, clone: Clone) -> None:
    (clone.root / "models").rmdir()
    done = _create(clone, IMAGE)
    assert done.returncode != 0
    assert f"path does not exist: {clone.root / 'models'}" in done.stderr
    assert not (clone.root / "models").exists()


def test_a_missing_image_is_named_and_no_registry_asked(engine: Any, clone: Clone) -> None:
    done = _create(clone, "sm86-test-none:1")
    assert done.returncode != 0
    assert "No such image: sm86-test-none:1" in done.stderr
    assert "registry" not in done.stderr and "Pulling" not in done.stderr
