"""All sources together: Docker, Compose and the toolkit as facts, fallbacks, and a source that breaks or hangs."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.doctor.facts import Docker, Gpu, KernelLog, Rig, Toolkit, Topology
from sm86.doctor.facts_json import from_text, to_json
from sm86.doctor.judge import judge
from sm86.doctor.want import Want
from sm86.errors import CouldNotRun
from sm86.host import docker as docker_module
from sm86.host.containers import ContainerFacts, EngineFacts, container_facts
from sm86.host.rig import docker_facts, gather, nvml, smi
from sm86.host.rig.gather import Places
from tests.doctor.rigs import REAL
from tests.host.rig.machine import Machine
from tests.host.rig.test_rig_machine import program


def container(name: str, **facts) -> ContainerFacts:  # type: ignore[no-untyped-def]
    made = container_facts({"Id": name[0] * 64, "Name": f"/{name}", "State": {"Status": "running", "Running": True}})
    return replace(made, **facts)


ENGINE = EngineFacts(
    endpoint="unix:///x",
    version="28.3.2",
    api=(1, 51),
    os_type="linux",
    architecture="amd64",
    runtimes=("nvidia", "runc"),
    root_dir="/var/lib/docker",
    cgroup_driver="systemd",
    cgroup_version="2",
    default_runtime="runc",
)


class Gateway:
    facts = ENGINE
    every: tuple[ContainerFacts, ...] = ()

    def local_only(self) -> None:
        if self.facts.endpoint.startswith("ssh:"):
            raise docker_module.EngineElsewhere("the Docker engine is on another machine", "run it there")

    def containers(self) -> tuple[ContainerFacts, ...]:
        return self.every

    def image(self, name: str) -> object | None:
        return object() if name == "there" else None

    def publisher_of(self, port: int) -> None:
        return None


def with_engine(monkeypatch, *containers: ContainerFacts) -> None:
    gateway = Gateway()
    gateway.every = containers
    monkeypatch.setattr(docker_facts, "require_engine", lambda answer_s: gateway)


def test_an_engine_with_its_containers(monkeypatch) -> None:
    with_engine(
        monkeypatch,
        container("sm86-262k", wants_gpu=True),
        container("web", restart_count=35),
        container("old", status="exited", wants_gpu=True, restart_count=9),
    )
    monkeypatch.setattr(docker_facts, "docker_program", lambda: None)
    found = docker_facts.engine()
    assert found.facts.gpu_containers == ("sm86-262k",)
    assert found.facts.restarting == ("web (35)",)
    assert (found.facts.state, found.facts.cgroup_driver, found.facts.lost_gpus) == ("ok", "systemd", None)
    assert found.running == {"s" * 64: "sm86-262k", "w" * 64: "web"}


def test_an_engine_on_another_machine_tells_nothing_of_this_one(monkeypatch) -> None:
    monkeypatch.setattr(Gateway, "facts", replace(ENGINE, endpoint="ssh://elsewhere"))
    with_engine(monkeypatch, container("sm86-262k", wants_gpu=True))
    found = docker_facts.engine()
    assert (found.facts.state, found.facts.problem) == ("error", "the Docker engine is on another machine")
    assert (found.running, found.root_dir) == (None, None)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("print('Failed to initialize NVML: Unknown Error'); raise SystemExit(255)", ("sm86-262k",)),
        ("print('GPU 0: NVIDIA GeForce RTX 3090')", ()),
        ("print('executable file not found in $PATH'); raise SystemExit(126)", ()),
        ("import time; time.sleep(600)", ()),
    ],
)
def test_containers_that_lost_their_gpus(monkeypatch, tmp_path, text: str, lost: tuple[str, ...]) -> None:
    with_engine(monkeypatch, container("sm86-262k", wants_gpu=True))
    docker = program(tmp_path / "docker", text)
    monkeypatch.setattr(docker_facts, "docker_program", lambda: docker)
    assert docker_facts.engine(inside_s=2.0).facts.lost_gpus == lost


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (docker_module.NoDocker, "missing"),
        (docker_module.EngineNotRunning, "not running"),
        (docker_module.NoRights, "no rights"),
        (docker_module.EngineHangs, "hang"),
        (docker_module.EngineTooOld, "error"),
        (docker_module.EngineConfused, "error"),
        (CouldNotRun, "error"),
    ],
)
def test_an_engine_that_cannot_be_used_is_a_fact(monkeypatch, kind, state: str) -> None:
    def refuse(answer_s: float) -> None:
        raise kind("it does not answer", "mend it")

    monkeypatch.setattr(docker_facts, "require_engine", refuse)
    found = docker_facts.engine()
    assert (found.facts.state, found.facts.problem, found.running) == (state, "it does not answer", None)


@pytest.mark.parametrize(
    ("config", "wants"),
    [
        ({"DeviceRequests": [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]}, True),
        ({"Runtime": "nvidia"}, True),
        ({"Runtime": "runc", "DeviceRequests": None}, False),
        ({}, False),
    ],
)
def test_whether_a_container_was_given_gpus(config: dict, wants: bool) -> None:
    assert container_facts({"HostConfig": config}).wants_gpu is wants


CDI = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits: {}
- name: all
  containerEdits: {}
containerEdits:
  mounts:
  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.126.09
"""


def test_the_toolkit_from_its_files(tmp_path, monkeypatch) -> None:
    box = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/nvidia-ctk", "print('NVIDIA Container Toolkit CLI version 1.17.8')")
    box.write("etc/cdi/nvidia.yaml", CDI)
    box.write("var/run/cdi/broken.yaml", "nvidia.com/gpu: [")
    box.write("etc/cdi/other.json", '{"kind": "vendor.com/nic", "devices": []}')
    box.write("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n")
    assert docker_facts.toolkit(tmp_path) == Toolkit(
        "1.17.8", ("nvidia-ctk",), ("nvidia.com/gpu=0", "nvidia.com/gpu=all"), "580.126.09", True
    )


def test_no_toolkit(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker_facts.toolkit(tmp_path) == Toolkit(None, (), (), None, None)
    box = Machine(tmp_path)
    box.write("etc/nvidia-container-runtime/config.toml", "no-cgroups = [")
    assert docker_facts.toolkit(tmp_path).no_cgroups is None


@pytest.mark.parametrize("text", ["", "[]", "devices: 8", "kind: nvidia.com/gpu\ndevices: [1, {}]", "\t:"])
def test_cdi_files_that_describe_nothing(text: str) -> None:
    assert docker_facts.devices_of(text)[0] == []


@pytest.fixture
def places(tmp_path, monkeypatch) -> Places:
    """A machine of files with four cards, an engine that is not there, and no nvidia-smi."""
    box = Machine(tmp_path / "root")
    for number, numa in enumerate((0, 0, 1, 1)):
        box.gpu(f"pci0000:{numa}{number}/0000:{numa}{number}:01.1/0000:{number + 1}1:00.0", numa)
    monkeypatch.setattr(gather.docker_facts, "engine", lambda: docker_facts.Engine(Docker(state="missing")))
    monkeypatch.setattr(gather.docker_facts, "with_compose", lambda facts: facts)
    monkeypatch.setattr(gather.docker_facts, "toolkit", lambda root: Toolkit())
    monkeypatch.setattr(gather, "kernel_log", lambda: KernelLog(readable=False))
    monkeypatch.setattr(smi, "PROGRAM", str(tmp_path / "no-nvidia-smi"))
    monkeypatch.setattr(smi.gpus, "__defaults__", (str(tmp_path / "no-nvidia-smi"), 20.0))
    monkeypatch.setattr(smi.topology, "__defaults__", (str(tmp_path / "no-nvidia-smi"), 20.0))
    return Places(tmp_path / "models", "checkpoint", 18999, "127.0.0.1", "there", tmp_path / "root")


def told(monkeypatch, **facts) -> None:  # type: ignore[no-untyped-def]
    answer = nvml.Told(**{"state": "ok", **facts})
    monkeypatch.setattr(gather.nvml, "ask", lambda: answer)


def test_nvml_and_the_bus_are_put_together(places, monkeypatch) -> None:
    gpus = tuple(Gpu(at, uuid=f"GPU-{at}", bus_id=f"00000000:{at + 1}1:00.0") for at in range(4))
    told(monkeypatch, version="580.126.09", gpus=gpus)
    rig = gather.gather(places, {})
    assert rig.gpus is not None
    assert [(gpu.uuid, gpu.numa, gpu.pcie.max_generation) for gpu in rig.gpus] == [
        ("GPU-0", 0, 4), ("GPU-1", 0, 4), ("GPU-2", 1, 4), ("GPU-3", 1, 4),
    ]  # fmt: skip
    assert rig.topology.source == "sysfs" and rig.topology.links is not None
    assert rig.topology.links[0] == ("X", "NODE", "SYS", "SYS")
    assert (rig.driver.nvml, rig.driver.loaded, rig.host.nvidia_devices) == ("ok", True, 4)
    assert from_text(json.dumps(to_json(rig))) == rig


@pytest.mark.parametrize(
    ("state", "driver"),
    [("hang", "hang"), ("mismatch", "mismatch"), ("missing", "missing"), ("no driver", "no driver")],
)
def test_without_nvml_the_bus_still_shows_the_cards(places, monkeypatch, state: str, driver: str) -> None:
    told(monkeypatch, state=state, problem="x")
    rig = gather.gather(places, {})
    assert rig.gpus is not None and len(rig.gpus) == 4
    assert rig.driver.nvml == driver
    assert all(gpu.bus_id and gpu.memory_total is None for gpu in rig.gpus)
    found = {finding.rule: finding.state for finding in judge(rig, Want()).findings}
    assert found["driver"] == "fail"
    assert found["gpu-memory"] == "unknown" and found["gpu-count"] == "fail"


@pytest.mark.parametrize("state", ["hang", "mismatch", "error"])
def test_a_driver_that_fails_where_no_bus_is_seen_leaves_the_number_open(places, monkeypatch, tmp_path, state) -> None:
    Machine(tmp_path / "bare")
    told(monkeypatch, state=state, problem="x")
    rig = gather.gather(replace(places, root=tmp_path / "bare"), {})
    assert (rig.gpus, rig.driver.loaded) == (None, None)
    found = {finding.rule: finding.state for finding in judge(rig, Want()).findings}
    assert (found["gpu-count"], found["driver"]) == ("unknown", "fail")


def test_nvidia_smi_is_asked_where_nvml_is_not_there(places, monkeypatch, tmp_path) -> None:
    from tests.doctor.test_doctor_text_sources import ROW

    rows = "\n".join(ROW.format(bus=f"{at}1") for at in range(1, 9))
    text = f"import sys\nprint({REAL['p04']!r} if 'topo' in sys.argv else {rows!r})"
    fake = program(tmp_path / "nvidia-smi", text)
    monkeypatch.setattr(smi.gpus, "__defaults__", (fake, 60.0))
    monkeypatch.setattr(smi.topology, "__defaults__", (fake, 60.0))
    told(monkeypatch, state="missing", problem="the Python package nvidia-ml-py is not installed")
    rig = gather.gather(places, {})
    assert rig.gpus is not None and len(rig.gpus) == 8
    assert rig.driver.version == "580.126.09"
    assert rig.topology.source == "nvidia-smi topo -m"
    assert rig.gpus[0].numa == 0, "what the bus knows is added"


def test_a_machine_without_nvidia_anything(tmp_path, monkeypatch, places) -> None:
    Machine(tmp_path / "bare")
    told(monkeypatch, state="missing", problem="NVML Shared Library Not Found")
    rig = gather.gather(replace(places, root=tmp_path / "bare"), {})
    assert (rig.gpus, rig.driver.nvml, rig.driver.loaded) == ((), "no driver", False)
    assert judge(rig, Want()).exit_code == 1


def test_a_source_that_breaks_is_named_and_the_others_stand(places, monkeypatch) -> None:
    def broken() -> None:
        raise RuntimeError("it broke")

    told(monkeypatch, gpus=())
    monkeypatch.setattr(gather, "kernel_log", broken)
    rig = gather.gather(places, {})
    assert rig.missed == ("kernel log: RuntimeError: it broke",)
    assert rig.kernel_log.readable is False and rig.docker.state == "missing"


def test_a_source_that_does_not_come_back_is_left(places, monkeypatch) -> None:
    held = threading.Event()
    told(monkeypatch, gpus=())
    monkeypatch.setattr(gather, "kernel_log", lambda: held.wait(600))
    monkeypatch.setattr(gather, "SOURCE_S", 0.5)
    try:
        assert "kernel log: no answer in time" in gather.gather(places, {}).missed
    finally:
        held.set()


@pytest.mark.parametrize(
    ("files", "present"),
    [((), False), (("config.json",), False), (("config.json", "model-00001-of-00046.safetensors"), True)],
)
def test_whether_the_weights_lie_there(places, monkeypatch, files: tuple[str, ...], present: bool) -> None:
    told(monkeypatch, gpus=())
    folder = places.models / places.model
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("")
    rig = gather.gather(places, {})
    assert [(disk.use, disk.present, disk.exists) for disk in rig.disks or ()] == [("weights", present, True)]


def test_this_very_machine_is_gathered_and_comes_back_from_json(tmp_path) -> None:
    rig = gather.gather(Places(tmp_path, "none", 18999, "127.0.0.1", "none"))
    assert isinstance(rig, Rig) and rig.host.memory_total
    assert from_text(json.dumps(to_json(rig))) == rig
    assert judge(rig, Want()).findings


def test_topologies_that_do_not_fit_are_not_taken(tmp_path) -> None:
    fake = program(tmp_path / "nvidia-smi", f"print({REAL['p04']!r})")
    assert smi.topology(7, fake, 60.0) is None
    assert isinstance(smi.topology(8, fake, 60.0), Topology)
    assert smi.topology(8, program(tmp_path / "dumb", "print('no')"), 60.0) is None
    assert smi.gpus(str(Path(sys.executable).parent / "no-such-program")) == (None, None)
