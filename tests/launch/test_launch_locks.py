"""The locks, across real processes: refusal, sharing with workers, release by the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import locks
from tests.launch.launch_machine import ROOT

# takes the locks, starts a worker as vLLM does (closed files, its own share), becomes another program by exec
HOLDER = """
import os, subprocess, sys
from pathlib import Path
from sm86.launch import locks
paths = locks.acquire(Path(sys.argv[1]), sys.argv[3].split(","), sys.argv[2])
os.environ[locks.HELD_VARIABLE] = ":".join(map(str, paths))
worker = None
if len(sys.argv) > 4:
    code = "import time; from sm86.launch import locks; locks.hold(); print('held', flush=True); time.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    worker.stdout.readline()
print(worker.pid if worker else 0, flush=True)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
"""


class Holders:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[subprocess.Popen[str]] = []
        self.workers: list[int] = []

    def start(self, names: str, envelope: str = "sm86-262k", worker: bool = False) -> tuple[subprocess.Popen[str], int]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(self.folder), envelope, names, *(["worker"] if worker else [])],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        assert child.stdout
        worker_pid = int(child.stdout.readline() or -1)
        self.workers.append(worker_pid)
        return child, worker_pid

    def end(self) -> None:
        for pid in self.workers:
            if pid > 0:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    made = Holders(tmp_path / "locks")
    yield made
    made.end()
    locks.release()


def refusal(folder: Path, *names: str) -> CouldNotRun:
    with pytest.raises(CouldNotRun) as caught:
        locks.acquire(folder, names, "other", wait_s=0.2)
    return caught.value


def free(folder: Path, *names: str) -> bool:
    try:
        locks.acquire(folder, names, "other", wait_s=5)
    except CouldNotRun:
        return False
    locks.release()
    return True


def test_a_second_server_is_refused_by_name_through_exec(holders: Holders) -> None:
    child, _ = holders.start("GPU-b,GPU-a", "sm86-80k-4seq")
    refused = refusal(holders.folder, "GPU-b")
    assert "GPU-b is in use: sm86-80k-4seq runs on " in refused.what
    assert os.uname().nodename in refused.what
    assert f"process {child.pid}" in refused.what
    assert time.strftime("since %Y-%m-%dT", time.gmtime()) in refused.what
    assert "stop sm86-80k-4seq first" in refused.mend
    assert free(holders.folder, "GPU-c")


def test_all_or_none(holders: Holders) -> None:
    holders.start("GPU-b")
    refusal(holders.folder, "GPU-a", "GPU-b", "GPU-c")
    assert free(holders.folder, "GPU-a", "GPU-c")


def test_the_kernel_releases_it_when_the_holder_is_killed(holders: Holders) -> None:
    child, _ = holders.start("cpu", "cpu-smoke")
    assert "the CPU is in use: cpu-smoke" in refusal(holders.folder, "cpu").what
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert free(holders.folder, "cpu")


def test_a_worker_that_outlives_its_server_still_holds_the_gpu(holders: Holders) -> None:
    child, worker = holders.start("GPU-a", worker=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    refused = refusal(holders.folder, "GPU-a")
    assert "GPU-a is in use: sm86-262k" in refused.what and "workers of it still run" in refused.what
    assert "invoke down --envelope sm86-262k" in refused.mend
    os.kill(worker, signal.SIGKILL)
    assert free(holders.folder, "GPU-a")


def test_the_next_start_waits_a_moment_for_one_that_is_ending(holders: Holders) -> None:
    child, _ = holders.start("GPU-a")
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {child.pid}"])
    # a zombie has given up its files, so nobody needs to wait for it here
    assert free(holders.folder, "GPU-a")
    killer.wait()


def test_a_removed_lock_file_is_no_way_round(holders: Holders) -> None:
    path = holders.folder / "GPU-a.lock"
    holders.folder.mkdir()
    path.touch()
    handle = os.open(path, os.O_RDWR)
    assert locks._is_still(path, handle)
    path.unlink()
    assert not locks._is_still(path, handle)
    path.touch()
    assert not locks._is_still(path, handle)
    os.close(handle)


def test_the_owner_is_overwritten_by_the_next(holders: Holders) -> None:
    holders.folder.mkdir()
    path = holders.folder / "GPU-a.lock"
    path.write_text(json.dumps({"envelope": "x" * 500}))
    locks.acquire(holders.folder, ["GPU-a"], "sm86-64k")
    assert json.loads(path.read_text())["envelope"] == "sm86-64k"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_damaged_owner_still_refuses(holders: Holders, text: str) -> None:
    holders.start("GPU-a")
    (holders.folder / "GPU-a.lock").write_bytes(text.encode("latin-1"))
    assert refusal(holders.folder, "GPU-a").what == "GPU-a is in use by another server of this product"


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = refusal(tmp_path / "file" / "locks", "cpu")
    assert "lock folder" in refused.what and "SM86_LOCK_DIR" in refused.mend


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "cpu.lock").symlink_to(victim)
    refusal(tmp_path, "cpu")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("value", ["", "/nowhere/a.lock", "/nowhere/a.lock:"])
def test_holding_never_fails(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locks.HELD_VARIABLE, value)
    locks.hold()
    assert locks._held == []


def test_holding_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sm86.launch import locks; locks.hold();"
        "print([m for m in ('torch', 'vllm', 'tomllib', 'asyncio') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert out.stdout == b"[]\n"
