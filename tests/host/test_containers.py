"""The engine's JSON as facts: what a real engine answers, and what it leaves out."""

import pytest

from sm86.host.containers import container_facts, deaths_of, engine_facts, image_facts
from sm86.host.timestamps import epoch

INSPECTED = {
    "Id": "abc",
    "Name": "/sm86-262k",
    "Image": "sha256:1",
    "RestartCount": 3,
    "State": {
        "Status": "exited",
        "Running": False,
        "OOMKilled": True,
        "ExitCode": 137,
        "Error": "",
        "StartedAt": "2026-01-01T00:00:00.5Z",
        "FinishedAt": "2026-01-01T00:09:00Z",
        "Health": {"Status": "unhealthy", "Log": [{"Output": "connection\n refused"}]},
    },
    "Config": {"Image": "sm86-vllm:0.26.0", "Labels": {"a": "b"}, "Env": ["A=1", "B=x=y", "C=", "UNSET"]},
    "HostConfig": {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}},
    "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8001"}], "9000/tcp": None}},
}


def test_a_dead_container():
    facts = container_facts(INSPECTED)
    assert (facts.name, facts.status, facts.exit_code, facts.oom_killed) == ("sm86-262k", "exited", 137, True)
    assert (facts.restart_count, facts.restart_policy, facts.restart_cap) == (3, "on-failure", 3)
    assert not facts.is_up
    assert facts.environment == {"A": "1", "B": "x=y", "C": ""}
    assert facts.published(8000) == ("127.0.0.1", 8001)
    assert facts.published(9000) is None
    assert facts.health == "", "a stopped container has no health"


def test_a_running_container_has_its_health():
    state = {**INSPECTED["State"], "Status": "running", "Running": True}
    facts = container_facts({**INSPECTED, "State": state})
    assert facts.is_up
    assert facts.health == "unhealthy"
    assert facts.health_output == "connection refused"


def test_an_answer_with_everything_missing_is_not_a_traceback():
    facts = container_facts({})
    assert (facts.status, facts.exit_code, facts.restart_policy, facts.ports) == ("", 0, "no", ())
    assert image_facts({}).id == ""
    assert engine_facts("x", {}, {}).api == (0, 0)
    nulls = {
        "State": None,
        "Config": {"Labels": None, "Env": None},
        "HostConfig": {},
        "NetworkSettings": {"Ports": None},
    }
    assert container_facts(nulls).labels == {}


def test_deaths_come_from_events_and_know_why():
    def event(action, nano, **attributes):
        return {"Action": action, "timeNano": nano, "Actor": {"Attributes": attributes}}

    found = deaths_of(
        [
            event("die", 1_500_000_000, exitCode="1"),
            event("oom", 2_000_000_000),
            event("die", 2_100_000_000, exitCode="137"),
        ]
    )
    assert [(death.time, death.exit_code, death.oom_killed) for death in found] == [(1.5, 1, False), (2.1, 137, True)]


def test_how_the_engine_was_installed():
    facts = engine_facts(
        "unix:///x",
        {"ApiVersion": "1.47"},
        {"DockerRootDir": "/var/snap/docker/common/var-lib-docker", "SecurityOptions": ["name=rootless"]},
    )
    assert facts.api == (1, 47)
    assert facts.snap and facts.rootless


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-30T16:52:20.030881522Z", 1796057540.030881),
        ("2026-11-30T16:52:20Z", 1796057540.0),
        ("2026-11-30T16:52:20.5Z", 1796057540.5),
        ("2026-11-30T16:52:20+00:00", 1796057540.0),
        ("0001-01-01T00:00:00Z", -62135596800.0),
        ("", 0.0),
        ("yesterday", 0.0),
    ],
)
def test_times_of_the_engine(text, seconds):
    assert epoch(text) == pytest.approx(seconds, abs=1e-5)
