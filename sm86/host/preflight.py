"""What would keep a container from starting, found before it is made: each is one line and a mend.

The launcher inside the container checks the model's config and the GPUs more closely; here stands only what
Docker itself would fail on, or would fail on minutes later.
"""

from __future__ import annotations

from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host.compose import Service
from sm86.host.containers import EngineFacts
from sm86.host.docker import DockerGateway
from sm86.host.ports import require_free_port

DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of them is there when an NVIDIA driver is loaded; the last is WSL2's."""

GPU_FOLDERS = Path("/proc/driver/nvidia/gpus")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
TOOLKIT_PROGRAMS = ("nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-cli")


class ImageMissing(CouldNotRun):
    """The engine does not have the image that the service names."""


class ModelMissing(CouldNotRun):
    """The models folder, or the checkpoint's folder in it, is not there."""


class NoGpuSupport(CouldNotRun):
    """No NVIDIA driver, too few GPUs, or Docker has no way to hand them to a container."""


def require_image(docker: DockerGateway, service: Service, target: str) -> str:
    """The image's id. Raises ImageMissing with the command that builds it."""
    image = docker.image(service.image)
    if image is None:
        raise ImageMissing(f"the image {service.image} is not on this machine", f"invoke build --target {target}")
    return image.id


def require_folders(service: Service) -> None:
    """Every bind mount's source, and every path below one that the command names, exists on this machine."""
    for source, target in service.binds:
        if not Path(source).exists():
            raise ModelMissing(
                f"{source} does not exist ({target} in the container)",
                "create it, or set SM86_MODELS_DIR / SM86_API_KEY_FILE, in the shell or .env, to the one you mean",
            )
        for argument in service.command:
            below = argument.removeprefix(target.rstrip("/") + "/")
            if below != argument and not (Path(source) / below).exists():
                raise ModelMissing(
                    f"there is no model at {Path(source) / below}",
                    "fetch the checkpoint there (invoke model.fetch), or set SM86_MODELS_DIR to the folder that has it",
                )


def require_gpus(facts: EngineFacts, count: int) -> None:
    """A driver, at least `count` GPUs as far as that can be seen, and a Docker that can hand them out.

    Raises NoGpuSupport. Which GPUs they are, and whether they are free, the launcher checks with NVML.
    """
    if not any(path.exists() for path in DRIVER_FILES):
        raise NoGpuSupport(
            "no NVIDIA driver is loaded on this machine",
            "install the driver (580 or newer), or run the embedded default, which needs no GPU: invoke demo",
        )
    gpus = len(list(GPU_FOLDERS.iterdir())) if GPU_FOLDERS.is_dir() else None
    if gpus is not None and gpus < count:
        raise NoGpuSupport(
            f"this machine has {gpus} NVIDIA GPU{'' if gpus == 1 else 's'}, the envelope needs {count}",
            "see nvidia-smi -L for a GPU that has dropped off; an envelope cannot run on fewer",
        )
    if facts.snap:
        raise NoGpuSupport(
            "this Docker was installed from snap, which cannot use GPUs",
            "remove it (sudo snap remove docker) and install Docker's own packages",
        )
    if not _can_hand_out(facts):
        raise NoGpuSupport(
            "Docker cannot hand out GPUs: the NVIDIA Container Toolkit is not installed",
            "install it, then: sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        )


def require_port(docker: DockerGateway, service: Service) -> None:
    """The service's host port is free. Raises PortTaken with the container or process that has it."""
    other = docker.publisher_of(service.host_port)
    address = service.host_address if service.host_address not in ("::", "::1") else "0.0.0.0"
    require_free_port(service.host_port, f"container {other.name}" if other else None, address)


def _can_hand_out(facts: EngineFacts) -> bool:
    import shutil

    if any("nvidia" in runtime for runtime in facts.runtimes) or any(map(shutil.which, TOOLKIT_PROGRAMS)):
        return True
    folders = {*CDI_FOLDERS, *map(Path, facts.cdi_dirs)}
    return any("nvidia" in path.name for folder in folders if folder.is_dir() for path in folder.iterdir())
