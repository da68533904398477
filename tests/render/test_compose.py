"""What Compose reads in the rendered files is what the specs mean."""

from __future__ import annotations

import pytest

from sm86.launch.overrides import IMAGE_ID, PASS_THROUGH_NAMES
from sm86.render.service import LOCKS_VOLUME
from sm86.spec import envelope_names, load_all
from sm86.spec.argv import serve_argv
from tests.render.conftest import Clone

NAMES = (*envelope_names(), "synthetic")
RIGS = tuple(envelope.name for envelope in load_all() if envelope.uses_gpu)


@pytest.mark.parametrize("name", NAMES)
def test_argv_is_exactly_the_specs(clone: Clone, name: str) -> None:
    envelope = clone.envelopes[name]
    launcher = ["--envelope", name, "--envelope-digest", envelope.digest(), "--"]
    assert clone.service(name)["command"] == [*launcher, *serve_argv(envelope)]


@pytest.mark.parametrize("name", NAMES)
def test_environment_is_exactly_the_specs(clone: Clone, name: str) -> None:
    environment = clone.service(name)["environment"]
    given = {key: value for key, value in environment.items() if value is not None}
    assert given == dict(clone.envelopes[name].environment)
    assert all(value != "" for value in environment.values())
    absent = {key for key, value in environment.items() if value is None}
    assert absent <= {*PASS_THROUGH_NAMES, IMAGE_ID}
    assert IMAGE_ID in absent, "whoever starts the container tells it which image it is"


@pytest.mark.parametrize("name", ["sm86-262k", "synthetic"])
def test_per_run_overrides_are_passed_on_when_set(clone: Clone, name: str) -> None:
    text = '{"method": "mtp", "note": "a$b # c"}'
    values = {override: text for override in PASS_THROUGH_NAMES}
    environment = clone.service(name, **values)["environment"]
    assert {override: environment[override] for override in PASS_THROUGH_NAMES} == values


def test_overrides_from_dotenv_are_passed_on(clone: Clone) -> None:
    dotenv = clone.root / ".env"
    dotenv.write_text(
        'SPECULATIVE_CONFIG=\'{"method": "mtp"}\'\nNCCL_ALGO=Tree\nFUSE_ALLREDUCE_RMS=0\nSM86_PORT=8123\n'
    )
    try:
        service = clone.service("sm86-64k")
    finally:
        dotenv.unlink()
    environment = service["environment"]
    assert environment["SPECULATIVE_CONFIG"] == '{"method": "mtp"}'
    assert (environment["NCCL_ALGO"], environment["FUSE_ALLREDUCE_RMS"]) == ("Tree", "0")
    assert service["ports"][0]["published"] == "8123"


def test_a_bare_up_starts_nothing(clone: Clone) -> None:
    done = clone.compose("config", "--services")
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_the_root_file_includes_every_envelope(clone: Clone) -> None:
    done = clone.compose("--profile", "*", "config", "--services")
    assert sorted(done.stdout.split()) == sorted(NAMES)


@pytest.mark.parametrize("name", ["sm86-262k", "cpu-smoke"])
def test_one_file_alone_is_the_same_service(clone: Clone, name: str) -> None:
    alone = clone.config(name, options=("--project-directory", ".", "-f", f"compose/{name}.yaml"))
    assert alone == clone.config(name)


def test_two_envelopes_can_be_configured_together(clone: Clone) -> None:
    both = clone.config("sm86-262k", "sm86-80k-4seq")
    assert set(both["services"]) == {"sm86-262k", "sm86-80k-4seq"}
    assert {volume["name"] for volume in both["volumes"].values()} == {"sm86-cache-gpu", LOCKS_VOLUME}


def test_the_defaults(clone: Clone) -> None:
    service = clone.service("sm86-262k")
    mounts = {volume["target"]: volume for volume in service["volumes"]}
    assert mounts["/models"]["source"] == str(clone.root / "models")
    assert mounts["/run/secrets/sm86_api_key"]["source"] == "/dev/null"
    for target in ("/models", "/run/secrets/sm86_api_key"):
        assert mounts[target]["read_only"] is True
        assert mounts[target]["bind"] == {"create_host_path": False}
    port = service["ports"][0]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8000", 8000)


def test_what_a_user_may_choose(clone: Clone) -> None:
    service = clone.service(
        "sm86-262k",
        SM86_IMAGE="registry.example/sm86:x",
        SM86_MODELS_DIR="/data/größe $1",
        SM86_MODEL="Other-W4A16",
        SM86_API_KEY_FILE="secrets/key",
        SM86_BIND="0.0.0.0",
        SM86_PORT="9001",
    )
    assert service["image"] == "registry.example/sm86:x"
    sources = {volume["target"]: volume["source"] for volume in service["volumes"]}
    assert sources["/models"] == "/data/größe $1"
    assert sources["/run/secrets/sm86_api_key"] == str(clone.root / "secrets/key")
    assert service["command"][6] == "/models/Other-W4A16"
    assert (service["ports"][0]["host_ip"], service["ports"][0]["published"]) == ("0.0.0.0", "9001")


@pytest.mark.parametrize("name", NAMES)
def test_a_service_keeps_its_promises(clone: Clone, name: str) -> None:
    envelope, service = clone.envelopes[name], clone.service(name)
    assert service["container_name"] == name
    assert service["profiles"] == [name]
    assert service["pull_policy"] == "never"
    assert service["init"] is True
    assert service["restart"] == "on-failure:3"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["labels"]["sm86.envelope-digest"] == envelope.digest()
    assert service["build"]["context"] == str(clone.root)
    assert service["build"]["dockerfile"] == "docker/Dockerfile"
    assert "runtime" not in service
    assert int(service["shm_size"]) >= 1 << 30
    health = service["healthcheck"]
    assert _seconds(health["start_period"]) == min(2 * envelope.boot.expected_s, envelope.boot.limit_s)
    assert _seconds(health["timeout"]) <= 30
    assert 1 <= health["retries"] <= 10
    assert "sm86.launch.health" in health["test"]
    assert _seconds(service["stop_grace_period"]) >= 30
    options = service["logging"]["options"]
    assert int(options["max-file"]) > 1
    assert options["max-size"].endswith("m")


@pytest.mark.parametrize("name", RIGS)
def test_a_rig_sees_its_gpus_once(clone: Clone, name: str) -> None:
    service = clone.service(name)
    device = {"driver": "nvidia", "count": -1, "capabilities": ["gpu"]}
    assert service["deploy"]["resources"]["reservations"]["devices"] == [device]
    assert service["ipc"] == "host"
    assert "NVIDIA_VISIBLE_DEVICES" not in service["environment"]
    assert service["build"]["target"] == "gpu"
    assert {volume["source"] for volume in service["volumes"] if volume["type"] == "volume"} == {
        "sm86-cache-gpu",
        LOCKS_VOLUME,
    }


def test_the_embedded_default_asks_for_no_gpu(clone: Clone) -> None:
    service = clone.service("cpu-smoke")
    assert "deploy" not in service
    assert "ipc" not in service
    assert service["read_only"] is True
    assert service["build"]["target"] == "cpu"
    assert "/models" not in {volume["target"] for volume in service["volumes"]}
    assert "SM86_GPUS" not in service["environment"]


def _seconds(text: str) -> int:
    """Compose's own durations: 1h2m3s."""
    total, number = 0, ""
    for character in text:
        if character.isdigit():
            number += character
        else:
            total += int(number) * {"h": 3600, "m": 60, "s": 1}[character]
            number = ""
    return total
