"""Real traces from public repositories: every number of the answer key, by every way of reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm86.trace.analysis import analyse

DATA = Path(__file__).parent / "data"
KEY = json.loads((DATA / "expected.json").read_text())


@pytest.mark.parametrize("name", sorted(KEY))
def test_every_number_of_the_answer_key(name: str) -> None:
    result = analyse(DATA / name)
    assert result.expected_counts() == KEY[name]
    assert (result.dropped, result.repaired, result.truncated) == (0, 0, "")


@pytest.mark.parametrize("name", ["t01_hta_a100_cudagraph70.json.gz", "t07_tl_vllm_rocm_full_decode.json.gz"])
def test_the_standard_json_module_gives_the_same(name: str) -> None:
    assert analyse(DATA / name, standard_json=True).expected_counts() == KEY[name]


@pytest.mark.parametrize("name", sorted(KEY))
def test_a_small_window_changes_no_number(name: str) -> None:
    assert analyse(DATA / name, window=1000).expected_counts() == KEY[name]


def test_the_vllm_step_is_found_by_its_annotation() -> None:
    result = analyse(DATA / "t07_tl_vllm_rocm_full_decode.json.gz")
    assert result.steps is not None and result.graphs is not None
    assert (result.steps.units, result.steps.label) == (1, "decode 32")
    assert result.graphs.total == 10_388_482
    # the step holds its graph and 13 events launched one by one; nothing is left outside
    assert sum(row.calls for row in result.steps.buckets) == 434
    assert result.outside == ()


def test_graphs_of_many_shapes_are_all_averaged() -> None:
    view = analyse(DATA / "t01_hta_a100_cudagraph70.json.gz").main
    assert view is not None and view.unit == "graph"
    assert (view.seen, view.units, view.first, view.partial) == (70, 69, 1, 0)
    assert len(view.shapes) == 14
