"""Engine `docker` on real containers, made from a few programs of this machine: state, deaths, logs, limits."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import tarfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.boot.state import CREATED, EXITED, MISSING, RUNNING
from sm86.errors import CouldNotRun
from sm86.host import compose
from sm86.host.docker import require_engine
from sm86.host.docker_engine import DockerEngine, NotOurs
from sm86.host.ports import PortTaken
from sm86.host.preflight import ImageMissing, ModelMissing
from sm86.host.watch import boot_and_wait
from sm86.spec import Boot, load_envelope

pytestmark = pytest.mark.docker

IMAGE = "sm86-test-tiny:1"
LOADING = "INFO 11-30 17:12:57 [cpu_model_runner.py:131] Starting to load model /models/m..."


def archive(programs: list[str]) -> bytes:
    """These programs with the libraries they load, as a tar archive: all that the tests' image holds."""
    files = {}
    for program in programs:
        files[program] = Path(program).resolve()
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        files.update({library: Path(library).resolve() for library in re.findall(r"(/\S+)", needed)})
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, path in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


@pytest.fixture(scope="module")
def docker():
    gateway = require_engine()
    if gateway.image(IMAGE) is None:
        repository, tag = IMAGE.split(":")
        gateway._client.api.import_image_from_data(archive(["/bin/sh", "/bin/sleep"]), repository, tag)
    yield gateway
    gateway._client.api.remove_image(IMAGE, force=True)


@pytest.fixture
def make(docker, tmp_path):
    """A service that runs a shell script, under a name of its own; its container and network go afterwards."""
    made, project = [], f"sm86test{uuid.uuid4().hex[:8]}"

    def build(script, *, image=IMAGE, extra="", port=None, overrides=None, limit_s=60, name=None):
        name = name or f"sm86-test-{uuid.uuid4().hex[:8]}"
        envelope = replace(load_envelope("cpu-smoke"), name=name, boot=Boot(1, limit_s))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        text = (
            f"name: {project}\nservices:\n  {name}:\n    profiles: [{name}]\n    container_name: {name}\n"
            f"    image: {image}\n    entrypoint: [/bin/sh, -c]\n    command: ['{script}']\n"
            f"    environment: [FIXED=1, NCCL_ALGO, SM86_IMAGE_ID]\n"
            f"    ports: ['127.0.0.1:${{SM86_PORT:-{port or free}}}:8000']\n"
            f"    labels: {{sm86.envelope-digest: {envelope.digest()}}}\n    stop_grace_period: 1s\n"
            f"    restart: on-failure:3\n{extra}"
        )
        (tmp_path / "compose.yaml").write_text(text)
        engine = DockerEngine(envelope, docker, tmp_path, None, overrides)
        made.append(engine)
        return engine

    yield build
    for engine in made:
        facts = docker.container(engine.envelope.name)
        if facts:
            docker.stop(facts.id, 0)
            docker.remove(facts.id)
    found = compose.require_compose()
    subprocess.run([*found.command, "-p", project, "down"], capture_output=True, check=False)


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def test_another_clone_s_container_is_left_alone(make, docker, tmp_path):
    engine = make("sleep 600")
    engine.start()
    other = DockerEngine(engine.envelope, docker, tmp_path / "other")
    for act in (other.state, other.stop, other.halt, other.start, lambda: other.log_chunks(False)):
        with pytest.raises(NotOurs, match=f"belongs to another clone, {tmp_path}") as refusal:
            act()
        assert f"invoke down --envelope {engine.envelope.name}" in refusal.value.mend
    (tmp_path / "link").symlink_to(tmp_path)
    same = DockerEngine(engine.envelope, docker, tmp_path / "link")
    assert same.state().kind == RUNNING, "the same clone by another path"
    assert same.stop().leftovers == () and engine.state().kind == MISSING


def test_the_container_is_told_which_image_it_is(make, docker):
    engine = make("echo id=$$SM86_IMAGE_ID; sleep 600")
    engine.start()
    until(lambda: "id=" in text_of(engine))
    assert f"id={docker.image(IMAGE).id}" in text_of(engine) and docker.image(IMAGE).id.startswith("sha256:")
    assert engine.state().image_id == docker.image(IMAGE).id


def text_of(engine, **options):
    return b"".join(engine.log_chunks(False, **options)).decode()


def test_start_look_and_stop(make, docker):
    engine = make("echo one; echo two; sleep 600", overrides={"NCCL_ALGO": "Tree"})
    assert engine.state().kind == MISSING
    assert engine.plan()[0].startswith("NCCL_ALGO=Tree ")
    engine.start()
    state = engine.state()
    assert (state.kind, state.exit_code, state.restart_count, state.restart_cap) == (RUNNING, None, 0, 3)
    assert state.image_id == docker.image(IMAGE).id
    until(lambda: text_of(engine) == "one\ntwo\n")
    assert text_of(engine, tail=1) == "two\n"
    assert engine.base_url.startswith("http://127.0.0.1:")
    assert docker.container(engine.envelope.name).environment["NCCL_ALGO"] == "Tree"
    assert engine.differs() is None
    stopped = engine.stop()
    assert stopped.was.kind == RUNNING and not stopped.leftovers
    assert engine.state().kind == MISSING


def test_a_variable_that_is_not_given_is_absent_and_not_empty(make, docker, monkeypatch):
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    engine = make("echo $${NCCL_ALGO-unset}; sleep 600")
    engine.start()
    assert "NCCL_ALGO" not in docker.container(engine.envelope.name).environment
    until(lambda: text_of(engine) == "unset\n")


def test_what_runs_otherwise_than_asked_is_named(make, docker, tmp_path):
    engine = make("sleep 600")
    engine.start()
    assert "without NCCL_ALGO" in DockerEngine(engine.envelope, docker, tmp_path, None, {"NCCL_ALGO": "Tree"}).differs()
    assert "publishes port" in DockerEngine(engine.envelope, docker, tmp_path, 1).differs()
    changed = engine.envelope.with_serve(context=4096)
    assert "envelope" in DockerEngine(changed, docker, tmp_path).differs()
    with pytest.raises(CouldNotRun, match="already runs"):
        engine.start()


def test_a_death_is_seen_and_the_server_is_not_restarted_for_ever(make):
    engine = make(f'echo "{LOADING}"; sleep 1; echo "torch.OutOfMemoryError: CUDA out of memory"; exit 1')
    result = boot_and_wait(engine, engine.envelope)
    assert result.failure.kind == "weights OOM"
    assert result.state.exit_code == 1
    state = engine.state()
    assert state.kind == EXITED, "it is stopped, not waiting for its next restart"
    assert "OutOfMemory" in text_of(engine), "and left for inspection"
    time.sleep(2)
    assert engine.state() == state


def test_a_refusal_is_seen_at_the_first_time(make):
    engine = make('echo "sm86: there is no model" >&2; echo "mend: download it" >&2; exit 2')
    result = boot_and_wait(engine, engine.envelope)
    assert (result.failure.kind, result.failure.what) == ("refused by the launcher", "there is no model")
    assert result.failure.could_not_run


def test_the_engine_knows_what_ran_out_of_memory(make):
    hog = "x=aaaaaaaaaaaaaaaa; while :; do x=$$x$$x; done"
    engine = make(hog, extra="    mem_limit: 16m\n")
    result = boot_and_wait(engine, engine.envelope)
    assert result.failure.kind == "host OOM"
    assert result.state.oom_killed and result.state.exit_code == 137


def test_restarts_are_counted_and_the_last_end_is_known(make):
    engine = make("echo begun; exit 7")
    engine.start()
    until(lambda: engine.state().restart_count == 3 and engine.state().kind == EXITED)
    assert engine.state().exit_code == 7
    assert text_of(engine).count("begun") == 4


def test_the_log_of_this_run_alone(make):
    engine = make("[ -e /m ] || { : > /m; echo first; exit 7; }; echo second; sleep 600")
    engine.start()
    until(lambda: engine.state().restart_count == 1 and "second" in text_of(engine))
    assert text_of(engine) == "first\nsecond\n"
    assert text_of(engine, this_run=True) == "second\n"
    assert engine.state().exit_code == 7, "how the run before ended"


def test_watching_a_server_that_dies_again_and_again_ends_it_and_names_the_cause(make):
    engine = make('echo "torch.OutOfMemoryError: CUDA out of memory"; sleep 1; exit 1')
    engine.start()
    until(lambda: engine.state().restart_count >= 1)
    result = boot_and_wait(engine, engine.envelope, attach=True)
    assert result.failure.kind == "weights OOM"
    assert engine.state().kind == EXITED
    count = engine.state().restart_count
    time.sleep(2)
    assert engine.state().restart_count == count


def test_a_start_makes_a_new_container_with_a_log_of_its_own(make):
    engine = make("echo begun; exit 0")
    for _ in range(2):
        engine.start()
        until(lambda: engine.state().kind == EXITED)
    assert text_of(engine) == "begun\n"


def test_a_container_that_hangs_is_given_up_within_the_limit(make):
    engine = make(f'echo "{LOADING}"; sleep 600', limit_s=3)
    began = time.monotonic()
    result = boot_and_wait(engine, engine.envelope)
    assert time.monotonic() - began < 30
    assert result.failure.kind == "gave up" and result.left_running
    assert engine.state().kind == RUNNING


def test_removed_by_somebody_else(make, docker):
    engine = make(f'echo "{LOADING}"; sleep 600')
    begun = []

    def remove(found, seconds):
        if engine.state().kind == RUNNING and not begun:
            begun.append(docker.stop(engine.envelope.name, 0))
            docker.remove(engine.envelope.name)

    assert boot_and_wait(engine, engine.envelope, remove).failure.kind in ("removed", "killed by a signal", "host OOM")


def test_a_missing_image(make):
    with pytest.raises(ImageMissing, match="sm86-test-none:1"):
        make("true", image="sm86-test-none:1").start()


def test_a_missing_folder(make, tmp_path):
    mount = (
        f"    volumes: [{{type: bind, source: {tmp_path}/none, target: /models, bind: {{create_host_path: false}}}}]\n"
    )
    with pytest.raises(ModelMissing, match="none"):
        make("true", extra=mount).start()


def test_a_port_that_another_container_publishes(make):
    first = make("sleep 600")
    first.start()
    port = int(first.base_url.rpartition(":")[2])
    second = make("sleep 600", port=port)
    with pytest.raises(PortTaken, match=f"port {port} is taken by container {first.envelope.name}"):
        second.start()
    assert second.state().kind == MISSING


def test_a_refused_start_leaves_nothing_behind(make, monkeypatch):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        engine = make("sleep 600", port=holder.getsockname()[1])
        monkeypatch.setattr(engine, "check", lambda: "")
        with pytest.raises(compose.ComposeFailed, match="is taken"):
            engine.start()
    assert engine.state().kind == MISSING


def test_an_engine_without_nvidia_says_so_itself(make, docker, monkeypatch):
    if any("nvidia" in name for name in docker.facts.runtimes):
        pytest.skip("this engine has NVIDIA's runtime")
    devices = (
        "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}\n"
    )
    engine = make("sleep 600", extra=devices)
    monkeypatch.setattr(engine, "check", lambda: "")
    with pytest.raises(compose.ComposeFailed, match="no NVIDIA device driver"):
        engine.start()
    assert engine.state().kind in (MISSING, CREATED)


def test_a_container_of_somebody_else_is_not_touched(make, docker):
    engine = make("true")
    name = engine.envelope.name
    docker._client.containers.run(IMAGE, ["/bin/sleep", "600"], name=name, detach=True)
    for ask in (engine.state, engine.start, engine.stop, engine.halt):
        with pytest.raises(NotOurs, match=name):
            ask()
    assert docker.container(name).is_up


def test_deaths_are_told_by_the_engine_itself(docker):
    began = time.time()
    container = docker._client.containers.run(IMAGE, ["/bin/sh", "-c", "exit 5"], detach=True)
    try:
        container.wait()
        until(lambda: docker.deaths(container.id, began) != ())
        (death,) = docker.deaths(container.id, began)
        assert (death.exit_code, death.oom_killed) == (5, False)
        assert began - 1 <= death.time <= time.time() + 1
        assert docker.deaths(container.id, time.time() + 5) == ()
    finally:
        container.remove()
