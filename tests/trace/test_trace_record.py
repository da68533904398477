"""A trace becomes a record that the report and the comm matrix read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm86.cli.trace import trace
from sm86.errors import CouldNotRun
from sm86.record import latest
from sm86.report.sound import fault

DATA = Path(__file__).parent / "data"
GRAPHS = DATA / "t01_hta_a100_cudagraph70.json.gz"


def test_the_record_holds_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path / "results"))
    assert trace(str(GRAPHS), record=True, envelope="sm86-64k") == 0
    made = latest("sm86-64k", "trace", tmp_path / "results")
    assert made is not None and fault(made) == ""
    (file,) = made.details["trace"]["files"]
    assert file["graphs"]["units"] > 0 and made.numbers[0].value == file["graphs"]["span_us"]["median"] / 1000
    assert [gpu["name"] for gpu in made.conditions.gpus][:1] == ["NVIDIA A100-SXM4-80GB"]


def test_the_report_shows_its_buckets_and_says_what_gpu_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sm86.cli.report import report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path / "results"))
    trace(str(GRAPHS), record=True, envelope="sm86-64k")
    assert report(["results"], "out", png=False) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "other GPU" in text and "| kind of kernel |" in text and "graphs averaged" in text


def test_a_record_needs_its_envelope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path / "results"))
    with pytest.raises(CouldNotRun, match="the envelope that was traced"):
        trace(str(GRAPHS), record=True)
    assert not (tmp_path / "results").exists()


def test_a_trace_without_graphs_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path / "results"))
    with pytest.raises(CouldNotRun, match="nothing to record"):
        trace(str(DATA / "t11_kineto_tb_resnet50_2021.json.gz"), record=True, envelope="sm86-64k")
    assert not (tmp_path / "results").exists()
