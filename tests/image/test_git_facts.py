"""Revision and cleanliness from git's files alone, held against what git itself says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sm86.image.git_facts import GitFacts, blob_digest, head_revision, read_git, read_index

PATHS = ("sm86", "pyproject.toml")


def git(root: Path, *words: str) -> str:
    environment = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "PATH": "/usr/bin:/bin:/usr/local/bin",
        "HOME": str(root),
    }
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "sm86" / "deep").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "sm86" / "a.py").write_text("a = 1\n")
    (root / "sm86" / "deep" / "naïve.txt").write_text("ü\n")
    (root / "sm86" / "link").symlink_to("a.py")
    (root / "other.txt").write_text("not in the image\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


def test_a_fresh_checkout_is_known_and_clean(checkout):
    assert read_git(checkout, PATHS) == GitFacts(git(checkout, "rev-parse", "HEAD"), False)


def test_a_clone_is_known_and_clean(checkout, tmp_path):
    git(checkout, "clone", "-q", str(checkout), str(tmp_path / "clone"))
    assert read_git(tmp_path / "clone", PATHS) == GitFacts(git(checkout, "rev-parse", "HEAD"), False)


def test_packed_refs_and_a_detached_head_are_read(checkout):
    rev = git(checkout, "rev-parse", "HEAD")
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git" / "refs" / "heads" / "main").exists()
    assert head_revision(checkout / ".git") == rev
    git(checkout, "checkout", "-q", "--detach")
    assert head_revision(checkout / ".git") == rev


@pytest.mark.parametrize("change", ["edit", "delete", "new", "link", "same size"])
def test_a_change_below_the_paths_is_dirt(checkout, change):
    if change == "edit":
        (checkout / "sm86" / "a.py").write_text("a = 12\n")
    elif change == "same size":
        (checkout / "sm86" / "a.py").write_text("a = 2\n")
    elif change == "delete":
        (checkout / "sm86" / "deep" / "naïve.txt").unlink()
    elif change == "new":
        (checkout / "sm86" / "new.py").write_text("")
    else:
        (checkout / "sm86" / "link").unlink()
        (checkout / "sm86" / "link").symlink_to("deep")
    assert read_git(checkout, PATHS).dirty is True


def test_a_change_elsewhere_is_none_of_the_images(checkout):
    (checkout / "other.txt").write_text("changed\n")
    (checkout / "results.json").write_text("{}")
    assert read_git(checkout, PATHS).dirty is False


def test_staged_and_not_committed_is_not_called_clean(checkout):
    (checkout / "sm86" / "a.py").write_text("a = 3\n")
    git(checkout, "add", "sm86/a.py")
    assert read_git(checkout, PATHS).dirty is None
    git(checkout, "commit", "-q", "-m", "two")
    assert read_git(checkout, PATHS) == GitFacts(git(checkout, "rev-parse", "HEAD"), False)


def test_without_git_nothing_is_claimed(checkout):
    shutil.rmtree(checkout / ".git")
    assert read_git(checkout, PATHS) == GitFacts("unknown", None)


def test_without_the_index_the_revision_is_known_and_dirt_is_open(checkout):
    rev = git(checkout, "rev-parse", "HEAD")
    (checkout / ".git" / "index").unlink()
    assert read_git(checkout, PATHS) == GitFacts(rev, None)


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../etc/passwd", "ref: refs/../../x", "zz" * 20])
def test_a_head_that_names_nothing_is_unknown(checkout, head):
    (checkout / ".git" / "HEAD").write_text(head)
    assert head_revision(checkout / ".git") == "unknown"


def test_a_damaged_index_is_not_believed(checkout):
    data = (checkout / ".git" / "index").read_bytes()
    entries, settled = read_index(data)
    assert settled and [entry.path for entry in entries][-2:] == ["sm86/deep/naïve.txt", "sm86/link"]
    for bad in (data[:40], data[:100] + b"\x00" * 20 + data[120:], b"", b"DIRC" + b"\0\0\0\x04" + data[8:]):
        with pytest.raises(ValueError, match="index"):
            read_index(bad)


def test_a_blobs_id_is_gits(checkout):
    for name in ("sm86/a.py", "sm86/deep/naïve.txt"):
        assert blob_digest((checkout / name).read_bytes()) == git(checkout, "hash-object", name)
