"""The cache folder: bound to its build, emptied only when ours, never beyond its own walls."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import cache
from tests.launch.launch_machine import ROOT

A, B = "a" * 16, "b" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def prepare(folder: Path, identity: str) -> str:
    """In a process of its own, which then gives its share back."""
    code = (
        "import sys; from pathlib import Path; from sm86.launch import cache;"
        "print(cache.prepare(Path(sys.argv[1]), sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), identity],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def user(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A running server of build A."""
    code = (
        "import sys, time; from pathlib import Path; from sm86.launch import cache;"
        "print(cache.prepare(Path(sys.argv[1]), sys.argv[2]), flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), A],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stdout.readline() == "fresh\n"
    yield child
    child.kill()
    child.wait()


def test_fresh_then_reused_then_cleared(folder: Path) -> None:
    assert prepare(folder, A) == cache.FRESH
    (folder / "triton").mkdir()
    (folder / "triton" / "kernel.cubin").write_text("x")
    assert prepare(folder, A) == cache.REUSED
    assert (folder / "triton" / "kernel.cubin").exists()
    assert prepare(folder, B) == cache.CLEARED
    assert sorted(entry.name for entry in folder.iterdir()) == [cache.STAMP, cache.LOCK]
    assert prepare(folder, B) == cache.REUSED


def test_links_are_removed_and_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("x")
    prepare(folder, A)
    (folder / "to-folder").symlink_to(outside)
    (folder / "to-file").symlink_to(outside / "deep" / "precious")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "sub").mkdir()
    (folder / "sub" / "link").symlink_to(outside / "deep")
    assert prepare(folder, B) == cache.CLEARED
    assert (outside / "deep" / "precious").read_text() == "x"
    assert {entry.name for entry in folder.iterdir()} == {cache.STAMP, cache.LOCK}


def test_a_folder_of_something_else_is_never_emptied(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(CouldNotRun, match=r"something else \(thesis\.tex"):
        cache.prepare(folder, A)
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert not (folder / cache.STAMP).exists()


def test_a_link_in_place_of_the_stamp_vouches_for_nothing(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "stamp").write_text(B)
    (folder / cache.STAMP).symlink_to(tmp_path / "stamp")
    (folder / "x").write_text("")
    with pytest.raises(CouldNotRun, match="something else"):
        cache.prepare(folder, A)


def test_an_empty_volume_may_hold_what_file_systems_put_there(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)
    assert prepare(folder, A) == cache.FRESH
    assert prepare(folder, B) == cache.CLEARED
    assert (folder / "lost+found").is_dir()


def test_a_clearing_that_was_cut_off_is_taken_up_by_the_next_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(folder, A)
    (folder / "one").write_text("")

    def cut_off(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_empty", cut_off)
        with pytest.raises(KeyboardInterrupt):
            cache.prepare(folder, B)
    assert (folder / "one").exists()
    for identity in (A, B):
        (folder / "one").write_text("")
        assert prepare(folder, identity) == cache.CLEARED
        assert not (folder / "one").exists()


def test_servers_of_one_build_share_it(folder: Path, user: subprocess.Popen[str]) -> None:
    (folder / "kernel").write_text("")
    assert prepare(folder, A) == cache.REUSED
    assert (folder / "kernel").exists()


def test_another_build_does_not_empty_it_under_a_running_server(folder: Path, user: subprocess.Popen[str]) -> None:
    (folder / "kernel").write_text("")
    with pytest.raises(CouldNotRun, match="in use by a running server of another build"):
        cache.prepare(folder, B, wait_s=0.3)
    assert (folder / "kernel").exists()
    user.kill()
    user.wait()
    assert prepare(folder, B) == cache.CLEARED


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CouldNotRun) as refusal:
        cache.prepare(tmp_path / "file" / "cache", A)
    assert f"by user {os.getuid()}" in refusal.value.what
    assert "SM86_CACHE_DIR" in refusal.value.mend


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_reused_folder_that_became_read_only(folder: Path) -> None:
    prepare(folder, A)
    folder.chmod(0o500)
    with pytest.raises(CouldNotRun, match="cannot be written"):
        cache.prepare(folder, A)


def test_the_identity_follows_the_build_record_in_an_image_and_versions_outside() -> None:
    build = {"lock_hash": "1", "pins": {"torch": "2"}, "variant": "native", "git_rev": "x"}
    versions = {"vllm": "0.26.0"}
    same = cache.identity(build, versions)
    assert cache.identity({**build, "git_rev": "y"}, {}) == same
    for key, value in (("lock_hash", "2"), ("pins", {}), ("variant", "wheel")):
        assert cache.identity({**build, key: value}, versions) != same
    assert cache.identity(None, versions) != cache.identity(None, {"vllm": "0.26.1"})


def test_every_variable_points_below_the_folder_and_the_users_own_stay() -> None:
    mine = cache.variables(Path("/cache"), {"HF_HOME": "/mine", "TRITON_CACHE_DIR": ""})
    assert "HF_HOME" not in mine
    assert mine["TRITON_CACHE_DIR"] == "/cache/triton"
    assert len(set(mine.values())) == len(mine)
