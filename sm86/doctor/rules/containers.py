"""Docker, Compose, and how containers get GPUs. Pure."""

from __future__ import annotations

from sm86.doctor.facts import Rig
from sm86.doctor.finding import Finding, fail, ok, unknown, warn
from sm86.doctor.want import Want
from sm86.doctor.words import version_numbers

HERE = "run the doctor on the machine itself"
COMPOSE_FLOOR = (2, 20)
API_FLOOR = (1, 41)

DOCKER = {
    "missing": ("Docker is not installed", "install Docker Engine 20.10 or newer, with the Compose plugin"),
    "not running": ("Docker is installed, no engine answers", "start it: sudo systemctl start docker"),
    "no rights": (
        "this user may not talk to the Docker engine",
        "sudo usermod -aG docker $USER, then log in again; or run with sudo",
    ),
    "hang": ("the Docker engine does not answer in time", "see journalctl -u docker, and restart it"),
    "error": ("the Docker engine cannot be used", "see docker info"),
}


def docker(rig: Rig, want: Want) -> Finding:
    """An engine that answers and is new enough."""
    rule, facts = "docker", rig.docker
    why = "every envelope is a Compose service"
    if facts.state is None:
        return unknown(rule, "not known", why, HERE)
    if facts.state in DOCKER:
        what, mend = DOCKER[facts.state]
        words = f": {facts.problem}" if facts.problem and facts.state == "error" else ""
        return fail(rule, what + words, why, mend)
    told = f"engine {facts.version or 'of unknown version'}"
    mend = "update Docker to 20.10 or newer"
    if facts.api is not None and facts.api < API_FLOOR:
        return fail(rule, f"{told} has API {facts.api[0]}.{facts.api[1]}", why, mend)
    if facts.snap:
        why = "a snap's confinement keeps GPUs from containers"
        return fail(rule, f"{told}, installed from snap", why, "sudo snap remove docker, then Docker's own packages")
    if facts.rootless:
        return warn(
            rule,
            f"{told}, rootless",
            "GPUs in rootless containers need the toolkit's no-cgroups setting, and /dev/shm and memlock have limits",
            "use Docker's usual engine, or set no-cgroups = true in the toolkit's config",
        )
    if facts.api is None:
        return unknown(rule, f"{told}, whose API has no version", why, f"see that it is new enough, or {mend}")
    return ok(rule, told)


def compose(rig: Rig, want: Want) -> Finding | None:
    """A Compose that reads the rendered files."""
    rule, facts = "compose", rig.docker
    why = "the root compose.yaml is made of `include`, which came with Compose 2.20"
    if facts.compose:
        number = version_numbers(facts.compose.removeprefix("v").split("-")[0].split("+")[0])
        if number and number < COMPOSE_FLOOR:
            return fail(rule, f"Compose {facts.compose}", why, "install docker-compose-plugin 2.20 or newer")
        if not number:
            return unknown(rule, f"Compose's version reads {facts.compose!r}", why, "see that it is 2.20 or newer")
        return ok(rule, f"Compose {facts.compose}")
    if facts.compose_problem:
        return fail(rule, facts.compose_problem, why, "install docker-compose-plugin 2.20 or newer")
    return None if facts.state == "missing" else unknown(rule, "not known", why, HERE)


def toolkit(rig: Rig, want: Want) -> Finding | None:
    """A way for Docker to hand GPUs to a container."""
    rule, facts, engine = "gpu-containers", rig.toolkit, rig.docker
    if rig.gpus == () or engine.state in ("missing",):
        return None
    why = "without it `docker run --gpus all` fails: could not select device driver with capabilities gpu"
    mend = (
        "install the NVIDIA Container Toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && "
        "sudo systemctl restart docker"
    )
    if facts.programs is None and facts.cdi_devices is None:
        return unknown(rule, "not known", why, HERE)
    ways = []
    if any("nvidia" in runtime for runtime in engine.runtimes or ()):
        ways.append("runtime nvidia")
    if facts.cdi_devices:
        ways.append(f"CDI ({len(facts.cdi_devices)} devices)")
    if facts.programs:
        ways.append(f"toolkit {facts.version or 'of unknown version'}")
    if not ways:
        return fail(rule, "the NVIDIA Container Toolkit is not installed", why, mend)
    told = ", ".join(ways)
    if engine.default_runtime and "nvidia" in engine.default_runtime:
        return warn(
            rule,
            f"{told}; nvidia is Docker's default runtime",
            "the rendered services ask for devices: given both ways, libraries of two drivers were seen in one process",
            "take default-runtime out of /etc/docker/daemon.json and restart Docker",
        )
    if facts.no_cgroups and not engine.rootless:
        return warn(
            rule,
            f"{told}; no-cgroups is set",
            "containers then get device files without the right to open them, unless Docker is rootless",
            "set no-cgroups = false in /etc/nvidia-container-runtime/config.toml",
        )
    return ok(rule, told)


def cdi(rig: Rig, want: Want) -> Finding | None:
    """CDI descriptions that were written for the driver that runs."""
    rule, facts = "cdi", rig.toolkit
    if not rig.gpus or not facts.cdi_devices:
        return None
    if facts.cdi_driver and rig.driver.version and facts.cdi_driver != rig.driver.version:
        return fail(
            rule,
            f"written for driver {facts.cdi_driver}, driver {rig.driver.version} runs",
            "containers started through CDI look for libraries that are gone",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    numbered = [name for name in facts.cdi_devices if name.rpartition("=")[2].isdigit()]
    if numbered and len(numbered) < len(rig.gpus):
        return warn(
            rule,
            f"describes {len(numbered)} of {len(rig.gpus)} GPUs",
            "the others cannot be handed out through CDI",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    return ok(rule, f"{len(facts.cdi_devices)} devices, for the driver that runs" if facts.cdi_driver else "described")


def cgroups(rig: Rig, want: Want) -> Finding | None:
    """Whether a running container can lose its GPUs."""
    rule, facts = "cgroup-driver", rig.docker
    if not rig.gpus or facts.state != "ok":
        return None
    why = (
        "systemctl daemon-reload then takes the GPUs from running containers: Failed to initialize NVML: Unknown Error"
    )
    if facts.lost_gpus:
        return fail(
            rule,
            f"nvidia-smi fails inside {', '.join(facts.lost_gpus)}",
            why,
            "start the container again; for good: CDI devices, or cgroupfs as Docker's cgroup driver",
        )
    if facts.cgroup_driver is None:
        return unknown(rule, "Docker's cgroup driver is not known", why, HERE)
    told = facts.cgroup_driver + (f", cgroup v{facts.cgroup_version}" if facts.cgroup_version else "")
    if facts.cgroup_driver == "systemd" and not rig.toolkit.cdi_devices:
        return warn(
            rule,
            told,
            why,
            'generate CDI descriptions (nvidia-ctk cdi generate), or "exec-opts": ["native.cgroupdriver=cgroupfs"] in '
            "daemon.json; until then: no daemon-reload while it serves",
        )
    return ok(rule, told)


def restarts(rig: Rig, want: Want) -> Finding | None:
    """Containers that die and are started again and again."""
    rule, found = "restarts", rig.docker.restarting
    if found is None:
        return None
    if found:
        return warn(
            rule,
            f"started again and again: {', '.join(found[:5])}",
            "each start reads the weights anew and takes GPU memory in between",
            "docker stop NAME; its first death tells more than its last",
        )
    return ok(rule, "no container in a restart loop")
