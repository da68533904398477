"""Generated traces of the real layer mix: totals per bucket and per layer must come out to the nanosecond."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest

from sm86.trace import units
from sm86.trace.analysis import FileResult, View, analyse
from sm86.trace.collect import GPU_CATEGORIES
from sm86.trace.kernels import Bucket
from sm86.trace.testing.generator import EAGER, GRAPHS, PIECEWISE, Recipe, Truth, write
from sm86.trace.testing.model import FLASH_LAYERS

SMALL = ("SWA", "CSA", "HCA", "CSA")


def made(folder: Path, recipe: Recipe, name: str = "rank0.json", **options: object) -> tuple[FileResult, Truth]:
    path = folder / name
    truth = write(path, recipe)
    return analyse(path, **options), truth  # type: ignore[arg-type]


def assert_exact(view: View | None, truth: Truth, first: int) -> None:
    """first: how many whole steps at the start are left out of the averages."""
    assert view is not None
    assert {row.bucket.key: [row.calls, row.total] for row in view.buckets} == truth.totals(first)
    for bucket in Bucket:
        found = {row.layer: row.cells[bucket][1] for row in view.per_layer if bucket in row.cells}
        assert found == truth.per_layer(bucket.key, first), bucket
    whole = truth.whole[first:]
    assert view.units == len(whole)
    assert view.total == sum(step["sum"] for step in whole)
    assert view.sum.mean * view.units == pytest.approx(sum(step["sum"] for step in whole))
    assert view.busy.mean * view.units == pytest.approx(sum(step["busy"] for step in whole))
    assert view.span.mean * view.units == pytest.approx(sum(step["span"] for step in whole))
    assert view.collectives == [tuple(step["collectives"]) for step in whole]


def test_the_real_layer_mix_with_partial_orphan_and_cut_graphs(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=6, partial=2, orphans=2))
    assert result.expected_counts() == truth.counts
    for view in (result.steps, result.graphs):
        assert_exact(view, truth, 0)
        assert view is not None and (view.partial, view.first) == (2, 0)
        assert view.layers == {"CSA": 21, "HCA": 20, "SWA": 2}
        assert [row.kind for row in view.per_layer if row.layer >= 0] == list(FLASH_LAYERS)
    assert result.counts.cut_launches == 1
    assert len(result.counts.orphan_groups) == 2
    assert sum(calls for _, bucket, calls, _ in result.outside if bucket is Bucket.SAMPLING) == 6


def test_without_annotations_graphs_are_the_unit(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=5, layers=SMALL, annotations=False))
    assert result.steps is None and result.main is result.graphs
    assert_exact(result.graphs, truth, 0)


def test_the_first_whole_unit_is_never_averaged(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=5, layers=SMALL, partial=0, orphans=0, cut_tail=False))
    assert_exact(result.steps, truth, 1)
    assert result.steps is not None and (result.steps.first, result.steps.partial) == (1, 0)


def test_a_single_step_is_averaged_for_want_of_others(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=1, layers=SMALL, partial=0, orphans=0, cut_tail=False))
    assert_exact(result.steps, truth, 0)


def test_piecewise_steps_hold_what_ran_outside_their_graphs(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=6, layers=SMALL, mode=PIECEWISE))
    assert_exact(result.steps, truth, 0)
    assert result.steps is not None and result.steps.layers == {"CSA": 2, "HCA": 1, "SWA": 1}
    assert result.graphs is not None
    inside = {row.bucket for row in result.graphs.buckets}
    assert Bucket.CSA not in inside and Bucket.INDEXER not in inside and Bucket.MOE_EXPERTS in inside
    assert result.expected_counts() == truth.counts


def test_eager_steps_need_no_graph(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=4, layers=SMALL, mode=EAGER, partial=0, orphans=0, cut_tail=False))
    assert result.graphs is None
    assert_exact(result.steps, truth, 1)


@pytest.mark.parametrize("mode", [GRAPHS, PIECEWISE, EAGER])
@pytest.mark.parametrize("window", [700, 1500, 4000])
def test_a_window_of_few_steps_gives_the_same_in_bounded_columns(tmp_path: Path, mode: str, window: int) -> None:
    recipe = Recipe(steps=30, layers=SMALL, mode=mode, partial=2, host_events=0)
    result, truth = made(tmp_path, recipe, window=window)
    assert result.expected_counts() == truth.counts
    assert_exact(result.steps, truth, 0)
    assert result.counts.late_events == 0


def reordered(path: Path, order: str, seed: int = 3) -> Path:
    """The same events in another order of the file."""
    value = json.loads(path.read_text())
    events = value["traceEvents"]
    if order == "kernels first":
        events.sort(key=lambda event: event["cat"] not in GPU_CATEGORIES)
    elif order == "kernels last":
        events.sort(key=lambda event: event["cat"] in GPU_CATEGORIES)
    elif order == "annotations last":
        events.sort(key=lambda event: event["cat"] == "user_annotation")
    else:
        # as buffers lie in memory: stretches of the file in any order, graphs cut by their borders
        stretches = [events[low : low + 900] for low in range(0, len(events), 900)]
        random.Random(seed).shuffle(stretches)
        events[:] = [event for stretch in stretches for event in stretch]
    out = path.with_name("reordered.json")
    out.write_text(json.dumps(value))
    return out


@pytest.mark.parametrize("mode", [GRAPHS, PIECEWISE, EAGER])
@pytest.mark.parametrize("order", ["kernels first", "kernels last", "annotations last", "stretches"])
@pytest.mark.parametrize("window", [3000, 1 << 19])
def test_the_order_in_the_file_does_not_matter(tmp_path: Path, mode: str, order: str, window: int) -> None:
    path = tmp_path / "rank0.json"
    truth = write(path, Recipe(steps=60, layers=SMALL, mode=mode, partial=2, host_events=0))
    result = analyse(reordered(path, order), window=window)
    if order == "stretches" and window < 10_000:
        # more disorder than the window holds: some units are given up on, but never averaged in part
        assert result.steps is not None and 20 < result.steps.units <= 60
        assert result.counts.late_events > 0 and result.steps.partial > 2
        assert set(result.steps.collectives) <= {tuple(step["collectives"]) for step in truth.whole}
        return
    assert result.expected_counts() == truth.counts
    assert_exact(result.steps, truth, 0)
    assert result.late_launches == result.counts.late_events == 0
    if window > 10_000:
        assert result.readings == 1


def test_what_comes_too_late_for_a_pipe_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    write(path, Recipe(steps=60, layers=SMALL, partial=0, host_events=0))
    text = reordered(path, "kernels first").read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(text), daemon=True)
    writer.start()
    result = analyse(pipe, window=3000)
    writer.join()
    assert result.readings == 1 and result.late_launches > 30
    assert len(result.counts.orphan_groups) > 30


def test_totals_are_exact_where_single_units_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "SERIES_BYTES", 3000)
    result, truth = made(tmp_path, Recipe(steps=30, layers=SMALL, host_events=0))
    view = result.steps
    assert view is not None and view.units == 30 and len(view.starts) == len(view.collectives) < 15
    assert {row.bucket.key: [row.calls, row.total] for row in view.buckets} == truth.totals()
    assert view.total == sum(step["sum"] for step in truth.whole)


def test_a_unit_larger_than_the_window_is_left_out_and_counted(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=4, layers=SMALL, partial=0, host_events=0), window=64)
    assert result.counts.gpu_events == truth.counts["gpu_events"]
    assert result.counts.late_events > 0


def test_the_fields_of_torch_2_13_tell_graphs_apart(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=5, layers=SMALL, graph_ids=True, partial=2))
    assert_exact(result.graphs, truth, 0)
    assert result.graphs is not None and result.graphs.partial == 2
    assert {row.label for row in result.graphs.shapes} == {"graph 11"}


def test_events_without_a_time_are_dropped_and_counted(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=5, layers=SMALL, timeless=4, partial=0, orphans=0))
    assert result.counts.without_time == 5 * 4
    assert result.counts.graph_gpu_events == truth.counts["graph_gpu_events"]
    view = result.graphs
    assert view is not None
    # every step lost other kernels, so no two have one shape; what is left is summed without the lost ones
    total = {row.bucket.key: row.total for row in view.buckets}
    last = truth.totals(1)
    assert total == {key: time for key, (_, time) in last.items()}


def test_gzip_and_host_stacks_change_nothing(tmp_path: Path) -> None:
    recipe = Recipe(steps=4, layers=SMALL, stack_events=50)
    result, truth = made(tmp_path, recipe, "rank0.json.gz")
    assert_exact(result.steps, truth, 0)


def test_the_standard_json_module_gives_the_same_totals(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=4, layers=SMALL), standard_json=True)
    assert_exact(result.steps, truth, 0)


def test_quotes_in_kernel_names_cost_no_event(tmp_path: Path) -> None:
    result, truth = made(tmp_path, Recipe(steps=6, layers=SMALL, bad_names=2))
    assert result.expected_counts() == truth.counts
    assert result.repaired == 2 and result.dropped == 0
    assert_exact(result.steps, truth, 0)


def test_steps_that_do_without_a_kernel_now_and_then_are_whole(tmp_path: Path) -> None:
    """A kernel that every fourth step lacks is how the model runs, not a loss: it comes back the same way."""
    path = tmp_path / "trace.json"
    events = []
    for number in range(40):
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "tid": 1, "ts": 1 + number, "dur": 1}
        events.append({**launch, "args": {"correlation": number}})
        for k in range(6 if number % 4 else 5):
            start = 100 * number + 10 * k + 50
            event = {"ph": "X", "cat": "kernel", "name": f"k{k}", "pid": 0, "tid": 7, "ts": start, "dur": 2}
            events.append({**event, "args": {"correlation": number}})
    path.write_text(json.dumps({"traceEvents": events}))
    view = analyse(path).graphs
    assert view is not None and (view.units, view.partial, view.first) == (39, 0, 1)


def test_one_call_recorded_twice_is_one_launch(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    launch = {"ph": "X", "tid": 1, "ts": 1, "dur": 1, "args": {"correlation": 5}}
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 9,
        "dur": 2,
        "args": {"correlation": 5},
    }
    runtime = {**launch, "cat": "cuda_runtime", "name": "cudaGraphLaunch"}
    driver = {**launch, "cat": "cuda_driver", "name": "cuGraphLaunch"}
    path.write_text(json.dumps({"traceEvents": [runtime, driver, kernel, kernel]}))
    assert analyse(path).counts.launches == 1


@pytest.mark.parametrize("name", ["unknown", "INVALID"])
def test_a_driver_call_without_a_name_is_a_launch_when_it_has_nodes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.json"
    launch = {"ph": "X", "cat": "cuda_driver", "name": name, "tid": 1, "ts": 1, "dur": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9, "dur": 2}
    events = [{**launch, "args": {"correlation": c}} for c in (5, 6)]
    events += [{**kernel, "args": {"correlation": 5}}] * 2 + [{**kernel, "args": {"correlation": 6}}]
    path.write_text(json.dumps({"traceEvents": events}))
    result = analyse(path)
    assert (result.counts.launches, result.counts.graphs_with_gpu_events, result.counts.orphan_groups) == (1, 1, [])
    assert result.counts.outside_events == 1


def test_the_check_bites(tmp_path: Path) -> None:
    """One kernel counted to the wrong bucket, or one nanosecond, must fail the comparison above."""
    result, truth = made(tmp_path, Recipe(steps=4, layers=SMALL))
    truth.whole[2]["buckets"]["mhc"][1] += 1
    with pytest.raises(AssertionError):
        assert_exact(result.steps, truth, 0)
