"""The end in numbers: the record, the comm matrix against its baseline, the curve."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sm86.errors import CouldNotRun
from sm86.ladder import matrix, summary
from sm86.ladder import state as s
from sm86.ladder.rungs import COMM, SEQUENCE, rungs
from sm86.ladder.state import Outcome, State
from sm86.record import Conditions, Record
from sm86.record.schema import from_json
from sm86.report import curve
from tests.ladder.hands import CONDITIONS

NOW = datetime(2026, 5, 1, tzinfo=UTC)
CURVE = {"sm86-262k": 59.0, "sm86-176k-2seq": 81.0, "sm86-114k-3seq": 104.0, "sm86-80k-4seq": 119.0}


def sequence(values=CURVE, conditions: Conditions = CONDITIONS, comparison: str = "within noise") -> Record:
    found = rungs(SEQUENCE)
    state = State(s.identity_of(SEQUENCE, "docker", found, None, None, "", ()), "2026-05-01T12:00:00Z")
    for key, value in values.items():
        outcome = Outcome(key, s.PASSED, tok_s=(value - 0.5, value, value + 0.5), comparison=comparison)
        state = state.with_outcome(outcome)
    return summary.to_record(SEQUENCE, state, found, conditions, NOW, 12.0)


def comm(values, rounds: int = 1) -> tuple[State, tuple]:
    found = rungs(COMM, rounds=rounds, gate=False)
    state = State(s.identity_of(COMM, "docker", found, None, None, "", ()), "2026-05-01T12:00:00Z")
    for rung in found:
        if not rung.boots:
            state = state.with_outcome(Outcome(rung.key, s.INERT, text="no table"))
        elif rung.key in values:
            state = state.with_outcome(Outcome(rung.key, s.PASSED, tok_s=values[rung.key]))
    return state, found


STEADY = {"as-it-is": (55.0, 55.5, 55.2), "tree-simple": (54.8, 55.3, 55.0), "ring-simple": (55.1, 55.4, 55.2)}


def test_the_record_has_a_number_and_a_verdict_for_each_rung_and_comes_back() -> None:
    record = sequence()
    assert [number.value for number in record.numbers] == list(CURVE.values())
    assert [verdict.state for verdict in record.verdicts] == ["pass"] * 4
    assert record.details["complete"] is True and record.details["stopped_by"] is None
    assert record.envelope == "ladder-sequence" and from_json(record.to_json(), "here").to_json() == record.to_json()


def test_a_rung_that_was_not_reached_is_not_seen() -> None:
    record = sequence({"sm86-262k": 59.0})
    assert [verdict.state for verdict in record.verdicts] == ["pass", "not seen", "not seen", "not seen"]
    assert record.details["complete"] is False and len(record.numbers) == 1


def test_within_noise_the_matrix_names_the_next_lever() -> None:
    state, found = comm({**STEADY, "tree-ll128": (55.9, 56.2, 56.0)})
    rows = summary.rows(state, found)
    assert {one.title: one.word for one in summary.matrix_rows(rows)} == {
        "Tree, Simple": "within noise",
        "Ring, Simple": "within noise",
        "Tree, LL128": "within noise",
    }
    assert summary.conclusion(rows) == matrix.NO_LEVER


def test_a_setting_wins_only_beyond_the_spread() -> None:
    state, found = comm({**STEADY, "tree-ll128": (60.0, 60.3, 60.1)})
    rows = summary.rows(state, found)
    assert "Tree, LL128 is faster" in summary.conclusion(rows) and "+8.9 %" in summary.conclusion(rows)
    # the same median with a spread as large as the difference
    state, found = comm({**STEADY, "tree-ll128": (54.0, 60.3, 60.1)})
    assert summary.conclusion(summary.rows(state, found)) == matrix.NO_LEVER


def test_rounds_count_together_so_that_drift_between_boots_is_noise() -> None:
    values = {**STEADY, "tree-ll128": (57.5, 57.6, 57.4)}
    second = {f"{key}-round-2": tuple(v + 3 for v in value) for key, value in STEADY.items()}
    second["tree-ll128-round-2"] = (57.5, 57.6, 57.4)
    state, found = comm({**values, **second}, rounds=2)
    words = {one.title: one.word for one in summary.matrix_rows(summary.rows(state, found))}
    assert words["Tree, LL128"] == "within noise"


def test_an_incomplete_matrix_says_nothing() -> None:
    state, found = comm({"as-it-is": (55.0,)})
    assert "not complete" in summary.conclusion(summary.rows(state, found))


def test_the_curve_stands_beside_the_published_one() -> None:
    points = curve.points(sequence())
    assert [(point.sequences, point.value, point.published) for point in points] == [
        (1, 59.0, 59.6),
        (2, 81.0, 81.3),
        (3, 104.0, 104.5),
        (4, 119.0, 120.1),
    ]
    text = "\n".join(curve.table(sequence()))
    assert "59.0 (58.5 to 59.5)" in text and "120.1" in text and "passed, within noise" in text


def test_marked_numbers_say_so_in_every_line_and_stand_beside_nothing() -> None:
    record = sequence(conditions=replace(CONDITIONS, mark="emulated"))
    lines = curve.table(record)[1:]
    assert all(line.endswith("[emulated]") for line in lines)
    assert all(point.published is None for point in curve.points(record)) and "59.6" not in "\n".join(lines)


def test_a_number_of_another_rig_stands_beside_nothing() -> None:
    record = sequence(comparison="cannot be compared")
    assert all(point.published is None for point in curve.points(record))
    assert all("cannot be compared" in line and "120.1" not in line for line in curve.table(record)[1:])


def test_a_rung_without_a_number_still_shows_what_is_published() -> None:
    assert [point.published for point in curve.points(sequence({"sm86-262k": 59.0}))] == [59.6, 81.3, 104.5, 120.1]


@pytest.mark.parametrize("x", ["sequences", "context"])
def test_the_plot_is_a_picture(x: str) -> None:
    assert curve.plot(sequence(), x).startswith(b"\x89PNG")
    assert curve.plot(sequence({"sm86-262k": 59.0}), x).startswith(b"\x89PNG")


def test_without_a_number_or_a_ladder_there_is_no_curve() -> None:
    with pytest.raises(CouldNotRun, match="no rung has a number"):
        curve.plot(sequence({}))
    with pytest.raises(CouldNotRun, match="has no curve"):
        curve.points(replace(sequence(), kind="bench"))


def test_without_matplotlib_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CouldNotRun, match="matplotlib is not installed"):
        curve.plot(sequence())
