"""The build record that goes into an image, made as a build makes it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sm86.image.git_facts import GitFacts
from sm86.image.locks import lock_hash
from sm86.image.steps.record import git_facts_of, main, make_record
from sm86.spec.load import load_pins

ROOT = Path(__file__).parents[3]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context: the real locks, a file of the package, and a git that has committed them."""
    shutil.copytree(ROOT / "docker" / "locks", tmp_path / "docker" / "locks")
    (tmp_path / "sm86").mkdir()
    (tmp_path / "sm86" / "a.py").write_text("a = 1\n")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def record(context: Path, out: Path, *more: str) -> dict:
    words = ["--target", "cpu", "--variant", "wheel", "--base", "b:1", "--context", str(context), "--out", str(out)]
    assert main([*words, *more]) == 0
    return json.loads(out.read_text())


def test_what_the_builder_says_comes_first(context, tmp_path):
    found = record(context, tmp_path / "r.json", "--git-rev", "f" * 40, "--git-dirty", "true")
    assert (found["git_rev"], found["git_dirty"]) == ("f" * 40, True)
    assert (found["target"], found["variant"], found["base"]) == ("cpu", "wheel", "b:1")
    assert set(found["pins"]) == {"cpu-vllm", "cpu-torch", "cpu-model"}


def test_without_it_the_context_says_which_revision_it_is(context, tmp_path):
    rev = subprocess.run(["git", "rev-parse", "HEAD"], cwd=context, capture_output=True, text=True).stdout.strip()
    found = record(context, tmp_path / "r.json", "--git-rev", "", "--git-dirty", "")
    assert (found["git_rev"], found["git_dirty"]) == (rev, False)
    (context / "sm86" / "a.py").write_text("a = 2\n")
    assert record(context, tmp_path / "r.json")["git_dirty"] is True


def test_a_revision_without_a_word_on_dirt_stays_open():
    assert git_facts_of("f" * 40, "", Path("/nowhere")) == GitFacts("f" * 40, None)


def test_two_records_of_the_same_files_are_the_same_bytes(context, tmp_path):
    record(context, tmp_path / "one.json")
    record(context, tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_the_rigs_record_names_the_rigs_pins():
    locks = {"tools.txt": b"x"}
    found = make_record("gpu", "wheel", "b", "3.12.12", GitFacts("a" * 40, False), locks)
    pins = load_pins()
    assert found["pins"]["vllm"] == pins.version("vllm") and "cpu-vllm" not in found["pins"]
    assert "flashinfer-cubin" not in found["pins"], "it is not in the image by default"
    assert "flashinfer-cubin" in make_record("gpu", "wheel", "b", "3", GitFacts("a", None), locks, True)["pins"]
    assert found["lock_hash"] == lock_hash(locks)


def test_a_base_without_a_lock_is_one_line(context, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("platform.python_version", lambda: "3.13.1")
    words = [
        "--target",
        "cpu",
        "--variant",
        "wheel",
        "--base",
        "b",
        "--context",
        str(context),
        "--out",
        str(tmp_path / "x"),
    ]
    assert main(words) == 2
    assert "cpu-py313.txt" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_lock_that_was_altered_gets_no_record(context, tmp_path, capsys):
    lock = context / "docker" / "locks" / "model.txt"
    lock.write_text(lock.read_text().replace("gguf==", "gguf==9."))
    words = ("--target", "cpu", "--variant", "wheel", "--base", "b", "--context", str(context))
    assert main([*words, "--out", str(tmp_path / "x")]) == 2
    assert "docker/locks/model.txt is not what `invoke lock` wrote" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
