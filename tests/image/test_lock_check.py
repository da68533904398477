"""Locks that are not of the pins are told before anything is built, and `invoke lock` never half writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sm86.cli import lock as cli
from sm86.errors import CouldNotRun
from sm86.host import lock as host
from sm86.image.lock_check import BASE_FILE, base_lock, locked_base, problems
from sm86.image.lock_sums import SUMS_FILE, sums_text
from sm86.image.locks import LOCKS_DIR
from sm86.image.names import OFFICIAL_BASE
from sm86.spec.load import load_pins

ROOT = Path(__file__).parents[2]
PINS = load_pins()
TEXTS = {path.name: path.read_text() for path in (ROOT / LOCKS_DIR).glob("*.txt")}
SUMS = (ROOT / LOCKS_DIR / SUMS_FILE).read_text()
DIGEST = "sha256:" + "5" * 64


def found_in(texts: dict[str, str], files: tuple[str, ...] | None = None) -> list[str]:
    """What is found in these locks, whose sums are right: what does not follow from the pins."""
    contents = {name: text.encode() for name, text in texts.items()}
    return problems(contents, sums_text("", contents), PINS, files)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / LOCKS_DIR, tmp_path / LOCKS_DIR)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_locks_in_the_repository_are_of_the_pins():
    assert problems({name: text.encode() for name, text in TEXTS.items()}, SUMS, PINS) == []


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
        ("base.txt", OFFICIAL_BASE, f"{OFFICIAL_BASE}@sha256:55", "the base image is"),
        ("gpu-py312.txt", "    --hash=sha256:", "    --hash=sha256:0", "no package with its hash"),
        ("gpu-py312.txt", "    --hash=sha256:", "    --hash=sha256:A", "no package with its hash"),
        ("gpu-py312.txt", "\naiohttp==", "\nvllm==", "names vllm twice"),
    ],
)
def test_a_lock_that_does_not_match_is_named(file, old, new, words):
    assert old in TEXTS[file]
    changed = {**TEXTS, file: TEXTS[file].replace(old, new)}
    found = found_in(changed)
    assert found and any(words in problem for problem in found) and all(file in problem for problem in found)
    assert found_in(changed, ("model.txt",)) == [problem for problem in found if "base.txt" in problem], (
        "of the locks that were not asked for, nothing is said"
    )


def test_a_lock_that_is_missing_is_named():
    assert found_in({n: t for n, t in TEXTS.items() if n != "model.txt"}) == ["docker/locks/model.txt is missing"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("numpy==", "numpy==9."),
        ("--hash=sha256:", "--hash=sha256:" + "0" * 64 + " \\\n    --hash=sha256:"),
        ("\n", "\r\n"),
    ],
    ids=["version of what is no pin", "one more hash", "line ends"],
)
def test_a_lock_that_was_altered_is_seen_though_its_pins_are_right(clone, capsys, old, new):
    lock = clone / LOCKS_DIR / "gpu-py311.txt"
    altered = lock.read_bytes().replace(old.encode(), new.encode())
    assert altered != lock.read_bytes()
    lock.write_bytes(altered)
    assert cli.lock(check=True) == 1
    printed = capsys.readouterr().out
    assert "docker/locks/gpu-py311.txt is not what `invoke lock` wrote" in printed and "mend: git checkout" in printed
    assert host.check_locks(clone, ("gpu-py312.txt",)) == [], "a build that does not use it is not kept from it"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "", "docker/locks/SHA256SUMS is missing or empty"),
        (lambda text: "# nothing\n", "docker/locks/base.txt is not in SHA256SUMS"),
        (lambda text: text.replace("  tools.txt", "  other.txt"), "docker/locks/tools.txt is not in SHA256SUMS"),
        (lambda text: text + "damaged\n", "docker/locks/SHA256SUMS holds a line that is no checksum: 'damaged'"),
        (lambda text: text + text.splitlines()[-1] + "\n", "docker/locks/SHA256SUMS names tools.txt twice"),
    ],
)
def test_a_list_of_sums_that_is_not_whole_vouches_for_nothing(clone, change, words):
    sums = clone / LOCKS_DIR / SUMS_FILE
    sums.write_text(change(sums.read_text()))
    assert words in host.check_locks(clone)


def test_making_one_lock_anew_does_not_vouch_for_another_that_was_altered(clone, monkeypatch):
    monkeypatch.setattr(host.shutil, "which", lambda *_args, **_more: "/usr/bin/uv")
    (clone / LOCKS_DIR / "model.txt").write_text(TEXTS["model.txt"] + "# more\n")
    (clone / LOCKS_DIR / "cpu-torch.txt").write_text("damaged\n")
    written = host.write_locks(clone, ("cpu-torch",), lambda _: None)
    assert [path.name for path in written] == ["cpu-torch.txt", SUMS_FILE]
    found = host.check_locks(clone)
    assert len(found) == 1 and found[0].startswith("docker/locks/model.txt is not what")


@pytest.mark.parametrize("name", ["tools.txt", SUMS_FILE])
@pytest.mark.parametrize(("make", "words"), [(Path.mkdir, "a folder"), (os.mkfifo, "a FIFO")], ids=["folder", "FIFO"])
def test_what_is_no_file_is_refused_and_never_waited_for(clone, name, make, words):
    path = clone / LOCKS_DIR / name
    path.unlink()
    assert any(f"{LOCKS_DIR}/{name} is missing" in problem for problem in host.check_locks(clone))
    make(path)
    with pytest.raises(CouldNotRun, match=rf"cannot read .*{name}: it is {words}"):
        cli.lock(check=True)


def test_sha256sum_reads_the_list(clone):
    argv = ["sha256sum", "--check", "--strict", "--quiet", SUMS_FILE]
    assert subprocess.run(argv, cwd=clone / LOCKS_DIR, check=False).returncode == 0


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
    assert capsys.readouterr().out == "every lock is of the pins, and as it was written\n"
    (clone / LOCKS_DIR / "model.txt").unlink()
    assert cli.lock(check=True, json=True) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["problems"]) == ("sm86.locks", ["docker/locks/model.txt is missing"])
    assert cli.lock(("tools",), dry_run=True) == 0
    assert capsys.readouterr().out == "would write tools\n"
    assert not (clone / LOCKS_DIR / "model.txt").exists()


def test_a_check_of_one_lock_judges_that_one(clone, capsys):
    (clone / LOCKS_DIR / "model.txt").unlink()
    assert cli.lock(("tools",), check=True) == 0
    assert capsys.readouterr().out == "of the pins, and as it was written\n"
    assert cli.lock(("model",), check=True) == 1
    assert "model.txt is missing" in capsys.readouterr().out
    with pytest.raises(CouldNotRun, match="there is no lock 'nope'"):
        cli.lock(("nope",), check=True)


@pytest.mark.parametrize("name", ["tools.txt", SUMS_FILE])
def test_a_file_far_too_large_is_not_read_whole(clone, name):
    os.truncate(clone / LOCKS_DIR / name, 64 << 30)  # sparse: it has no bytes on the disk
    with pytest.raises(CouldNotRun, match=rf"cannot read .*{name}: it is larger than"):
        host.check_locks(clone)


def test_what_a_damaged_lock_holds_moves_no_terminal(clone, capsys):
    (clone / LOCKS_DIR / "tools.txt").write_bytes(b"\x1b[2Ja==1\n\x1b[2Ja==1\n")
    assert cli.lock(check=True) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and r"names \x1b[2Ja twice" in printed
