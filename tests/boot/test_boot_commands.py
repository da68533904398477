"""`up`, `down`, `status` and `logs` as a person runs them: a process with its words, exit codes and signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm86.boot.state import MISSING, EngineState
from sm86.cli import boot, boot_view, engines
from sm86.cli.guard import guard
from sm86.record import load

HERE = Path(__file__).parent
LOG = HERE / "logs" / "cpu_boot.log"
BEGUN = "INFO 11-30 17:12:57 [cpu_model_runner.py:131] Starting to load model /models/m..."
SERVES = [["file", str(LOG)], ["health", 200], ["hang"]]
HANGS = [["print", BEGUN], ["hang"]]
WAIT_S = 90
"""Far beyond what a command takes: a busy machine is no failure, a command that hangs is."""


class Commands:
    """Runs commands in a folder of their own, on the local engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self, function, steps=(), **arguments) -> subprocess.Popen[str]:
        told = {"envelope_name": "cpu-smoke", "engine": "local", **arguments}
        argv = [sys.executable, str(HERE / "driver.py"), str(self.folder), function, json.dumps(told)]
        environment = {**os.environ, "STANDIN_STEPS": json.dumps(list(steps)), "SM86_PORT": str(self.port)}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            argv, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=environment, start_new_session=True
        )

    def run(self, function, steps=(), **arguments) -> tuple[int, str, str]:
        child = self.start(function, steps, **arguments)
        out, err = child.communicate(timeout=WAIT_S)
        assert "Traceback" not in err, err
        return child.returncode, out, err


@pytest.fixture
def commands(tmp_path):
    made = Commands(tmp_path)
    yield made
    if list(tmp_path.glob(".cache/run/*/server.json")):
        made.run("down")


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Runs a command in this process, in a clone of its own: for what ends before anything is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "ROOT", tmp_path)
    monkeypatch.setattr(
        engines, "_embedded", lambda envelope, root, dry_run: (HERE / "standin_server.py", Path("/models/m"))
    )

    def run(function, **arguments):
        told = {"envelope_name": "cpu-smoke", "engine": "local", **arguments}
        code = guard(lambda: getattr(boot, function)(**told))
        return code, *capsys.readouterr()

    return run


def test_a_whole_life(commands):
    code, out, err = commands.run("up", SERVES)
    assert code == 0, err
    assert "cpu-smoke serves after" in out
    assert f"http://127.0.0.1:{commands.port}/v1" in out
    assert "invoke bench --envelope cpu-smoke --engine local" in out
    assert "CPU" in out, "its numbers are marked"
    assert [line.split()[0] for line in err.splitlines()[1:]] == ["start", "load", "profile", "ready"]
    assert not set("\x1b\r") & set(out + err), "piped output has no control characters"

    (path,) = (commands.folder / "results" / "cpu-smoke").glob("*-boot.json")
    record = load(path)
    assert record.conditions.mark == "CPU"
    assert {number.name for number in record.numbers} == {"start", "load", "profile", "ready", "boot"}
    assert {verdict.name: verdict.state for verdict in record.verdicts}["capture"] == "not applicable"

    code, out, _ = commands.run("status")
    assert code == 0 and "cpu-smoke: serves" in out
    code, out, _ = commands.run("status", json=True)
    told = json.loads(out)
    assert (code, told["schema"], told["serves"], told["health"]) == (0, "sm86.status", True, 200)

    code, out, _ = commands.run("logs", tail=1)
    assert code == 0 and out == LOG.read_text().splitlines(keepends=True)[-1]

    code, out, _ = commands.run("up")
    assert code == 0 and "already serves" in out

    code, out, _ = commands.run("down", dry_run=True)
    assert code == 0 and out.startswith("would stop process")
    code, out, _ = commands.run("down")
    assert code == 0 and "cpu-smoke stopped in" in out
    code, out, _ = commands.run("down")
    assert code == 0 and "does not run" in out
    code, out, _ = commands.run("status")
    assert code == 1 and "not started" in out


def test_a_failure_is_told_with_its_class_lines_and_mend(commands):
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."
    code, out, _ = commands.run("up", [["print", BEGUN], ["print", oom], ["exit", 1]])
    assert code == 1
    assert "cpu-smoke failed in phase load" in out and "weights OOM" in out
    assert f"  | 2: {oom}" in out
    assert "\nmend: " in out
    (path,) = (commands.folder / "results" / "cpu-smoke").glob("*-boot.json")
    assert load(path).details["failure"]["kind"] == "weights OOM"
    code, out, _ = commands.run("status")
    assert code == 1 and "exited with code 1" in out
    code, out, _ = commands.run("logs")
    assert code == 0 and oom in out


def test_a_refusal_is_exit_code_2(commands):
    code, out, _ = commands.run("up", [["print", "sm86: no model there\nmend: download it"], ["exit", 2]])
    assert code == 2
    assert out.count("no model there") == out.count("mend: download it") == 1
    assert "load    not reached" in out
    assert not (commands.folder / "results").exists()


def test_the_verdict_as_json(commands):
    code, out, _ = commands.run("up", [["print", BEGUN], ["signal", 9]], json=True)
    told = json.loads(out)
    assert (code, told["schema"], told["outcome"], told["mark"]) == (1, "sm86.up", "failed", "CPU")
    assert told["failure"]["kind"] == "host OOM"
    assert told["failure"]["lines"][0] == {"line": 1, "text": BEGUN.partition("] ")[2]}
    assert told["state"]["exit_code"] == 137
    assert Path(commands.folder / told["record"]).is_file()


def wait_for(child, words):
    seen = ""
    for line in child.stderr:
        seen += line
        if words in line:
            return
    raise AssertionError(f"{words!r} was not said: {seen}")


def test_ctrl_c_leaves_the_server_to_its_start_and_says_so(commands):
    child = commands.start("up", HANGS)
    wait_for(child, "start ")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 130
    assert "goes on starting in the background" in err
    assert "invoke down --envelope cpu-smoke --engine local" in err
    code, out, _ = commands.run("status")
    assert code == 1 and "does not serve" in out and "running" in out


def test_a_second_up_watches_the_start_that_goes_on(commands):
    steps = [["print", BEGUN], ["sleep", 4], ["file", str(LOG)], ["health", 200], ["hang"]]
    first = commands.start("up", steps)
    wait_for(first, "start ")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=WAIT_S)
    code, out, err = commands.run("up")
    assert code == 0, err
    assert "it had been started before" in out
    start = next(line for line in out.splitlines() if line.strip().startswith("start "))
    assert " s " not in start, "what had passed before has no time"
    assert not (commands.folder / "results").exists(), "a boot that was not watched whole is no record"


def test_another_setting_than_the_running_one_is_refused(commands):
    child = commands.start("up", HANGS)
    wait_for(child, "start ")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=WAIT_S)
    code, _, err = commands.run("up", overrides=["NCCL_ALGO=Tree"])
    assert code == 2
    assert "already runs" in err and "invoke down" in err


def test_following_a_log_ends_with_the_server_and_ctrl_c_lets_it_run(commands):
    child = commands.start("up", HANGS)
    wait_for(child, "start ")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=WAIT_S)
    follower = commands.start("logs", follow=True)
    assert follower.stdout.readline().strip() == BEGUN
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=WAIT_S)
    assert follower.returncode == 130
    assert "running" in commands.run("status")[1]
    follower = commands.start("logs", follow=True)
    assert follower.stdout.readline().strip() == BEGUN
    commands.run("down")
    follower.communicate(timeout=WAIT_S)
    assert follower.returncode == 0


def test_dry_run_starts_nothing(here):
    code, out, _ = here("up", dry_run=True, overrides=["NCCL_ALGO=Tree"])
    assert code == 0
    assert "-P -m sm86.launch --envelope cpu-smoke" in out and "--set NCCL_ALGO=Tree" in out
    assert here("status")[0] == 1


BAD = [
    ("up", {"envelope_name": "cpu-smok"}, "did you mean cpu-smoke"),
    ("up", {"engine": "podman"}, "docker, local"),
    ("up", {"port": "http"}, "--port"),
    ("up", {"port": "70000"}, "65535"),
    ("up", {"overrides": ["NCCL_ALGO"]}, "NAME=VALUE"),
    ("up", {"overrides": ["NCCL_ALG=Ring"]}, "did you mean NCCL_ALGO"),
    ("up", {"overrides": ["NCCL_ALGO=Rign"]}, "Ring"),
    ("logs", {"tail": "many"}, "--tail"),
    ("logs", {}, "was not started"),
    ("down", {"envelope_name": "../x"}, "there is no envelope"),
]


@pytest.mark.parametrize(("function", "arguments", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_two_lines_and_exit_code_2(here, function, arguments, words):
    code, out, err = here(function, **arguments)
    assert (code, out) == (2, "")
    assert words in err
    first, last = err.strip().splitlines()[0], err.strip().splitlines()[-1]
    assert first.startswith("sm86: ") and last.startswith("mend: ")


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbfSM86_PORT=8000\n", b"SM86_PORT=8000\r\n", b"SM86_PORT=\n", b"SM86_PROT=1\n"]
)
def test_a_faulty_env_file(here, tmp_path, text):
    (tmp_path / ".env").write_bytes(text)
    code, _, err = here("up")
    assert code == 2 and ".env, line 1" in err


def test_the_port_of_the_env_file_holds_where_the_shell_says_nothing(commands, monkeypatch):
    (commands.folder / ".env").write_text(f"SM86_PORT={commands.port}\n")
    monkeypatch.setattr(commands, "port", "")
    code, out, err = commands.run("up", SERVES)
    assert code == 0, err
    assert (commands.folder / ".env").read_text().strip().partition("=")[2] in out


def test_a_taken_port(here):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, _, err = here("up", port=port)
    assert code == 2
    assert f"port {port} is taken by process {os.getpid()}" in err


def test_on_a_terminal_the_phases_are_redrawn_and_the_end_is_plain(commands):
    import pty

    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, str(HERE / "driver.py"), str(commands.folder), "up",
         json.dumps({"envelope_name": "cpu-smoke", "engine": "local"})],
        stdout=subprocess.PIPE, stderr=follower, cwd=commands.folder, text=True,
        env={**os.environ, "TERM": "xterm", "SM86_PORT": str(commands.port),
             "STANDIN_STEPS": json.dumps([["sleep", 1], *SERVES])},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            shown += os.read(leader, 4096)
        except OSError:
            break
    out, _ = child.communicate(timeout=WAIT_S)
    os.close(leader)
    assert child.returncode == 0
    assert b"\x1b[" in shown and b"interpreter, launcher, workers" in shown
    assert "serves after" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (12.4, "12 s"),
        (59.6, "1 min 00 s"),
        (252, "4 min 12 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_durations(seconds, words):
    assert boot_view.duration(seconds) == words


def test_saying_what_would_be_done_makes_no_environment(tmp_path, monkeypatch, capsys):
    from sm86.embedded import environment

    def made(*_):
        raise AssertionError("the environment was made")

    monkeypatch.setattr(environment, "ensure", made)
    monkeypatch.setattr(engines, "ROOT", tmp_path)
    assert guard(lambda: boot.up("cpu-smoke", "local", dry_run=True)) == 0
    assert f"{tmp_path}/.cache/engine-cpu/venv/bin/python3 -P -m sm86.launch" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_told_in_words_that_a_person_uses() -> None:
    assert EngineState(MISSING).words() == "not started, or removed"
