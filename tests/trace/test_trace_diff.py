"""Two traces: what moved, what lies within the spread, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.trace.analysis import analyse
from sm86.trace.as_json import trace_json
from sm86.trace.diff import MOVED, SAME, UNKNOWN, Diff, diff, side_of
from sm86.trace.testing import model
from sm86.trace.testing.generator import Recipe, write

LAYERS = ("SWA", "CSA", "HCA", "CSA")


def answer(path: Path, recipe: Recipe) -> dict:
    write(path, recipe)
    return json.loads(json.dumps(trace_json([analyse(path)], None, [])))


def judged(found: Diff) -> dict[str, str]:
    return {row.key: row.judgement for row in found.rows}


def test_the_same_work_twice_is_within_the_spread(tmp_path: Path) -> None:
    a = answer(tmp_path / "a.json", Recipe(steps=20, layers=LAYERS, seed=1))
    b = answer(tmp_path / "b.json", Recipe(steps=20, layers=LAYERS, seed=2))
    found = diff(side_of(a, "a"), side_of(b, "b"))
    assert set(judged(found).values()) == {SAME} and not found.moved and found.conditions == ()


def test_a_faster_kernel_moves_its_bucket_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = answer(tmp_path / "a.json", Recipe(steps=20, layers=LAYERS, seed=1))
    original = model._attention

    def faster(layer: int, kind: str) -> list[model.Node]:
        return [
            model.Node(n.name, n.bucket, n.layer, n.stream, n.usual_ns // 2, n.category, n.joins)
            if n.bucket == "csa_lightning_indexer"
            else n
            for n in original(layer, kind)
        ]

    monkeypatch.setattr(model, "_attention", faster)
    b = answer(tmp_path / "b.json", Recipe(steps=20, layers=LAYERS, seed=2))
    found = diff(side_of(a, "a"), side_of(b, "b"))
    moved = {key for key, word in judged(found).items() if word == MOVED}
    assert moved == {"csa_lightning_indexer", "sum", "busy", "span"}
    row = next(row for row in found.rows if row.key == "csa_lightning_indexer")
    assert row.b == pytest.approx(row.a / 2, rel=0.02)
    assert {bucket for _, bucket, _, _ in found.names} == {"csa_lightning_indexer"}
    assert found.moved


def test_another_number_of_calls_is_a_change(tmp_path: Path) -> None:
    a = answer(tmp_path / "a.json", Recipe(steps=5, layers=LAYERS))
    b = answer(tmp_path / "b.json", Recipe(steps=5, layers=(*LAYERS, "HCA")))
    found = diff(side_of(a, "a"), side_of(b, "b"))
    assert judged(found)["tp_all_reduce"] == MOVED
    assert any("layers" in line for line in found.conditions)


def test_few_steps_have_no_spread(tmp_path: Path) -> None:
    recipe = Recipe(steps=2, layers=LAYERS, partial=0, orphans=0, cut_tail=False)
    a, b = answer(tmp_path / "a.json", recipe), answer(tmp_path / "b.json", recipe)
    assert judged(diff(side_of(a, "a"), side_of(b, "b")))["mhc"] == UNKNOWN


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: {"schema": "sm86.record"}, "neither a trace nor an analysis"),
        (lambda v: [], "neither a trace nor an analysis"),
        (lambda v: {**v, "version": 99}, "version 99"),
        (lambda v: {**v, "files": []}, "damaged"),
        (lambda v: {**v, "files": [{}]}, "damaged"),
        (lambda v: {**v, "files": [{**v["files"][0], "steps": None, "graphs": None}]}, "no steps and no graphs"),
        (lambda v: {**v, "files": [{**v["files"][0], "steps": {"unit": "step"}}]}, "damaged"),
    ],
)
def test_what_is_no_answer_is_refused(tmp_path: Path, change, words: str) -> None:
    value = answer(tmp_path / "a.json", Recipe(steps=3, layers=("SWA",)))
    with pytest.raises(CouldNotRun, match=words):
        side_of(change(value), "x.json")


@pytest.mark.parametrize("wide", ["first", "second"])
def test_the_spread_of_either_side_covers_a_change(tmp_path: Path, wide: str) -> None:
    sides = []
    for name, median in (("first", 100.0), ("second", 110.0)):
        value = answer(tmp_path / f"{name}.json", Recipe(steps=9, layers=("SWA",)))
        reach = 60.0 if name == wide else 0.1
        spread = {"median": median, "mean": median, "quartile_1": median - reach, "quartile_3": median + reach}
        value["files"][0]["steps"]["buckets"]["mhc"]["spread_us"].update(spread)
        sides.append(side_of(value, name))
    assert judged(diff(*sides))["mhc"] == SAME


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("spread_us", "median"), None),
        (("spread_us", "mean"), "12"),
        (("spread_us", "quartile_3"), 10**400),
        (("spread_us", "quartile_1"), float("nan")),
        (("calls_per_unit",), [7]),
        (("calls_per_unit",), True),
        (("names", 0, "per_unit_us"), float("inf")),
        (("names", 0, "name"), 5),
    ],
)
def test_a_value_of_another_type_is_told_before_it_is_reckoned_with(tmp_path: Path, place, wrong: object) -> None:
    value = answer(tmp_path / "a.json", Recipe(steps=3, layers=("SWA",)))
    *parents, last = place
    target = value["files"][0]["steps"]["buckets"]["mhc"]
    for name in parents:
        target = target[name]
    assert last in target or parents
    target[last] = wrong
    with pytest.raises(CouldNotRun, match="damaged"):
        side_of(value, "x.json")


def test_names_of_a_saved_answer_send_nothing_to_the_terminal(tmp_path: Path) -> None:
    value = answer(tmp_path / "a.json", Recipe(steps=3, layers=("SWA",)))
    value["files"][0]["steps"]["buckets"]["mhc"]["names"][0]["name"] = "odd\x1b[2J\ud800"
    value["files"][0]["counts"]["device"] = "GPU\x1b[31m"
    side = side_of(value, "x.json")
    assert side.device == "GPU\\x1b[31m" and any("odd\\x1b[2J\\ud800" in name for _, name in side.names)


def test_steps_do_not_compare_with_graphs(tmp_path: Path) -> None:
    a = answer(tmp_path / "a.json", Recipe(steps=4, layers=LAYERS))
    with pytest.raises(CouldNotRun, match="do not compare"):
        diff(side_of(a, "a"), side_of(a, "a", "graph"))
