"""Plain folders, hub caches with their links, and folders that the hub's library filled."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.weights.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding
from sm86.weights.inspection import inspect
from sm86.weights.places import locate
from tests.weights import checkpoints as made
from tests.weights.checkpoints import small
from tests.weights.test_check import SMALL

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


def cache(root: Path, commits: tuple[str, ...] = (COMMIT,), main: str | None = COMMIT) -> Path:
    """A hub cache as huggingface_hub lays it out."""
    whole = root / "hub" / "models--Intel--DeepSeek-V4-Flash-W4A16-AutoRound"
    (whole / "blobs").mkdir(parents=True)
    source = made.write(root / "source", small())
    for commit in commits:
        snapshot = whole / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for path in source.iterdir():
            data = path.read_bytes()
            large = path.suffix == ".safetensors"
            digest = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
            (whole / "blobs" / digest.hexdigest()).write_bytes(data)
            (snapshot / path.name).symlink_to(f"../../blobs/{digest.hexdigest()}")
    if main:
        (whole / "refs").mkdir()
        (whole / "refs" / "main").write_text(main)
    return whole


def judged(folder: Path, every_byte: bool = False) -> dict[str, Finding]:
    seen = inspect(locate(folder), SMALL, None, every_byte, lambda count: None)
    return {finding.rule: finding for finding in seen.findings}


def test_a_cache_and_its_snapshot_tell_repository_and_revision(tmp_path: Path) -> None:
    whole = cache(tmp_path)
    for path in (whole, whole / "snapshots" / COMMIT):
        place = locate(path)
        assert place.folder == whole / "snapshots" / COMMIT
        assert (place.repository, place.revision) == ("Intel/DeepSeek-V4-Flash-W4A16-AutoRound", COMMIT)
    assert {finding.state for finding in judged(whole).values()} == {PASS, NOT_APPLICABLE}


def test_a_cache_names_its_large_blobs_by_hash_and_that_is_compared(tmp_path: Path) -> None:
    whole = cache(tmp_path)
    assert judged(whole)["bytes"].text.startswith("not asked for")
    finding = judged(whole, every_byte=True)["bytes"]
    assert finding.state == PASS and "the hub cache's SHA-256" in finding.text
    blob = (whole / "snapshots" / COMMIT / "model-00002-of-00003.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert judged(whole)["weight-files"].state == PASS, "the headers cannot show it"
    finding = judged(whole, every_byte=True)["bytes"]
    assert finding.state == FAIL and finding.evidence == ("model-00002-of-00003.safetensors",)


def test_a_blob_that_is_gone(tmp_path: Path) -> None:
    whole = cache(tmp_path)
    (whole / "snapshots" / COMMIT / "model-00001-of-00003.safetensors").resolve().unlink()
    finding = judged(whole)["weight-files"]
    assert finding.state == FAIL and "is a link to ../../blobs/" in finding.evidence[0] and "link" in finding.mend
    found = judged(whole, every_byte=True)["bytes"]
    assert found.state == NOT_SEEN and "1 files are not there" in found.text


def test_which_snapshot_is_meant(tmp_path: Path) -> None:
    whole = cache(tmp_path, (COMMIT, OTHER), OTHER)
    assert locate(whole).revision == OTHER
    (whole / "refs" / "main").unlink()
    with pytest.raises(CouldNotRun, match="holds 2 snapshots") as fault:
        locate(whole)
    assert COMMIT in fault.value.mend and OTHER in fault.value.mend
    shutil.rmtree(whole / "snapshots" / OTHER)
    assert locate(whole).revision == COMMIT
    shutil.rmtree(whole / "snapshots" / COMMIT)
    with pytest.raises(CouldNotRun, match="holds no snapshot"):
        locate(whole)


def test_where_the_lock_lies(tmp_path: Path) -> None:
    whole = cache(tmp_path)
    assert locate(whole).lock_path == whole.parent / f"{whole.name}.{COMMIT[:12]}.lock.json"
    assert locate(tmp_path / "source").lock_path == tmp_path / "source.lock.json"


def test_a_folder_that_the_hub_s_library_filled(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "m", small())
    metadata = folder / ".cache/huggingface/download/config.json.metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"{COMMIT}\n0123\n1700000000.0\n")
    assert (locate(folder).layout, locate(folder).revision) == ("hub download", COMMIT)
    metadata.write_text("main\n")
    assert locate(folder).revision is None
    metadata.write_bytes(b"\xff")
    assert locate(folder).layout == "folder"


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "empty").mkdir()
    for name, words in (("none", "is not there"), ("file", "is no folder"), ("fifo", "is no folder"), ("link", "gone")):
        with pytest.raises(CouldNotRun, match=words):
            locate(tmp_path / name)
    with pytest.raises(CouldNotRun, match="is empty"):
        judged(tmp_path / "empty")
