"""Locks that are not of the pins are told before anything is built, and `invoke lock` never half writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sm86.cli import lock as cli
from sm86.errors import CouldNotRun
from sm86.host import lock as host
from sm86.image.lock_check import BASE_FILE, base_lock, locked_base, problems
from sm86.image.locks import LOCKS_DIR
from sm86.image.names import OFFICIAL_BASE
from sm86.spec.load import load_pins

ROOT = Path(__file__).parents[2]
PINS = load_pins()
TEXTS = {path.name: path.read_text() for path in (ROOT / LOCKS_DIR).glob("*.txt")}
DIGEST = "sha256:" + "5" * 64


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / LOCKS_DIR, tmp_path / LOCKS_DIR)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_locks_in_the_repository_are_of_the_pins():
    assert problems(TEXTS, PINS) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("gpu-py312.txt", "vllm==0.26.0", "vllm==0.25.1", "names vllm 0.25.1, the pin is 0.26.0"),
        ("gpu-py312.txt", "vllm==0.26.0", "vllmm==0.26.0", "does not name vllm"),
        ("gpu-py311.txt", "    --hash=sha256:", "    --hash=md5:", "no package with its hash"),
        ("native.txt", "nvidia-cutlass==4.2.0.0", "nvidia-cutlass==4.3.0.0", "nvidia-cutlass 4.3.0.0"),
        ("native-source.txt", "23e9fa19", "00000000", "native-source.txt is not what the pins say"),
        ("cpu-torch.txt", "+cpu", "+cu130", "cpu-torch.txt is not what the pins say"),
        ("base.txt", OFFICIAL_BASE, "python:3.13-slim", "names python:3.13-slim"),
        ("tools.txt", "setuptools==77.0.3", "-r other.txt", "does not name setuptools"),
    ],
)
def test_a_lock_that_does_not_match_is_named(file, old, new, words):
    assert old in TEXTS[file]
    found = problems({**TEXTS, file: TEXTS[file].replace(old, new)}, PINS)
    assert found and any(words in problem for problem in found) and all(file in problem for problem in found)
    assert problems({**TEXTS, file: TEXTS[file].replace(old, new)}, PINS, ("model.txt",)) == [
        problem for problem in found if "base.txt" in problem
    ], "of the locks that were not asked for, nothing is said"


def test_a_lock_that_is_missing_is_named():
    assert problems({n: t for n, t in TEXTS.items() if n != "model.txt"}, PINS) == ["docker/locks/model.txt is missing"]


def test_the_base_is_named_with_its_digest_or_said_not_to_be_pinned():
    assert locked_base(base_lock(DIGEST)) == f"{OFFICIAL_BASE}@{DIGEST}"
    assert locked_base(base_lock(None)) == OFFICIAL_BASE and "No registry answered" in base_lock(None)


def test_a_known_digest_is_not_given_up_while_the_registry_is_silent(clone, monkeypatch):
    monkeypatch.setattr(host.shutil, "which", lambda *_args, **_more: "/usr/bin/uv")
    said: list[str] = []
    monkeypatch.setattr(host, "registry_digest", lambda _: DIGEST)
    host.write_locks(clone, ("base",), said.append)
    assert locked_base((clone / LOCKS_DIR / BASE_FILE).read_text()) == f"{OFFICIAL_BASE}@{DIGEST}"
    monkeypatch.setattr(host, "registry_digest", lambda _: None)
    host.write_locks(clone, ("base",), said.append)
    assert locked_base((clone / LOCKS_DIR / BASE_FILE).read_text()) == f"{OFFICIAL_BASE}@{DIGEST}"
    assert any("no registry answers" in words for words in said)


def test_nothing_is_written_when_one_lock_cannot_be_resolved(clone, monkeypatch):
    uv = clone / "uv"
    uv.write_text('#!/bin/sh\necho "no solution found: a wants b<1" >&2\nexit 1\n')
    uv.chmod(0o755)
    monkeypatch.setattr(host.shutil, "which", lambda *_args, **_more: str(uv))
    with pytest.raises(CouldNotRun, match=r"tools\.txt could not be resolved") as caught:
        host.write_locks(clone, ("tools", "cpu-torch"), lambda _: None)
    assert "no solution found: a wants b<1" in caught.value.evidence
    assert {path.name: path.read_text() for path in (clone / LOCKS_DIR).glob("*.txt")} == TEXTS


def test_wrong_names_and_a_missing_resolver_are_one_line(clone, monkeypatch):
    monkeypatch.setattr(host.shutil, "which", lambda *_args, **_more: None)
    with pytest.raises(CouldNotRun, match="there is no program uv"):
        host.write_locks(clone)
    with pytest.raises(CouldNotRun, match="there is no lock 'gpu'") as caught:
        cli.lock(("gpu",), dry_run=True)
    assert "gpu-py312" in caught.value.mend and "base" in caught.value.mend


def test_the_command_checks_and_plans_without_a_network(clone, capsys):
    assert cli.lock(check=True) == 0
    assert capsys.readouterr().out == "every lock is of the pins\n"
    (clone / LOCKS_DIR / "model.txt").unlink()
    assert cli.lock(check=True, json=True) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["problems"]) == ("sm86.locks", ["docker/locks/model.txt is missing"])
    assert cli.lock(("tools",), dry_run=True) == 0
    assert capsys.readouterr().out == "would write tools\n"
    assert not (clone / LOCKS_DIR / "model.txt").exists()
