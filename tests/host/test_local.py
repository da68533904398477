"""Engine `local` with real processes: a stand-in launcher that does what each test tells it."""

import json
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.host import local, processes
from sm86.host.engine import EXITED, MISSING, RUNNING, EngineState
from sm86.host.local import Launch, LocalEngine
from sm86.host.ports import PortTaken, holder_of, require_free_port
from sm86.launch.options import parse
from sm86.spec import load_envelope
from sm86.spec.argv import serve_argv

STANDIN = Path(__file__).parents[1] / "boot" / "standin_server.py"
ENVELOPE = load_envelope("cpu-smoke")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def make(tmp_path):
    """An engine whose launcher does `steps`; whatever still runs afterwards is ended."""
    made = []

    def build(*steps, grace_s=2.0, port=None, overrides=None):
        launch = Launch(STANDIN, Path("/models/m"), {"STANDIN_STEPS": json.dumps(steps)})
        engine = LocalEngine(ENVELOPE, port or free_port(), launch, grace_s, tmp_path / "run", overrides)
        made.append(engine)
        return engine

    yield build
    for engine in made:
        engine._grace_s = 0
        engine.stop()


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def text_of(engine, follow=False, tail=None):
    return b"".join(engine.log_chunks(follow, tail)).decode()


def test_nothing_started(make):
    engine = make()
    assert engine.state().kind == MISSING
    assert text_of(engine) == ""
    assert engine.stop().was.kind == MISSING


def test_the_launcher_is_told_what_it_needs(make):
    engine = make(["argv"], ["env", "SM86_RUN_ID"], overrides={"NCCL_ALGO": "Tree"}, port=(port := free_port()))
    engine.start()
    argv, run_id = text_of(engine, follow=True).splitlines()
    told = ["-P", "-m", "sm86.launch", "--envelope", "cpu-smoke", "--model-path", "/models/m"]
    assert json.loads(argv) == [*told, "--host", "127.0.0.1", "--port", str(port), "--set", "NCCL_ALGO=Tree"]
    assert len(run_id) == 16
    assert any("sm86.launch" in line for line in engine.plan())


def test_an_envelope_of_ones_own_comes_with_its_arguments(tmp_path):
    """The launcher knows the shipped specs alone."""
    own = replace(ENVELOPE.with_serve(context=1024), name="cpu-own")
    for envelope in (own, ENVELOPE.with_serve(sequences=1)):
        engine = LocalEngine(
            envelope,
            8123,
            Launch(Path("/python"), Path("/models/m")),
            run_dir=tmp_path,
            overrides={"NCCL_ALGO": "Ring"},
        )
        words = list(engine.argv())
        head, serve = words[: words.index("--")], words[words.index("--") + 1 :]
        name = ["--envelope", envelope.name, "--envelope-digest", envelope.digest()]
        assert head[4:] == [*name, "--set", "NCCL_ALGO=Ring"]
        assert tuple(serve) == serve_argv(envelope, "/models/m", "127.0.0.1", 8123)
        options = parse(words[4:])
        assert options.argv == tuple(serve) and options.envelope == envelope.name


def test_an_exit_code_is_seen_and_kept_for_later_commands(make):
    engine = make(["print", "dying"], ["exit", 7])
    engine.start()
    assert text_of(engine, follow=True) == "dying\n"
    until(lambda: not engine.state().is_up)
    assert engine.state().exit_code == 7
    later = LocalEngine(ENVELOPE, 1, None, run_dir=engine.folder.parent)
    assert (later.state().kind, later.state().exit_code) == (EXITED, 7)


def test_a_signal_is_told_as_a_shell_tells_it(make):
    engine = make(["signal", int(signal.SIGKILL)])
    engine.start()
    until(lambda: not engine.state().is_up)
    state = engine.state()
    assert state.exit_code == 137
    assert not state.oom_killed, "no process was ended for want of memory meanwhile"


def test_killed_while_the_kernel_counted_an_out_of_memory(make, monkeypatch):
    counts = iter([4, 5])
    monkeypatch.setattr(processes, "oom_kills", lambda: next(counts))
    engine = make(["signal", int(signal.SIGKILL)])
    engine.start()
    until(lambda: not engine.state().is_up)
    assert engine.state().oom_killed


def test_another_command_finds_and_stops_it(make):
    engine = make(["print", "up"], ["hang"])
    engine.start()
    later = LocalEngine(ENVELOPE, 1, None, 2, engine.folder.parent)
    assert later.state().kind == RUNNING
    assert later.base_url == engine.base_url
    until(lambda: text_of(later) == "up\n")
    pid = json.loads((engine.folder / "server.json").read_text())["pid"]
    stopped = later.stop()
    assert not stopped.forced and not stopped.leftovers
    found = processes.read_process(pid)
    assert found is None or found.is_zombie
    assert later.state().kind == MISSING
    assert text_of(later) == "up\n", "the log is there after the server has gone"


def test_one_who_looks_while_it_is_stopped_does_not_bring_it_back(make, monkeypatch):
    """Who follows a boot's log looks at the state in a thread of its own, and notes the end that a stop brings."""
    engine = make(["sleep", 60])
    engine.start()
    os.kill(engine._run().pid, signal.SIGKILL)
    engine._child.wait()
    right, noting = engine._save, threading.Event()

    def slowly(run):
        if threading.current_thread() is looker:
            noting.set()
            deadline = time.monotonic() + 1
            while (engine.folder / "server.json").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        right(run)

    monkeypatch.setattr(engine, "_save", slowly)
    looker = threading.Thread(target=engine.state)
    looker.start()
    assert noting.wait(30)
    engine.stop()
    looker.join()
    assert engine.state().kind == MISSING


def test_what_ignores_sigterm_is_killed_after_the_grace(make):
    engine = make(["deaf"], ["print", "deaf"], ["hang"], grace_s=0.4)
    engine.start()
    until(lambda: "deaf" in text_of(engine))
    stopped = engine.stop()
    assert stopped.forced
    assert 0.4 <= stopped.seconds < 5
    assert not stopped.leftovers


def test_workers_of_a_dead_server_are_found_and_ended(make):
    engine = make(["child", 60], ["exit", 1])
    engine.start()
    until(lambda: not engine.state().is_up)
    assert [entry for entry in engine.leftovers() if "sleep" in entry]
    engine.stop()
    assert not engine.leftovers()
    assert engine.state().kind == MISSING


def test_a_reused_process_number_is_never_believed_or_killed(make):
    import subprocess

    engine = make(["hang"])
    engine.start()
    path = engine.folder / "server.json"
    innocent = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    try:
        run = json.loads(path.read_text())
        engine.stop()
        path.write_text(json.dumps({**run, "pid": innocent.pid, "start_ticks": run["start_ticks"] - 100}))
        later = LocalEngine(ENVELOPE, 1, None, 0.1, engine.folder.parent)
        assert later.state().kind == EXITED
        later.stop()
        assert innocent.poll() is None, "another program's process was killed"
    finally:
        innocent.kill()
        innocent.wait()


def test_a_reboot_ends_every_run(make, monkeypatch):
    engine = make(["hang"])
    engine.start()
    later = LocalEngine(ENVELOPE, 1, None, 0.1, engine.folder.parent)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "boot_id", lambda: "another boot")
        assert later.state().kind == EXITED
    assert later.state().kind == RUNNING


def test_starting_twice_is_refused(make):
    engine = make(["hang"])
    engine.start()
    with pytest.raises(CouldNotRun, match="already runs as process"):
        make(["hang"]).start()


def test_what_runs_otherwise_than_asked_is_named(make):
    engine = make(["hang"], overrides={"NCCL_ALGO": "Tree"})
    engine.start()
    folder = engine.folder.parent

    def asked(envelope=ENVELOPE, port=1, **options):
        return LocalEngine(envelope, port, None, 1, folder, **options).differs()

    assert asked() is None
    assert asked(overrides={"NCCL_ALGO": "Tree"}) is None
    assert "NCCL_ALGO=Tree" in asked(overrides={"NCCL_ALGO": "Ring"})
    assert "without NCCL_PROTO" in asked(overrides={"NCCL_PROTO": "LL"})
    assert "listens on port" in asked(port_matters=True)
    assert "envelope" in asked(ENVELOPE.with_serve(context=4096))


def test_two_commands_starting_at_once(make):
    engine = make(["hang"])
    with engine._alone(), pytest.raises(CouldNotRun, match="at this moment"):
        make(["hang"]).start()


def test_the_log_of_the_run_before_is_kept(make):
    first = make(["print", "first"])
    first.start()
    text_of(first, follow=True)
    second = make(["print", "second"])
    second.start()
    assert text_of(second, follow=True) == "second\n"
    assert (first.folder / "server.log.1").read_text() == "first\n"


def test_tail(make):
    engine = make(["print", "a\nb\nc"], ["exit", 0])
    engine.start()
    text_of(engine, follow=True)
    assert text_of(engine, tail=2) == "b\nc\n"
    assert text_of(engine, tail=0) == ""
    assert text_of(engine, tail=99) == "a\nb\nc\n"


def test_following_gives_what_was_written_last(make):
    engine = make(["sleep", 0.3], ["print", "last words"], ["exit", 3])
    engine.start()
    assert text_of(engine, follow=True) == "last words\n"


def test_what_is_written_between_two_looks_is_not_missed(tmp_path, monkeypatch):
    engine = LocalEngine(ENVELOPE, 1, None, run_dir=tmp_path)
    engine.folder.mkdir()
    engine.log_path.write_bytes(b"")
    answers = [EngineState(RUNNING)]

    def state():
        if answers:
            return answers.pop()
        engine.log_path.write_bytes(b"written just before the end\n")
        return EngineState(EXITED, 1)

    monkeypatch.setattr(engine, "state", state)
    assert text_of(engine, follow=True) == "written just before the end\n"


@pytest.mark.parametrize("python", ["/nowhere/python", "/etc/hostname"])
def test_an_interpreter_that_cannot_run(tmp_path, python):
    engine = LocalEngine(ENVELOPE, free_port(), Launch(Path(python), Path("m")), run_dir=tmp_path)
    with pytest.raises(CouldNotRun, match="cannot start"):
        engine.start()
    assert engine.state().kind == MISSING


def test_a_state_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    engine = LocalEngine(ENVELOPE, free_port(), Launch(STANDIN, Path("m")), run_dir=tmp_path / "file")
    with pytest.raises(CouldNotRun, match="cannot write"):
        engine.start()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "null"])
def test_a_damaged_state_file(make, text):
    engine = make(["hang"])
    engine.folder.mkdir(parents=True)
    (engine.folder / "server.json").write_text(text)
    with pytest.raises(CouldNotRun, match="damaged"):
        engine.state()
    (engine.folder / "server.json").unlink()


def test_a_server_whose_state_cannot_be_written_does_not_stay(make, monkeypatch):
    engine = make(["hang"])
    started = []
    real = local.subprocess.Popen
    monkeypatch.setattr(local.subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])

    def full(*_):
        raise CouldNotRun("disk full", "free some space")

    monkeypatch.setattr(local, "write_atomic", full)
    with pytest.raises(CouldNotRun, match="disk full"):
        engine.start()
    assert started[0].poll() is not None


def test_a_taken_port_names_its_holder(make):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert str(os.getpid()) in (holder_of(port) or "")
        with pytest.raises(PortTaken) as caught:
            make(["hang"], port=port).start()
        assert f"port {port} is taken by process {os.getpid()}" in caught.value.what
        assert "--port" in caught.value.mend
        with pytest.raises(PortTaken, match="container x"):
            require_free_port(port, "container x")
    require_free_port(port)


def test_a_port_taken_on_all_addresses():
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        with pytest.raises(PortTaken):
            require_free_port(holder.getsockname()[1])


def test_an_address_of_another_machine():
    with pytest.raises(CouldNotRun, match="no address of this machine"):
        require_free_port(18080, host="192.0.2.77")


def test_an_engine_without_a_launch_only_looks(tmp_path):
    engine = LocalEngine(ENVELOPE, 8000, None, run_dir=tmp_path)
    with pytest.raises(CouldNotRun):
        engine.start()
    assert engine.base_url == "http://127.0.0.1:8000"


def test_a_program_name_with_brackets_is_read(tmp_path):
    import shutil
    import subprocess

    odd = tmp_path / "od) S (d"
    shutil.copy("/bin/sleep", odd)
    child = subprocess.Popen([str(odd), "30"])
    try:
        found = processes.read_process(child.pid)
        assert found is not None and found.pid == child.pid
        assert found.start_ticks > 0
        assert replace(found, state="Z").is_zombie
    finally:
        child.kill()
        child.wait()
