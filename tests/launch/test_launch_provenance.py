"""Which revision runs: the image's record, git, or .git read by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sm86.launch import provenance
from sm86.launch.places import BUILD_FILE, build_record, places


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "sm86").mkdir(parents=True)
    (root / "sm86" / "x.py").write_text("")
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "m"],
    ):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    return root


def head(root: Path) -> str:
    return subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def test_the_build_record_wins(checkout: Path) -> None:
    build = {"git_rev": "f" * 40, "git_dirty": False, "lock_hash": "l", "pins": {"vllm": "0.26.0"}, "variant": "native"}
    found = provenance.find(build, {"SM86_IMAGE_ID": "sha256:1"}, checkout / "sm86")
    assert (found.git_rev, found.git_dirty, found.lock_hash, found.variant) == ("f" * 40, False, "l", "native")
    assert found.pins == {"vllm": "0.26.0"} and found.image_id == "sha256:1"


def test_a_damaged_record_says_unknown_and_not_the_checkouts_revision(checkout: Path) -> None:
    assert provenance.find({}, {}, checkout / "sm86").git_rev == "unknown"
    odd = provenance.find({"git_dirty": "no", "pins": "x"}, {}, checkout)
    assert odd.git_dirty is None and odd.pins is None


def test_a_checkout_is_asked(checkout: Path) -> None:
    assert provenance.find(None, {}, checkout / "sm86") == provenance.Provenance(head(checkout), False)
    (checkout / "new").write_text("")
    assert provenance.find(None, {}, checkout / "sm86").git_dirty is True


def test_without_git_the_files_are_read(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rev = head(checkout)
    subprocess.run(["git", "-C", str(checkout), "worktree", "add", "-q", "../tree"], check=True, capture_output=True)
    monkeypatch.setenv("PATH", "")
    assert provenance.from_checkout(checkout / "sm86") == (rev, None)
    assert provenance.from_checkout(checkout.parent / "tree" / "sm86") == (rev, None)


def test_packed_and_detached_heads(checkout: Path) -> None:
    rev = head(checkout)
    subprocess.run(["git", "-C", str(checkout), "pack-refs", "--all"], check=True)
    assert not (checkout / ".git" / "refs" / "heads" / "main").exists()
    assert provenance.read_head(checkout / ".git") == rev
    (checkout / ".git" / "HEAD").write_text(rev + "\n")
    assert provenance.read_head(checkout / ".git") == rev


def test_no_checkout_is_unknown(tmp_path: Path) -> None:
    assert provenance.from_checkout(tmp_path) == ("unknown", None)
    assert provenance.read_head(tmp_path / ".git") == "unknown"


def test_places_in_an_image_and_outside(tmp_path: Path) -> None:
    record = tmp_path / "build.json"
    outside = places({"HOME": "/h", "SM86_BUILD_FILE": str(record)}, "cpu")
    assert not outside.in_image
    assert (outside.cache, outside.locks) == (Path("/h/.cache/sm86/engine-cpu"), Path("/h/.cache/sm86/locks"))
    record.write_text(json.dumps({"git_rev": "x"}))
    inside = places({"HOME": "/h", "SM86_BUILD_FILE": str(record)}, "cuda")
    assert inside.in_image
    assert (inside.cache, inside.locks) == (Path("/cache"), Path("/run/sm86"))
    assert (inside.key_file, inside.key_file_is_given) == (Path("/run/secrets/sm86_api_key"), False)
    own = places({"SM86_CACHE_DIR": "/c", "SM86_LOCK_DIR": "/l", "SM86_API_KEY_FILE": "/k", "HOME": "/h"}, "cpu")
    assert (own.cache, own.locks, own.key_file, own.key_file_is_given) == (Path("/c"), Path("/l"), Path("/k"), True)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_build_record_still_means_an_image(tmp_path: Path, text: str) -> None:
    (tmp_path / "build.json").write_text(text)
    assert build_record(tmp_path / "build.json") == {}
    assert build_record(tmp_path / "none.json") is None
    assert Path("/opt/sm86/build.json") == BUILD_FILE
