# ruff: noqa: E501 (the words of other programs are quoted whole)
"""Finding Compose, reading a service through it, and what its refusals mean; with stand-in programs and the real one."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.host import compose
from sm86.host.compose import Compose, ComposeFailed, ComposeInvalid, ComposeTooOld, NoCompose, Service
from sm86.host.process import Result
from sm86.spec import load_all

ROOT = Path(__file__).parents[2]

SERVICE = Service("e", "e", "sm86-vllm:0.26.0", 8000, "127.0.0.1", (), {}, (), True)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes a program on an otherwise empty PATH, and takes the one beside this Python away."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python3"))
    real = shutil.which
    monkeypatch.setattr(compose.shutil, "which", lambda name: real(name, path=str(folder)))

    def make(name, script, place=folder):
        place.mkdir(exist_ok=True)
        path = place / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    make.beside_python = tmp_path / "python"
    return make


def answers(version):
    return f'case "$*" in *version*) echo "{version}";; *) exit 3;; esac'


def test_none_at_all(programs):
    with pytest.raises(NoCompose) as caught:
        compose.require_compose()
    assert "--engine local" in caught.value.mend


def test_a_docker_without_the_plugin_is_none(programs):
    programs("docker", "echo \"docker: 'compose' is not a docker command.\" >&2; exit 1")
    with pytest.raises(NoCompose):
        compose.require_compose()


def test_a_docker_that_prints_its_help_is_none(programs):
    programs("docker", "echo 'Usage: docker [OPTIONS] COMMAND'; echo 'Docker version 28.2.2'")
    with pytest.raises(NoCompose):
        compose.require_compose()


@pytest.mark.parametrize("version", ["1.29.2", "2.17.3", "v2.19.1-desktop.1"])
def test_too_old(programs, version):
    programs("docker-compose", answers(version))
    with pytest.raises(ComposeTooOld) as caught:
        compose.require_compose()
    assert version.lstrip("v").split("-")[0] in caught.value.what
    assert "2.20" in caught.value.mend


@pytest.mark.parametrize(
    ("said", "read"),
    [("2.20.0", (2, 20, 0)), ("v2.24.6-desktop.1", (2, 24, 6)), ("5.6.1", (5, 6, 1)), ("2.40", (2, 40))],
)
def test_new_enough(programs, said, read):
    path = programs("docker", answers(said))
    assert compose.require_compose() == Compose((str(path), "compose"), read)


def test_an_old_plugin_gives_way_to_a_newer_program(programs):
    programs("docker", answers("2.17.3"))
    path = programs("docker-compose", answers("2.39.1"))
    assert compose.require_compose().command == (str(path),)


def test_the_one_beside_this_python_is_the_last_resort(programs):
    path = programs("docker-compose", answers("5.6.1"), place=programs.beside_python)
    assert compose.require_compose().command == (str(path),)


def test_one_that_hangs_is_passed_over(programs, monkeypatch):
    monkeypatch.setattr(compose, "ASK_S", 0.3)
    programs("docker", "exec sleep 60")
    began = time.monotonic()
    with pytest.raises(NoCompose):
        compose.require_compose()
    assert time.monotonic() - began < 10


def read(programs, script, folder):
    (folder / "compose.yaml").write_text("services: {}\n")
    path = programs("docker-compose", script)
    return compose.read_service(Compose((str(path),), (5, 6, 1)), folder, "e", {})


def test_files_that_compose_does_not_accept(programs, tmp_path):
    words = 'time=x level=warning msg="obsolete"\nservices.e.ports.0 invalid hostPort: abc'
    with pytest.raises(ComposeInvalid, match="invalid hostPort: abc"):
        read(programs, f"cat >&2 <<'X'\n{words}\nX\nexit 15", tmp_path)


@pytest.mark.parametrize("printed", ["", "not json", "[]", '{"services": null}'])
def test_what_is_no_configuration(programs, tmp_path, printed):
    with pytest.raises(ComposeInvalid):
        read(programs, f"printf '%s' '{printed}'", tmp_path)


def test_a_service_that_is_not_there(programs, tmp_path):
    with pytest.raises(ComposeInvalid, match="no service 'e'") as caught:
        read(programs, "echo '{\"services\": {}}'", tmp_path)
    assert "invoke render" in caught.value.mend


def test_no_files_at_all(programs, tmp_path):
    with pytest.raises(CouldNotRun, match=r"there is no compose\.yaml"):
        compose.read_service(Compose(("docker-compose",), (5, 6, 1)), tmp_path, "e", {})


REFUSALS = [
    ("no NVIDIA device driver", 'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]'),
    ("no runtime nvidia", "Error response from daemon: unknown or invalid runtime name: nvidia"),
    ("CDI", "Error response from daemon: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all"),
    ("different versions", "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown"),
    ("driver does not answer", "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"),
    ("port 8000 is taken", "Error response from daemon: driver failed programming external connectivity on endpoint e (c9f1): "
     "Error starting userland proxy: listen tcp4 127.0.0.1:8000: bind: address already in use"),
    ("port 8000 is taken", "Error response from daemon: Bind for 127.0.0.1:8000 failed: port is already allocated"),
    ("image sm86-vllm:0.26.0 is not", "Error response from daemon: No such image: sm86-vllm:0.26.0"),
    ("/nope/models does not exist", "Error response from daemon: invalid mount config for type \"bind\": bind source path does not "
     "exist: /nope/models"),
    ("Compose did not make is called e", 'Error response from daemon: Conflict. The container name "/e" is already in use by container '
     '"9e48922d". You have to remove (or rename) that container to be able to reuse that name.'),
    ("disk of the Docker engine is full", "Error response from daemon: write /var/lib/docker/tmp: no space left on device"),
    ("may not talk", "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"),
    ("reaches no Docker engine", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"),
    ("exit code 17", "Error response from daemon: something new"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "words"), REFUSALS)
def test_what_a_refusal_means(what, words):
    failure = compose.create_failure(Result(("c",), 17, "", f" Container e  Starting\n{words}\n"), SERVICE)
    assert isinstance(failure, ComposeFailed)
    assert what in failure.what
    assert failure.mend and "{" not in failure.what + failure.mend
    assert words in failure.evidence


def test_the_command_line_starts_one_service_and_nothing_else(tmp_path):
    argv = compose.create_argv(Compose(("docker", "compose"), (2, 24)), tmp_path, "sm86-262k", again=True)
    assert argv == (
        "docker", "compose", "--project-directory", str(tmp_path), "--file", str(tmp_path / "compose.yaml"), "--profile", "sm86-262k",
        "up", "--detach", "--no-build", "--no-deps", "--pull", "never", "--force-recreate", "sm86-262k",
    )  # fmt: skip


real = shutil.which("docker-compose", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(real is None, reason="no Compose beside this Python")
@pytest.mark.parametrize("envelope", load_all(), ids=lambda envelope: envelope.name)
def test_the_rendered_files_through_the_real_compose(envelope, monkeypatch):
    monkeypatch.delenv("SM86_PORT", raising=False)
    found = compose.read_service(
        Compose((real,), (5, 6, 1)), ROOT, envelope.name, {"SM86_PORT": "8123", "NCCL_ALGO": "Tree"}
    )
    assert found.container_name == found.name == envelope.name
    assert (found.host_port, found.host_address) == (8123, "127.0.0.1")
    assert found.wants_gpu == envelope.uses_gpu
    assert found.environment["NCCL_ALGO"] == "Tree"
    assert json.dumps(found.command).count(envelope.serve.served_model_name) == 1
    models = [source for source, target in found.binds if target == "/models"]
    assert models == ([str(ROOT / "models")] if envelope.uses_gpu else [])


@pytest.mark.skipif(real is None, reason="no Compose beside this Python")
def test_a_wrong_variable_through_the_real_compose():
    with pytest.raises(ComposeInvalid) as caught:
        compose.read_service(Compose((real,), (5, 6, 1)), ROOT, "cpu-smoke", {"SM86_PORT": "abc"})
    assert "abc" in caught.value.what


@pytest.mark.parametrize("port", ["0", "65536", "8000-8010", "eighty"])
def test_a_host_port_that_is_none(port):
    with pytest.raises(ComposeInvalid, match=f"the host port of e is {port}") as caught:
        compose._service("e", {"ports": [{"published": port, "target": 8000}]})
    assert "SM86_PORT" in caught.value.mend


@pytest.mark.skipif(real is None, reason="no Compose beside this Python")
def test_port_zero_through_the_real_compose():
    with pytest.raises(ComposeInvalid, match="the host port of cpu-smoke is 0"):
        compose.read_service(Compose((real,), (5, 6, 1)), ROOT, "cpu-smoke", {"SM86_PORT": "0"})


def test_dollars_are_those_that_the_container_gets():
    # as `docker compose config` prints them: every `$` doubled
    service = compose._service(
        "e",
        {
            "image": "i$$1",
            "command": ["serve", '{"a":"$$x"}', "a$$$$b"],
            "environment": {"A": "$${B}", "UNSET": None},
            "volumes": [{"type": "bind", "source": "/m/$$dir", "target": "/models"}],
        },
    )
    assert service.image == "i$1"
    assert service.command == ("serve", '{"a":"$x"}', "a$$b")
    assert service.environment == {"A": "${B}", "UNSET": None}
    assert service.binds == (("/m/$dir", "/models"),)
