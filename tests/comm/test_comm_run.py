"""Running the driver: its lines as they come, a limit, an end in every case."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm86.errors import CheckFailed, CouldNotRun
from sm86.host import comm_run
from sm86.host.comm_run import local_lines
from sm86.host.docker import DockerGateway


def interpreter(tmp_path: Path, body: str) -> Path:
    """A program that is started like Python and does something else."""
    made = tmp_path / "python"
    made.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{body}\n")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    return made


def gone(tmp_path: Path) -> bool:
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_lines_come_whole_and_the_last_without_its_end(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "printf 'one\\ntw'; sleep 0.2; printf 'o\\nthree'")
    assert list(local_lines(python, "{}", {}, 60)) == ["one", "two", "three"]


def test_a_driver_that_fails_is_told_by_its_last_words(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "echo one; echo 'no torch here' >&2; exit 3")
    with pytest.raises(CheckFailed, match="exit code 3") as caught:
        list(local_lines(python, "{}", {}, 60))
    assert caught.value.evidence == ("no torch here",)


def test_a_driver_that_hangs_is_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(comm_run, "TICK_S", 0.05)
    python = interpreter(tmp_path, "exec sleep 600")
    with pytest.raises(CheckFailed, match="did not end within"):
        list(local_lines(python, "{}", {}, 0.3))
    assert gone(tmp_path)


def test_two_matrices_do_not_measure_each_other(tmp_path: Path) -> None:
    file = tmp_path / "run" / "comm.lock"
    with comm_run.alone(file), pytest.raises(CouldNotRun, match="another invoke comm"), comm_run.alone(file):
        raise AssertionError
    with comm_run.alone(file):
        pass


def test_an_interrupted_command_ends_the_driver(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "echo one; exec sleep 600")
    lines = local_lines(python, "{}", {}, 60)
    assert next(lines) == "one"
    lines.close()
    assert gone(tmp_path)


class Api:
    """The SDK's low-level API, as far as a throw-away container needs it."""

    def __init__(self, code: int = 0, chunks: tuple[bytes, ...] = (b"one\ntwo\n",)) -> None:
        self.code, self.chunks = code, chunks
        self.host: dict[str, object] = {}
        self.made: dict[str, object] = {}
        self.removed: list[tuple[str, bool]] = []

    def create_host_config(self, **given: object) -> dict[str, object]:
        self.host = given
        return given

    def create_container(self, image: str, **given: object) -> dict[str, str]:
        self.made = {"image": image, **given}
        return {"Id": "c1"}

    def start(self, container: str) -> None: ...

    def remove_container(self, container: str, v: bool, force: bool) -> None:
        self.removed.append((container, force))


def gateway(api: Api) -> DockerGateway:
    class Docker(DockerGateway):
        def log_stream(self, name, follow, since=None, tail=None):
            return iter(api.chunks if follow else (b"its last words\n",))

        def container(self, name):
            return SimpleNamespace(is_up=False, exit_code=api.code)

    return Docker(SimpleNamespace(api=api), SimpleNamespace(endpoint="unix:///x"))  # type: ignore[arg-type]


def test_a_container_with_all_gpus_and_the_services_limits_is_removed_at_the_end() -> None:
    pytest.importorskip("docker")
    api = Api()
    assert list(comm_run.container_lines(gateway(api), "img", "PLAN", True, 60)) == ["one", "two"]
    assert api.made["entrypoint"] == ["python3"]
    assert api.made["command"] == ["-P", "-m", "sm86.comm.driver", "PLAN"]
    assert api.host["ipc_mode"] == "host" and api.host["network_mode"] == "none"
    assert api.host["device_requests"] and api.host["cap_drop"] == ["ALL"]
    assert api.removed == [("c1", True)]
    cpu = Api()
    list(comm_run.container_lines(gateway(cpu), "img", "PLAN", False, 60))
    assert cpu.host["device_requests"] is None and cpu.host["ipc_mode"] is None


def test_a_container_that_fails_or_is_left_is_removed_too() -> None:
    pytest.importorskip("docker")
    api = Api(code=3)
    with pytest.raises(CheckFailed, match="exit code 3") as caught:
        list(comm_run.container_lines(gateway(api), "img", "PLAN", True, 60))
    assert caught.value.evidence == ("its last words",) and api.removed == [("c1", True)]
    left = Api()
    lines = comm_run.container_lines(gateway(left), "img", "PLAN", True, 60)
    next(lines)
    lines.close()
    assert left.removed == [("c1", True)]
