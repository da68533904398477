"""Plans and rig checks become records, and the report shows them for what they are: computed, or looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm86.cli import doctor, plan
from sm86.cli.report import report
from sm86.errors import CouldNotRun
from sm86.record import latest
from sm86.report.sound import fault


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def test_a_plan_is_recorded_and_shown_as_computed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.plan("sm86-262k", record=True) == 0
    made = latest("sm86-262k", "plan", results)
    assert made is not None and fault(made) == "" and "record: " in capsys.readouterr().out
    assert report([str(results)], results.parent / "out", png=False) == 0
    text = (results.parent / "out" / "report.md").read_text()
    assert "Computed before the start, not measured" in text and "| KV pool | 1.24 |" in text
    assert "1 x 262,144 tokens, 1,280 KV blocks. Verdict: fits" in text
    # nothing computed enters what may be published
    assert "Missing: the longest context" in text


def test_every_envelope_at_once(results: Path) -> None:
    plan.plan(record=True)
    assert {path.parent.name for path in results.rglob("*-plan.json")} >= {"sm86-64k", "sm86-262k", "sm86-80k-4seq"}
    assert report([str(results)], results.parent / "out", png=False) == 0


@pytest.mark.parametrize("other", [{"fit": True}, {"context": 8192}, {"what_if": True}])
def test_a_record_is_of_an_envelope_as_it_is(results: Path, other: dict) -> None:
    with pytest.raises(CouldNotRun, match="a shipped envelope's own plan"):
        plan.plan(**{"envelope": None, "record": True, **other})
    assert not results.exists()


def test_the_doctors_findings_are_recorded(results: Path) -> None:
    facts = results.parent / "topo.txt"
    links = "\n".join(
        f"GPU{i}\t" + "\t".join("X" if i == j else "PHB" for j in range(8)) + "\t0-31\t0" for i in range(8)
    )
    facts.write_text("\t" + "\t".join(f"GPU{i}" for i in range(8)) + "\tCPU Affinity\tNUMA Affinity\n" + links + "\n")
    doctor.doctor(from_file=str(facts), record=True)
    made = latest("sm86-262k", "doctor", results)
    assert made is not None and fault(made) == "" and made.verdicts
    assert report([str(results)], results.parent / "out", redact=True, png=False) == 0
    text = (results.parent / "out" / "report.md").read_text()
    assert "## " in text and "Rig check" in text
    assert any(verdict.name in text for verdict in made.verdicts)
