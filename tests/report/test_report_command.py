"""`invoke report`: files in, files out, words and exit codes."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from sm86.cli import report as cli
from sm86.errors import CouldNotRun
from sm86.record import save
from sm86.report import png as pictures
from sm86.report.charts import Bar, Bars, Line, Lines, Stack, Stacks, ticks
from sm86.report.svg import svg
from tests.report import made_up

DATA = Path(__file__).parent / "data"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copytree(DATA, tmp_path / "results")
    return tmp_path / "results"


def make(results: Path, **options) -> int:
    return cli.report([str(results)], results.parent / "out", **{"png": False, **options})


def page(results: Path) -> str:
    return (results.parent / "out" / "report.html").read_text()


def test_page_markdown_and_pictures(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(results, png=True) == 0
    out = results.parent / "out"
    said = capsys.readouterr().out
    assert "AMD EPYC, 2 cores [CPU]: 1 boot, 1 verify, 1 bench" in said
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "report.md"} < names
    drawn = sorted(path.name for path in out.glob("*.png"))
    assert len(drawn) == 3
    for name in drawn:
        assert (out / name).read_bytes().startswith(b"\x89PNG") and f"]({name})" in (out / "report.md").read_text()


def test_json_says_what_was_made(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(results, json=True) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["schema"], value["version"]) == ("sm86.report", 1)
    assert value["machines"][0]["mark"] == "CPU" and len(value["machines"][0]["records"]) == 3
    assert [Path(file).name for file in value["files"]] == ["report.html", "report.md"]


def test_dry_run_writes_nothing(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(results, dry_run=True) == 0
    assert not (results.parent / "out").exists()
    assert "nothing was written" in capsys.readouterr().out


def test_the_same_file_named_twice_counts_once(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = next(results.rglob("*-boot.json"))
    assert cli.report([str(one), str(one), str(results)], results.parent / "out", json=True, png=False) == 0
    assert len(json.loads(capsys.readouterr().out)["machines"][0]["records"]) == 3


def test_its_own_files_are_no_records(results: Path) -> None:
    out = results / "report"
    assert cli.report([str(results)], out, png=False) == 0
    (out / "left.json").write_text("{")
    assert cli.report([str(results)], out, png=False) == 0


class TestBadInput:
    def test_no_records(self, tmp_path: Path) -> None:
        with pytest.raises(CouldNotRun, match="no record to report on"):
            cli.report([str(tmp_path)], tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_no_such_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CouldNotRun, match="there is no file or folder"):
            cli.report([str(tmp_path / "nope")], tmp_path / "out")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[" * 200_000, "not JSON"),
            ('{"schema": "sm86.record", "version": 2}', "record of version 2"),
            ('{"schema": "sm86.record", "version": 1}', "damaged"),
            ('{"schema": "sm86.record", "version": 1, "kind": "boot", "envelope": 5}', "damaged"),
        ],
    )
    def test_a_file_that_cannot_be_shown_is_named(self, results: Path, text: str, why: str, capsys) -> None:
        (results / "bad.json").write_text(text)
        assert make(results) == 1
        assert f"not in the report: bad.json: {why}" in capsys.readouterr().err.replace("it is ", "").replace(
            "a record", "record"
        )
        assert "Files that were not read" in page(results) and "bad.json" in page(results)

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"kind": ["boot"]}, "kind or envelope is no text"),
            ({"envelope": ""}, "kind or envelope is no text"),
            ({"seconds": -1}, "it took -1 seconds"),
            ({"details": []}, "details are no object"),
            ({"details": {"a": [{"b": float("inf")}]}}, "no finite number"),
            ({"details": {"a": [10**400]}}, "no finite number"),
            ({"details": {"a": {"\ud800": 1}}}, "no Unicode"),
            ({"envelope": "sm86-\udfff"}, "no Unicode"),
            ({"seconds": 10**400}, "it took 1"),
            ({"started": "2026-01-01T00:00:00"}, "no zone"),
            ({"numbers": [{"name": "x", "value": float("nan"), "unit": "s", "repeats": [], "note": ""}]}, "no finite"),
            ({"numbers": [{"name": "x", "value": "7", "unit": "s", "repeats": [], "note": ""}]}, "no finite"),
            ({"verdicts": [{"name": "x", "state": None, "text": ""}]}, "a verdict is no text"),
        ],
    )
    def test_a_record_with_wrong_values_is_named(self, results: Path, change: dict, why: str, capsys) -> None:
        value = json.loads(next(results.rglob("*-boot.json")).read_text())
        (results / "bad.json").write_text(json.dumps(value | change))
        assert make(results) == 1
        assert why in capsys.readouterr().err

    def test_names_send_nothing_to_the_terminal(self, results: Path, capsys) -> None:
        value = json.loads(next(results.rglob("*-boot.json")).read_text())
        (results / "odd.json").write_text(json.dumps(value | {"kind": "odd\x1b[31m"}))
        (results / "bad\x1b[2J.json").write_text("{")
        assert make(results) == 1
        said = capsys.readouterr()
        assert "odd\\x1b[31m" in said.out and "bad\\x1b[2J.json" in said.err
        assert "\x1b" not in said.out + said.err

    def test_what_never_was_a_record_is_listed_and_no_fault(self, results: Path, capsys) -> None:
        (results / "state.json").write_text('{"schema": "sm86.other", "version": 1}')
        (results / ".half.json").write_text("{")
        assert make(results) == 0
        assert "sm86.other" in page(results) and ".half" not in page(results)

    def test_a_huge_file_is_not_read(self, results: Path, monkeypatch, capsys) -> None:
        monkeypatch.setattr(cli, "MAX_FILE_BYTES", 20_000)
        assert make(results) == 1
        assert "bench.json: it is larger than" in capsys.readouterr().err

    def test_too_many(self, results: Path, monkeypatch) -> None:
        monkeypatch.setattr(cli, "MAX_RECORDS", 2)
        with pytest.raises(CouldNotRun, match="more than 2 files"):
            make(results)

    def test_a_pipe_is_not_waited_for(self, results: Path, capsys) -> None:
        os.mkfifo(results / "pipe.json")
        assert make(results) == 1
        assert "no regular file" in capsys.readouterr().err

    def test_a_folder_that_takes_nothing(self, results: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("a file")
        with pytest.raises(CouldNotRun, match="is no folder, and a report is a folder"):
            make(results)

    def test_hide_needs_redact(self, results: Path) -> None:
        with pytest.raises(CouldNotRun, match="--redact is not given"):
            make(results, hide=("rig7",))

    @pytest.mark.parametrize("name", ["", "ab", "  x "])
    def test_a_name_too_short_to_hide_is_told(self, results: Path, name: str) -> None:
        with pytest.raises(CouldNotRun, match="inside other words"):
            make(results, redact=True, hide=(name,))
        assert not (results.parent / "out").exists()

    def test_what_a_person_names_is_hidden_however_usual(self, results: Path) -> None:
        assert make(results, redact=True, hide=("Linux", "AMD EPYC")) == 0
        assert "Linux" not in page(results) and "EPYC" not in page(results) and "[name 1]" in page(results)


def test_many_records_make_a_page_of_bounded_size(tmp_path: Path) -> None:
    for number in range(300):
        save(made_up.bench("sm86-262k", 50 + number / 100, number), tmp_path / "results")
    assert cli.report([str(tmp_path / "results")], tmp_path / "out", png=False) == 0
    assert (tmp_path / "out" / "report.html").stat().st_size < 1_000_000


CHARTS = (
    Bars("a < b & $x$", "tok/s", (Bar("one", 1.0), Bar("<two>", 2.0, 1.5, 2.5, 2.2)), "CPU"),
    Bars("none", "s", ()),
    Bars("zero", "s", (Bar("nothing", 0.0),)),
    Lines(
        "lines", "x", "y", (Line("a", ((1.0, 2.0), (2.0, 3.0))), Line("b", ((1.0, 0.0),), published=True)), None, True
    ),
    Lines("band", "s", "tokens", (Line("a", ((0.0, 0.0), (9.0, 5.0)), dots=False),), (1.0, 20.0, "window")),
    Stacks("memory", "GiB", (Stack("r0", (("weights", 18.5), ("pool", 3.0))), Stack("r1", ())), (24.0, "limit")),
)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_every_chart_is_drawn_twice(chart) -> None:
    import xml.etree.ElementTree as ElementTree

    from PIL import Image

    for width in (340, 760):
        root = ElementTree.fromstring(svg(chart, width))
        assert root.get("viewBox", "").startswith(f"0 0 {width} ")
        assert chart.title in {text.text for text in root.iter("text")}
        if chart.mark:
            assert any(chart.mark in (text.text or "") for text in root.iter("text"))
    picture = Image.open(io.BytesIO(pictures.png(chart)))
    assert picture.width > 600 and picture.height > 100


@pytest.mark.parametrize(("top", "last"), [(0, 1), (0.003, 0.003), (1, 1), (7, 8), (118.8, 125), (999, 1000)])
def test_ticks_are_round_and_reach(top: float, last: float) -> None:
    assert ticks(top)[-1] == pytest.approx(last) and ticks(top)[0] == 0


def test_the_task_is_wired(results: Path) -> None:
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    argv = [sys.executable, "-m", "invoke", "-r", str(root), "report", "--records", f"{results},{results}"]
    argv += ["--out", "out", "--redact", "--hide", "EPYC", "--title", "Of <one> machine", "--no-png", "--json"]
    done = subprocess.run(argv, cwd=results.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["redacted"] is True
    text = page(results)
    assert "Of &lt;one&gt; machine" in text and "EPYC" not in text and "[name 1]" in text
