"""Every way the engine can fail to be usable, with a stand-in for it; no Docker is needed."""

import io
import json
import os
import socket
import time
from pathlib import Path

import pytest

from sm86.errors import EXIT_COULD_NOT_RUN, CouldNotRun
from sm86.host import docker as gateway


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)


def refused(kind: type[CouldNotRun], answer_within_s: float = 2) -> CouldNotRun:
    with pytest.raises(kind) as caught:
        gateway.require_engine(answer_within_s)
    assert caught.value.exit_code == EXIT_COULD_NOT_RUN
    assert caught.value.mend
    return caught.value


def program_on_path(monkeypatch, folder: Path) -> None:
    program = folder / "bin" / "docker"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


def test_a_good_engine_gives_a_gateway(fake_engine, tmp_path, monkeypatch):
    with fake_engine.engine(tmp_path, fake_engine.healthy) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        docker = gateway.require_engine(2)
        docker.local_only()
        assert docker.facts.api == (1, 44)
        assert docker.facts.runtimes == ("nvidia", "runc")
        assert docker.container("nobody") is None
        assert docker.image("nothing") is None


def test_no_docker_at_all(fake_engine, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    fault = refused(gateway.NoDocker)
    assert "not installed" in fault.what
    assert "--engine" not in fault.mend, "what is about images has no other engine"


def test_installed_but_not_running(fake_engine, tmp_path, monkeypatch):
    program_on_path(monkeypatch, tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "none.sock" in refused(gateway.EngineNotRunning).what


def test_a_socket_left_behind_by_a_dead_engine(fake_engine, tmp_path, monkeypatch):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    refused(gateway.EngineNotRunning)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use any socket")
def test_no_rights_on_a_real_socket(fake_engine, tmp_path, monkeypatch):
    with fake_engine.engine(tmp_path, fake_engine.healthy) as host:
        (tmp_path / "docker.sock").chmod(0)
        monkeypatch.setenv("DOCKER_HOST", host)
        refused(gateway.NoRights)


def test_no_rights(fake_engine, tmp_path, monkeypatch):
    def denied(self, address):
        raise PermissionError(13, "Permission denied")

    with fake_engine.engine(tmp_path, fake_engine.healthy) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        monkeypatch.setattr(socket.socket, "connect", denied)
        fault = refused(gateway.NoRights)
    assert "group" in fault.mend or "usermod" in fault.mend
    assert "sudo" in fault.mend


def test_an_old_engine(fake_engine, tmp_path, monkeypatch):
    def answer(path):
        found = fake_engine.healthy(path)
        return fake_engine.as_json({**fake_engine.VERSION, "ApiVersion": "1.38"}) if "/version" in path else found

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        assert "1.38" in refused(gateway.EngineTooOld).what


def test_an_engine_older_than_the_sdk_speaks(fake_engine, tmp_path, monkeypatch):
    ancient = {**fake_engine.VERSION, "ApiVersion": "1.12"}
    with fake_engine.engine(tmp_path, lambda path: fake_engine.as_json(ancient)) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        refused(gateway.EngineTooOld)


def test_an_engine_that_finds_this_client_too_old(fake_engine, tmp_path, monkeypatch):
    told = {"message": "client version 1.44 is too old. Minimum supported API version is 1.99"}

    def answer(path):
        return fake_engine.as_json(fake_engine.VERSION) if path == "/version" else fake_engine.as_json(told, 400)

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        refused(gateway.EngineTooOld)


def test_an_engine_that_hangs_is_given_up(fake_engine, tmp_path, monkeypatch):
    with fake_engine.engine(tmp_path, lambda path: None) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        began = time.monotonic()
        refused(gateway.EngineHangs, answer_within_s=0.3)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"{}", b"[]", b""])
def test_something_else_answers(fake_engine, tmp_path, monkeypatch, body):
    with fake_engine.engine(tmp_path, lambda path: (200, body)) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        refused(CouldNotRun)


def test_an_engine_with_windows_containers(fake_engine, tmp_path, monkeypatch):
    windows = {**fake_engine.VERSION, "Os": "windows"}

    def answer(path):
        return fake_engine.as_json(windows) if "/version" in path else fake_engine.healthy(path)

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        assert "Linux containers" in refused(gateway.EngineConfused).mend


@pytest.mark.parametrize("host", ["nonsense", "ftp://x", "tcp://host:port", "ssh://nobody@127.0.0.1:1"])
def test_an_address_that_makes_no_sense(fake_engine, tmp_path, monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(CouldNotRun)


def test_the_current_docker_context_is_followed(fake_engine, tmp_path, monkeypatch):
    import hashlib

    folder = tmp_path / "docker-config"
    meta = folder / "contexts" / "meta" / hashlib.sha256(b"mine").hexdigest()
    meta.mkdir(parents=True)
    with fake_engine.engine(tmp_path, fake_engine.healthy) as host:
        (folder / "config.json").write_text(json.dumps({"currentContext": "mine"}))
        told = {"Name": "mine", "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
        (meta / "meta.json").write_text(json.dumps(told))
        assert gateway.require_engine(2).facts.endpoint == host


def test_an_engine_on_another_machine_is_refused_where_it_matters():
    facts = fake_facts("tcp://10.1.2.3:2375")
    with pytest.raises(gateway.EngineElsewhere):
        gateway.DockerGateway(None, facts).local_only()
    gateway.DockerGateway(None, fake_facts("tcp://127.0.0.1:2375")).local_only()
    gateway.DockerGateway(None, fake_facts("http://localhost:2375")).local_only()


def fake_facts(endpoint):
    from sm86.host.containers import EngineFacts

    return EngineFacts(endpoint, "25.0.0", (1, 44), "linux", "amd64")


def test_a_refusal_carries_the_engines_own_words(fake_engine, tmp_path, monkeypatch):
    def answer(path):
        if "/containers/" in path:
            return fake_engine.as_json({"message": "driver failed programming external connectivity"}, 500)
        return fake_engine.healthy(path)

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        docker = gateway.require_engine(2)
        with pytest.raises(gateway.EngineRefused, match="external connectivity"):
            docker.container("x")


def test_an_engine_that_dies_between_questions(fake_engine, tmp_path, monkeypatch):
    with fake_engine.engine(tmp_path, fake_engine.healthy) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        docker = gateway.require_engine(2)
    (tmp_path / "docker.sock").unlink(missing_ok=True)
    with pytest.raises((gateway.EngineNotRunning, gateway.NoDocker)):
        docker.container("x")


LOADED = b'{"stream":"Loaded image: sm86-vllm:1\\n"}\r\n'
ERROR = b'{"errorDetail":{"message":"invalid tar header"},"error":"invalid tar header"}\r\n'


@pytest.mark.parametrize("body, names", [(LOADED, ("sm86-vllm:1",)), (b'{"stream":"hm\\n"}\r\n', ())])
def test_a_load_names_what_it_loaded(fake_engine, tmp_path, monkeypatch, body, names):
    def answer(path):
        return (200, body) if path.endswith("/images/load") else fake_engine.healthy(path)

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        assert gateway.require_engine(2).image_import(io.BytesIO(b"")) == names


def test_an_archive_that_the_engine_refuses_within_its_answer(fake_engine, tmp_path, monkeypatch):
    """It answers 200 before it looks: the refusal comes later, in the stream."""

    def answer(path):
        return (200, ERROR) if path.endswith("/images/load") else fake_engine.healthy(path)

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        with pytest.raises(gateway.EngineRefused, match="invalid tar header"):
            gateway.require_engine(2).image_import(io.BytesIO(b""))


def test_whole_images_get_more_patience_than_questions(fake_engine, tmp_path, monkeypatch):
    def answer(path):
        if path.endswith("/get"):
            time.sleep(1.5)
            return 200, b"packed"
        return fake_engine.healthy(path)

    with fake_engine.engine(tmp_path, answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        docker = gateway.require_engine(1)
        assert b"".join(docker.image_export("here")) == b"packed"
        assert docker._client.api.timeout == 1
