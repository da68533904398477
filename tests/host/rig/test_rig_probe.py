"""The probe against a driver's library of the tests' own: what is right is told right, and each kind of fault is seen.

The library is compiled here from fake_cuda.c and called through the same code that calls libcuda.so.1. Rates are of the
host's memory and mean nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.doctor.facts import NumaNode, Probe, Rig
from sm86.errors import CouldNotRun
from sm86.host.rig import probe as probe_module
from sm86.host.rig import probe_child
from sm86.host.rig.host_memory import host_memory
from sm86.host.rig.probe import container_argv, probe
from tests.doctor.rigs import GOOD, first

HERE = Path(__file__).parent
PATIENT_S = 100.0
SHORT_S = 5.0

QUICK = (
    "import importlib.util as u; s = u.spec_from_file_location('p', {child!r}); m = u.module_from_spec(s);"
    "s.loader.exec_module(m); m.TIMED = 1 << 20; m.CHECKED = 1 << 20; m.LOAD_S = 0.01;"
    "m.ODD = ((0, 1 << 20), (1, 4097), (4088, 16), (513, 300005)); m.try_links.__defaults__ = (0.01,);"
    "m.main({library!r})"
)
"""The probe with small buffers: the same steps, in a fraction of the time."""


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make the library with")
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(HERE / "fake_cuda.c")]
    subprocess.run(argv, check=True, capture_output=True, timeout=100)
    return str(path)


@pytest.fixture
def tried(library, monkeypatch):
    def run(mode: str = "", gpus: int = 3, silence_s: float = PATIENT_S, rig: Rig | None = None) -> Probe:
        monkeypatch.setenv("FAKE_CUDA", mode)
        monkeypatch.setenv("FAKE_GPUS", str(gpus))
        monkeypatch.setattr(probe_module, "host_memory", lambda nodes, available: ())
        code = QUICK.format(library=library, child=str(probe_module.CHILD))
        return probe(rig or first(gpus), argv=(sys.executable, "-c", code), silence_s=silence_s)

    return run


def test_every_direction_is_tried_and_every_value_right(tried) -> None:
    found = tried()
    assert (found.cuda, found.problem) == ("ok", None)
    assert found.copies is not None and found.links is not None
    assert {(copy.source, copy.target) for copy in found.copies} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }
    assert {(copy.state, copy.through, copy.access) for copy in found.copies} == {("right", "peer", True)}
    assert all(copy.rate and copy.rate > 0 for copy in found.copies)
    assert [load.gpu for load in found.links] == [0, 1, 2]
    assert all(load.to_gpu and load.from_gpu and load.to_gpu_together for load in found.links)


@pytest.mark.parametrize("mode", ["flip", "stale", "spill"])
def test_wrong_values_are_seen_and_counted(tried, mode: str) -> None:
    found = tried(mode)
    wrong = [copy for copy in found.copies or () if copy.state != "right"]
    assert [(copy.source, copy.target, copy.state) for copy in wrong] == [(0, 1, "wrong")]
    assert wrong[0].wrong is not None and wrong[0].wrong >= 1
    assert len(found.copies or ()) == 6, "the other directions are tried all the same"


def test_without_peer_access_copies_go_through_the_host(tried) -> None:
    found = tried("none")
    assert {(copy.state, copy.through, copy.access) for copy in found.copies or ()} == {("right", "host", False)}


def test_access_that_is_claimed_and_refused(tried) -> None:
    found = tried("refuse")
    assert {copy.state for copy in found.copies or ()} == {"refused"}
    assert "peer mapping resources exhausted" in str((found.copies or ())[0].problem)


def test_a_copy_that_hangs_is_named_and_what_came_before_is_kept(tried) -> None:
    found = tried("hang", silence_s=SHORT_S)
    assert found.cuda == "hang"
    assert [(copy.source, copy.target, copy.state) for copy in found.copies or ()] == [(0, 1, "right"), (0, 2, "hang")]
    assert "copy from GPU 0 to GPU 2 did not end" in str(found.problem)
    assert found.links is not None and len(found.links) == 3


def test_a_process_that_dies_is_told_where(tried) -> None:
    found = tried("dies")
    assert (found.cuda, len(found.copies or ())) == ("error", 2)
    assert "code 9 while it did: copy from GPU 1 to GPU 0" in str(found.problem)


def test_a_fault_that_ends_cuda_ends_the_copies(tried) -> None:
    found = tried("lost")
    assert [copy.state for copy in found.copies or ()] == ["right", "right", "error"]
    assert "unspecified launch failure (719)" in str((found.copies or ())[-1].problem)


def test_memory_that_is_taken(tried) -> None:
    found = tried("full")
    assert {copy.state for copy in found.copies or ()} == {"error"} and len(found.copies or ()) == 6
    assert all("out of memory" in str(load.problem) for load in found.links or ())


def test_no_driver_and_no_library(tried, library) -> None:
    found = tried("nodriver")
    assert (found.cuda, found.copies) == ("error", ())
    assert "no CUDA-capable device" in str(found.problem)
    argv = (sys.executable, str(probe_module.CHILD), "/nowhere/libcuda.so.1")
    found = probe(first(2), argv=argv, silence_s=PATIENT_S)
    assert found.cuda == "missing" and "nowhere" in str(found.problem)


def test_cards_that_cuda_does_not_show_and_its_own_order(tried) -> None:
    assert GOOD.gpus is not None
    # the rig counts in bus order; here CUDA's first card is the rig's second
    gpus = (replace(GOOD.gpus[0], bus_id="00000000:00:00.0"), replace(GOOD.gpus[1], bus_id="00000000:01:00.0"))
    gpus += (replace(GOOD.gpus[2], bus_id="00000000:11:00.0"),)
    found = tried("", 2, rig=replace(first(3), gpus=gpus))
    assert "CUDA shows 2 of 3 GPUs" in str(found.problem)
    assert {(copy.source, copy.target) for copy in found.copies or ()} == {(1, 2), (2, 1)}


def test_gpus_in_use_are_not_probed() -> None:
    assert GOOD.gpus is not None
    busy = replace(GOOD, gpus=(replace(GOOD.gpus[0], memory_free=1 << 20), *GOOD.gpus[1:]))
    with pytest.raises(CouldNotRun, match="GPU 0 has less than 1 GiB"):
        probe(busy)


def test_without_gpus_host_memory_is_still_measured(monkeypatch) -> None:
    monkeypatch.setattr(probe_module, "host_memory", lambda nodes, available: host_memory(nodes, available, 1 << 20, 2))
    found = probe(Rig(gpus=()))
    assert found.copies is None and found.problem == "there is no GPU to try"
    assert found.host is not None and found.host[0].rate > 0


def test_in_a_container_the_program_comes_through_standard_input(monkeypatch, tmp_path, library) -> None:
    """A docker of the tests' own: it runs what it is given, as the image's python would."""
    log = tmp_path / "log"
    docker = tmp_path / "docker"
    docker.write_text(
        f"#!{sys.executable}\nimport os, sys\nopen({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
        f"if sys.argv[1] == 'run': os.execv({sys.executable!r}, [{sys.executable!r}, '-', {library!r}])\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPUS", "1")
    monkeypatch.setattr(probe_module, "host_memory", lambda nodes, available: ())
    found = probe(first(1), image="sm86-vllm:0.26.0", silence_s=PATIENT_S)
    assert (found.cuda, found.by) == ("ok", "image sm86-vllm:0.26.0")
    run, remove = log.read_text().splitlines()
    assert run.startswith("run --rm --interactive --pull never --name sm86-probe-") and "--gpus all" in run
    assert remove.startswith("rm -f sm86-probe-")


def test_the_containers_arguments() -> None:
    argv = container_argv("docker", "sm86-vllm:0.26.0", "sm86-probe-1")
    assert argv[-3:] == ("sm86-vllm:0.26.0", "-u", "-")
    assert argv[argv.index("--network") + 1] == "none"


def test_the_child_imports_nothing_but_the_standard_library() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(probe_module.CHILD), "/nowhere/libcuda.so.1"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["cuda"] == "missing", done.stderr


def test_odd_copies_stay_within_the_checked_part() -> None:
    assert len(probe_child.ODD) == probe_child.ROUNDS
    assert all(offset + size <= probe_child.CHECKED <= probe_child.TIMED for offset, size in probe_child.ODD)


@pytest.mark.parametrize("nodes", [None, (), (NumaNode(0, "0-1023", 1 << 30),), (NumaNode(0, "junk", 1 << 30),)])
def test_host_memory_of_this_machine(nodes) -> None:
    (found,) = host_memory(nodes, None, size=1 << 20, repeats=2)
    assert (found.node, found.size, found.repeats) == (None, 1 << 20, 2)
    assert found.rate > 0 and found.threads >= 1


def test_host_memory_by_node() -> None:
    cpu = min(os.sched_getaffinity(0))
    nodes = (NumaNode(0, str(cpu), 1 << 30), NumaNode(1, str(cpu), 1 << 30), NumaNode(2, "4000", 1 << 30))
    found = host_memory((*nodes, NumaNode(3, str(cpu), 0)), None, size=1 << 20, repeats=2)
    assert [(item.node, item.threads) for item in found] == [(0, 1), (1, 1)]


def test_host_memory_takes_no_more_than_its_part() -> None:
    assert host_memory(None, 1 << 20, size=1 << 20) == ()
    (found,) = host_memory(None, 8 << 20, size=1 << 20, repeats=2)
    assert found.threads == 1
