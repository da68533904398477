"""`--dry-run` of what writes: the words say what would happen, and nothing has."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm86.cli import demo, image
from sm86.cli.guard import guard
from sm86.host import docker as host_docker

DATA = b"layers"


class Gateway:
    """An engine with one image, which must not be asked to export or import."""

    def image(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(size=3_000_000_000) if name == "here" else None


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_docker, "require_engine", Gateway)


def test_saving(engine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "new" / "image.tar"
    code = guard(lambda: image.save("here", str(archive), dry_run=True))
    said = capsys.readouterr()
    # a machine without 4 GB of room is told so, in the dry run as well
    if code:
        assert "GB free" in said.err
    else:
        assert f"would write here, about 3.0 GB, to {archive}" in said.out
    assert list(tmp_path.iterdir()) == []
    assert guard(lambda: image.save("gone", str(archive), dry_run=True)) == 2
    assert "no image gone" in capsys.readouterr().err


def test_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    archive.with_name("image.tar.sha256").write_text(f"{digest}  image.tar\n")
    assert image.load(str(archive), dry_run=True) == 0
    assert f"would load {archive}; SHA-256 {digest}" in capsys.readouterr().out
    archive.write_bytes(b"others")
    assert guard(lambda: image.load(str(archive), dry_run=True)) == 2
    assert "is damaged" in capsys.readouterr().err


def test_the_demo_without_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_build", None)
    assert demo.demo("local", port="8123", json=True, dry_run=True) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["schema"], values["dry_run"]) == ("sm86.demo", True)
    assert "--port 8123" in values["steps"][0] and values["steps"][-2] == "stop it"
    assert demo.demo("local", keep=True, dry_run=True) == 0
    assert "leave it running" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
