"""Switching on: where the plugin acts, and that it does nothing elsewhere. A stand-in takes vLLM's place."""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
import types
from types import SimpleNamespace

import pytest

import sm86.backend
from sm86.backend import plugin
from sm86.backend.hooks import install as installing
from sm86.backend.refusal import Refused
from sm86.backend.settings import Settings, read


@pytest.mark.parametrize(
    ("capability", "force", "acts"),
    [
        ((8, 6), False, True),
        ((8, 0), False, True),
        ((8, 9), False, True),
        ((9, 0), False, False),
        ((9, 0), True, True),
        ((7, 5), False, False),
        ((12, 0), False, False),
        (None, False, False),
        (None, True, True),
    ],
)
def test_where_it_acts(capability: tuple[int, int] | None, force: bool, acts: bool) -> None:
    assert plugin.applies_to(capability, Settings(force=force)) is acts


class Platform:
    def __init__(self, cuda: bool, capability: tuple[int, int] | None) -> None:
        self._cuda, self._capability = cuda, capability

    def is_cuda(self) -> bool:
        return self._cuda

    def get_device_capability(self) -> SimpleNamespace | None:
        return (
            None if self._capability is None else SimpleNamespace(major=self._capability[0], minor=self._capability[1])
        )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch):
    """A stand-in for vllm.platforms; gives a function that sets the platform and the installed version."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(plugin, "settings", lambda: Settings())

    def stand_in(platform: Platform, version: str) -> None:
        platforms = types.ModuleType("vllm.platforms")
        platforms.current_platform = platform  # type: ignore[attr-defined]
        package = types.ModuleType("vllm")
        package.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
        monkeypatch.setitem(sys.modules, "vllm", package)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
        monkeypatch.setattr(plugin, "vllm_version", lambda: version)

    return stand_in


@pytest.mark.parametrize("version", ["0.28.0", "0.26.0"])
def test_nothing_happens_on_a_cpu_engine(vllm, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    vllm(Platform(False, None), version)
    sm86.backend.register()
    assert installing.installed() is None and capsys.readouterr().out == ""


def test_nothing_happens_on_a_gpu_of_another_kind(vllm, capsys: pytest.CaptureFixture[str]) -> None:
    vllm(Platform(True, (9, 0)), "0.28.0")
    sm86.backend.register()
    assert installing.installed() is None and capsys.readouterr().out == ""


def test_another_vllm_is_refused_on_sm86(vllm) -> None:
    vllm(Platform(True, (8, 6)), "0.27.0")
    with pytest.raises(Refused, match=r"vLLM 0\.27\.0"):
        sm86.backend.register()
    assert installing.installed() is None, "nothing half installed"


def test_a_vllm_with_other_sources_is_refused(vllm) -> None:
    vllm(Platform(True, (8, 6)), "0.26.0")
    with pytest.raises(Refused, match="does not exist"):
        sm86.backend.register()


def test_active_once_with_its_words(vllm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sm86.backend.hooks import hook

    vllm(Platform(True, (8, 6)), "0.26.0")
    monkeypatch.setattr(hook, "verify", lambda hooks, version, read: None)
    sm86.backend.register()
    out = capsys.readouterr().out
    assert "[sm86] backend active=true\n" in out and "[sm86] backend capability=8.6\n" in out
    assert '"attention-class"' in out
    sm86.backend.register()
    assert capsys.readouterr().out == ""


def test_a_start_that_was_refused_stays_refused(vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM calls the plugin again in places that go on after an error: no hook may be missing in silence."""
    from sm86.backend.hooks import catalogue, hook

    def fails(module: object) -> None:
        raise Refused("this one cannot be applied", "nothing")

    vllm(Platform(True, (8, 6)), "0.26.0")
    monkeypatch.setattr(hook, "verify", lambda hooks, version, read: None)
    module = types.ModuleType("imported_before_the_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    broken = hook.Hook("broken", module.__name__, "a test", (), fails)
    monkeypatch.setattr(catalogue, "HOOKS", (broken,))
    for _ in range(2):
        with pytest.raises(Refused, match="this one cannot be applied"):
            sm86.backend.register()


def test_a_shared_gpu_brings_its_hooks_first_and_says_so(
    vllm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sm86.backend import force
    from sm86.backend.hooks import hook, shared_gpu

    vllm(Platform(True, (9, 0)), "0.26.0")
    verified: list[str] = []
    for name in shared_gpu.ENVIRONMENT:
        monkeypatch.setenv(name, "unset")
    monkeypatch.setattr(hook, "verify", lambda hooks, version, read: verified.extend(one.name for one in hooks))
    monkeypatch.setattr(force, "pretend_sm86", lambda platform: None)
    monkeypatch.setattr(plugin, "settings", lambda: Settings(force=True, host_allreduce="1", share_gpu=True))
    sm86.backend.register()
    out = capsys.readouterr().out
    assert "[sm86] backend gpu_shared_for_a_test=true\n" in out
    finder = installing.installed()
    assert finder is not None and [one.name for one in finder.hooks] == verified
    assert verified.index("shared-gpu-communicator") < verified.index("host-allreduce"), "which stands ahead of it"
    assert os.environ["VLLM_DISABLE_PYNCCL"] == "1"


def test_an_unknown_hook_to_leave_out_is_refused(vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm(Platform(True, (8, 6)), "0.26.0")
    monkeypatch.setattr(plugin, "settings", lambda: Settings(without=("routed_experts",)))
    with pytest.raises(Refused, match="names no hook: routed_experts"):
        sm86.backend.register()
    assert installing.installed() is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SM86_FORCE": "yes"}, "SM86_FORCE"),
        ({"CUDAGRAPH_DISPATCH_DEBUG": ""}, "CUDAGRAPH_DISPATCH_DEBUG"),
        ({"SPEC_CUDAGRAPH_DEBUG": "-1"}, "SPEC_CUDAGRAPH_DEBUG"),
        ({"SPEC_CUDAGRAPH_DEBUG": "\u00b2"}, "SPEC_CUDAGRAPH_DEBUG"),
        ({"SPEC_CUDAGRAPH_DEBUG": "9" * 5000}, "SPEC_CUDAGRAPH_DEBUG"),
        ({"SM86_DETERMINISTIC_MOE": "true"}, "SM86_DETERMINISTIC_MOE"),
        ({"SM86_HOST_ALLREDUCE": "yes"}, "SM86_HOST_ALLREDUCE"),
        ({"SM86_INDEXER_QUERY": "fp4"}, "SM86_INDEXER_QUERY"),
    ],
)
def test_settings_that_mean_nothing_are_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        read(environment)


def test_settings() -> None:
    assert read({}) == Settings()
    got = read({"SM86_FORCE": "1", "SPEC_CUDAGRAPH_DEBUG": "4", "SM86_TEST_WITHOUT_HOOKS": "routed-experts"})
    assert got == Settings(force=True, spec_debug=4, without=("routed-experts",))


def test_the_launcher_knows_every_name_that_the_backend_reads() -> None:
    """A name that the launcher did not know would be refused before the backend could read it."""
    from pathlib import Path

    from sm86.launch.overrides import BY_NAME, KNOWN_SM86_NAMES, PASS_THROUGH_NAMES

    folder = Path(__file__).resolve().parents[2] / "sm86" / "backend"
    named = {
        name
        for path in folder.rglob("*.py")
        if path.parent.name != "testing"  # programs of their own, which no launcher starts
        for name in re.findall(r"[\"'](SM86_[A-Z0-9_]+|[A-Z_]*CUDAGRAPH[A-Z_]*DEBUG)[\"']", path.read_text())
    }
    assert {"SM86_FORCE", "SM86_INDEXER_QUERY", "SM86_DETERMINISTIC_MOE", "SPEC_CUDAGRAPH_DEBUG"} <= named
    assert named <= KNOWN_SM86_NAMES | set(BY_NAME)
    # what a user may set reaches a container; what is for tests of the backend does not
    assert {"SM86_FORCE", "SM86_INDEXER_QUERY", "SM86_HOST_ALLREDUCE"} <= set(PASS_THROUGH_NAMES)
    tests = {"SM86_TEST_WITHOUT_HOOKS", "SM86_TEST_SHARE_GPU", "SM86_DETERMINISTIC_MOE"}
    assert tests <= KNOWN_SM86_NAMES and not tests & set(PASS_THROUGH_NAMES)
