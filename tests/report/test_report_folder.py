"""A report over an earlier one: what it does not have goes, what is somebody's own stays."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from sm86.cli import report as cli
from sm86.cli import report_folder as folder
from sm86.cli.report_folder import MANIFEST, write_folder
from sm86.errors import CouldNotRun

DATA = Path(__file__).parent / "data"


def names(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


def test_pictures_of_an_earlier_report_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shutil.copytree(DATA, tmp_path / "results")
    assert cli.report([str(tmp_path / "results")], out) == 0
    before = {path.name for path in out.glob("*.png")}
    assert before
    for bench in (tmp_path / "results").rglob("*-bench*.json"):
        bench.unlink()
    capsys.readouterr()
    assert cli.report([str(tmp_path / "results")], out, json=True) == 0
    said = json.loads(capsys.readouterr().out)
    after = {path.name for path in out.glob("*.png")}
    assert after < before
    assert {Path(path).name for path in said["removed"]} == before - after and said["foreign"] == []
    assert {Path(path).name for path in said["files"]} == names(out) - {MANIFEST}


def test_a_report_without_pictures_leaves_none_of_an_earlier_one(tmp_path: Path, capsys) -> None:
    assert cli.report([str(DATA)], tmp_path) == 0
    capsys.readouterr()
    assert cli.report([str(DATA)], tmp_path, png=False) == 0
    assert names(tmp_path) == {"report.html", "report.md", MANIFEST}
    assert "removed, of an earlier report:" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["its own", "changed since", "a link", "no manifest", "damaged manifest"])
def test_a_file_of_somebody_else_stays_and_is_named(tmp_path: Path, how: str, capsys) -> None:
    assert cli.report([str(DATA)], tmp_path) == 0
    picture = sorted(tmp_path.glob("*.png"))[0]
    if how == "its own":
        picture = tmp_path / "rig.png"
        picture.write_bytes(b"mine")
    elif how == "changed since":
        picture.write_bytes(picture.read_bytes() + b"x")
    elif how == "a link":
        picture.rename(tmp_path / "moved")
        picture.symlink_to("moved")
    else:
        (tmp_path / MANIFEST).unlink()
        (tmp_path / "report.md").unlink()
        (tmp_path / "report.html").unlink()
        if how == "damaged manifest":
            (tmp_path / MANIFEST).write_text("{")
    data = picture.read_bytes()
    capsys.readouterr()
    assert cli.report([str(DATA)], tmp_path, png=False) == 0
    assert picture.read_bytes() == data
    assert f"not of this report, and left as it is: {picture}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_a_file_that_no_report_wrote_is_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("my words")
    with pytest.raises(CouldNotRun, match=f"{name} is no report's"):
        cli.report([str(DATA)], tmp_path)
    assert (tmp_path / name).read_text() == "my words" and names(tmp_path) == {name}


@pytest.mark.parametrize("name", ["../kept.png", "sub/kept.png", "", ".", "..", "a\\b", "a\x00b"])
def test_a_manifest_reaches_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    kept = [tmp_path / "kept.png", out / "sub" / "kept.png"]
    for path in kept:
        path.write_bytes(b"kept")
    files = {name: [hashlib.sha256(b"kept").hexdigest()], "ours.png": [hashlib.sha256(b"kept").hexdigest()]}
    (out / "ours.png").write_bytes(b"kept")
    (out / MANIFEST).write_text(json.dumps({"schema": folder.SCHEMA, "version": 1, "files": files}))
    assert write_folder(out, {"report.md": "x"}).removed == (out / "ours.png",)
    assert all(path.exists() for path in kept)


NO_FILES: list[object] = [[], None, {"a.png": 5}, {"a.png": [5]}]


@pytest.mark.parametrize(
    "text",
    ["[]", '{"schema": "sm86.report-files", "version": 2, "files": {"a.png": []}}', "1", '{"files": {"a.png": []}}']
    + [json.dumps({"schema": "sm86.report-files", "version": 1, "files": files}) for files in NO_FILES],
)
def test_a_manifest_that_is_none_removes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.png").write_bytes(b"kept")
    (tmp_path / MANIFEST).write_text(text)
    written = write_folder(tmp_path, {"report.md": "x"})
    assert written.removed == () and written.foreign == (tmp_path / "a.png",)


def test_after_an_interruption_the_next_report_knows_its_files(tmp_path: Path, monkeypatch) -> None:
    write_folder(tmp_path, {"a.png": b"1", "b.png": b"1", "report.md": "1"})
    real = folder.write_atomic

    def stops(path: Path, data: str | bytes) -> None:
        if path.name == "report.md":
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(folder, "write_atomic", stops)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path, {"b.png": b"2", "c.png": b"2", "report.md": "2"})
    monkeypatch.setattr(folder, "write_atomic", real)
    written = write_folder(tmp_path, {"report.md": "3"})
    assert {path.name for path in written.removed} == {"a.png", "b.png", "c.png"} and written.foreign == ()


IN_THE_WAY = [
    *((name, "FIFO") for name in ("", "report.md", "report.html", MANIFEST)),
    *((name, "folder") for name in ("report.md", "report.html", MANIFEST)),
    *((name, "dangling link") for name in ("", "report.md", "report.html")),
    *((name, "file") for name in ("", "report.md", "report.html")),
]


@pytest.mark.parametrize(("name", "kind"), IN_THE_WAY)
def test_what_is_in_the_way_is_told_before_anything_is_written(tmp_path: Path, name: str, kind: str) -> None:
    out = tmp_path / "out"
    place = out / name
    place.parent.mkdir(exist_ok=True)
    make = {"folder": place.mkdir, "FIFO": lambda: os.mkfifo(place), "file": lambda: place.write_text("mine")}
    make.get(kind, lambda: place.symlink_to("nothing"))()
    with pytest.raises(CouldNotRun) as caught:
        cli.report([str(DATA)], out)
    assert str(place) in caught.value.what and "--out" in caught.value.mend
    assert [path.name for path in tmp_path.rglob("*")] == ["out", *([name] if name else [])]
