"""What is found before a container is made: image, folders, GPUs, port."""

import socket
from dataclasses import replace

import pytest

from sm86.host import preflight
from sm86.host.compose import Service
from sm86.host.containers import ContainerFacts, EngineFacts, ImageFacts, container_facts
from sm86.host.ports import PortTaken
from sm86.host.preflight import ImageMissing, ModelMissing, NoGpuSupport

FACTS = EngineFacts("unix:///x", "25", (1, 44), "linux", "amd64", ("runc",))


class Engine:
    """Answers as told."""

    def __init__(self, image: ImageFacts | None = None, publisher: ContainerFacts | None = None) -> None:
        self._image, self._publisher = image, publisher

    def image(self, name: str) -> ImageFacts | None:
        return self._image

    def publisher_of(self, port: int) -> ContainerFacts | None:
        return self._publisher


def service(**changes) -> Service:
    return replace(Service("e", "e", "sm86-vllm:0.26.0", 8000, "127.0.0.1", (), {}, (), True), **changes)


def test_a_missing_image_names_the_command_that_builds_it():
    with pytest.raises(ImageMissing) as caught:
        preflight.require_image(Engine(), service(), "gpu")
    assert "sm86-vllm:0.26.0" in caught.value.what
    assert caught.value.mend == "invoke build --target gpu"
    image = ImageFacts("sha256:1", (), {}, 1, "")
    assert preflight.require_image(Engine(image), service(), "gpu") == "sha256:1"


def test_a_missing_models_folder(tmp_path):
    binds = ((str(tmp_path / "none"), "/models"),)
    with pytest.raises(ModelMissing, match="does not exist") as caught:
        preflight.require_folders(service(binds=binds))
    assert "SM86_MODELS_DIR" in caught.value.mend


def test_a_missing_checkpoint_in_the_models_folder(tmp_path):
    binds = ((str(tmp_path), "/models"),)
    wanted = service(binds=binds, command=("--", "serve", "/models/DeepSeek", "--port", "8000"))
    with pytest.raises(ModelMissing, match="DeepSeek"):
        preflight.require_folders(wanted)
    (tmp_path / "DeepSeek").mkdir()
    preflight.require_folders(wanted)
    # a folder that only begins with the same letters is another one
    preflight.require_folders(service(binds=binds, command=("/models-of-others/x",)))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a driver, eight GPUs and no toolkit; the test takes away or adds."""
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module 580.126.09")
    gpus = tmp_path / "gpus"
    for index in range(8):
        (gpus / f"0000:{index:02x}:00.0").mkdir(parents=True)
    monkeypatch.setattr(preflight, "DRIVER_FILES", (driver,))
    monkeypatch.setattr(preflight, "GPU_FOLDERS", gpus)
    monkeypatch.setattr(preflight, "CDI_FOLDERS", (tmp_path / "cdi",))
    monkeypatch.setattr(preflight, "TOOLKIT_PROGRAMS", ("no-such-program-86",))
    return tmp_path


def test_no_driver(machine):
    (machine / "version").unlink()
    with pytest.raises(NoGpuSupport, match="no NVIDIA driver") as caught:
        preflight.require_gpus(FACTS, 8)
    assert "invoke demo" in caught.value.mend


def test_a_gpu_that_has_dropped_off(machine):
    (machine / "gpus" / "0000:05:00.0").rmdir()
    with pytest.raises(NoGpuSupport, match="has 7 NVIDIA GPUs, the envelope needs 8"):
        preflight.require_gpus(FACTS, 8)


def test_no_toolkit(machine):
    with pytest.raises(NoGpuSupport, match="Container Toolkit"):
        preflight.require_gpus(FACTS, 8)


@pytest.mark.parametrize("way", ["runtime", "program", "cdi", "cdi elsewhere"])
def test_each_way_to_hand_out_gpus(machine, monkeypatch, way):
    facts = FACTS
    if way == "runtime":
        facts = replace(FACTS, runtimes=("nvidia", "runc"))
    elif way == "program":
        monkeypatch.setattr(preflight, "TOOLKIT_PROGRAMS", ("sh",))
    else:
        folder = machine / ("cdi" if way == "cdi" else "other")
        folder.mkdir()
        (folder / "nvidia.yaml").write_text("")
        facts = replace(FACTS, cdi_dirs=(str(folder),))
    preflight.require_gpus(facts, 8)


def test_a_docker_from_snap(machine):
    with pytest.raises(NoGpuSupport, match="snap"):
        preflight.require_gpus(replace(FACTS, snap=True, runtimes=("nvidia",)), 8)


def test_a_port_that_a_container_or_a_process_has():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        wanted = service(host_port=holder.getsockname()[1])
        other = container_facts({"Name": "/sm86-64k"})
        with pytest.raises(PortTaken, match="container sm86-64k"):
            preflight.require_port(Engine(publisher=other), wanted)
        with pytest.raises(PortTaken, match="process"):
            preflight.require_port(Engine(), wanted)
        with pytest.raises(PortTaken):
            preflight.require_port(Engine(), replace(wanted, host_address="::"))
