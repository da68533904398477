"""The JSON of an analysis. Pure. Times are in microseconds with three decimals."""

from __future__ import annotations

from typing import Any

from sm86.trace.analysis import BucketRow, FileResult, ShapeRow, Spread, View
from sm86.trace.idle import idle_of
from sm86.trace.kernels import Bucket
from sm86.trace.ranks import Comparison

SCHEMA = "sm86.trace"
VERSION = 1
TOP_NAMES = 12


def us(ns: float) -> float:
    """Microseconds of nanoseconds."""
    return round(ns / 1000, 3)


def trace_json(results: list[FileResult], comparison: Comparison | None, notes: list[str]) -> dict[str, Any]:
    """The whole answer: every file, and the ranks beside one another where several were given."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "files": [file_json(result) for result in results],
        "ranks": comparison_json(comparison) if comparison else None,
        "notes": notes,
    }


def file_json(result: FileResult) -> dict[str, Any]:
    """One file; `counts` uses the names of the answer key of real traces."""
    counts = result.counts
    return {
        "file": result.path.name,
        "world_size": result.world_size,
        "counts": result.expected_counts(),
        "left_out": {
            "cut_launches": counts.cut_launches,
            "orphan_us": us(counts.orphan_ns),
            "events_without_time": counts.without_time,
            "late_events": counts.late_events,
            "annotations_not_listed": counts.annotations_not_listed,
        },
        "reading": {
            "repaired": result.repaired,
            "dropped": result.dropped,
            "truncated": result.truncated,
            "readings": result.readings,
        },
        "steps": view_json(result.steps) if result.steps else None,
        "graphs": view_json(result.graphs) if result.graphs else None,
        "idle": _idle(result),
        "outside": [
            {"name": name, "bucket": bucket.key, "calls": calls, "total_us": us(time)}
            for name, bucket, calls, time in result.outside[:40]
        ],
        "outside_calls": sum(calls for _, _, calls, _ in result.outside),
        "outside_us": us(sum(time for _, _, _, time in result.outside)),
    }


def _idle(result: FileResult) -> dict[str, Any] | None:
    found = idle_of(result)
    if found is None:
        return None
    return {
        "per_step_us": us(found.idle),
        "in_graphs_us": us(found.in_graphs),
        "launched_alone": round(found.alone, 3),
        "host_limits": found.host,
        "text": found.words(),
    }


def spread_json(spread: Spread) -> dict[str, float]:
    return {
        "median": us(spread.median),
        "mean": us(spread.mean),
        "min": us(spread.low),
        "max": us(spread.high),
        "quartile_1": us(spread.quartile_1),
        "quartile_3": us(spread.quartile_3),
    }


def view_json(view: View) -> dict[str, Any]:
    """All steps or all graphs. `units` are averaged; `left_out` says what is not, and why."""
    return {
        "unit": view.unit,
        "label": view.label,
        "seen": view.seen,
        "units": view.units,
        "spreads_of_units": len(view.starts),
        "left_out": {"partial": view.partial, "first_of_session": view.first, "not_comparable": view.odd},
        "sum_us": spread_json(view.sum),
        "busy_us": spread_json(view.busy),
        "span_us": spread_json(view.span),
        "total_us": us(view.total),
        "layers": view.layers,
        "layers_agree": view.layers_agree,
        "buckets": {row.bucket.key: _bucket(row, view) for row in view.buckets},
        "tp_all_reduce_per_layer_us": [
            {"layer": layer, "per_unit": us(time)} for layer, time in view.all_reduce_per_layer
        ],
        "per_layer": [
            {
                "layer": row.layer,
                "kind": row.kind,
                "buckets": {b.key: {"calls": c, "total_us": us(t)} for b, (c, t) in row.cells.items()},
            }
            for row in view.per_layer
        ],
        "shapes": [_shape(row) for row in sorted(view.shapes, key=lambda row: -row.units * row.nodes)[:64]],
    }


def _bucket(row: BucketRow, view: View) -> dict[str, Any]:
    return {
        "title": row.bucket.title,
        "calls": row.calls,
        "total_us": us(row.total),
        "calls_per_unit": round(row.calls / view.units, 3),
        "per_unit_us": us(row.total / view.units),
        "share": round(row.total / view.total, 6) if view.total else 0.0,
        "spread_us": spread_json(row.per_unit),
        "names": [
            {"name": name, "calls": calls, "total_us": us(time), "per_unit_us": us(time / view.units)}
            for name, calls, time in row.names[:TOP_NAMES]
        ],
        "names_not_listed": max(0, len(row.names) - TOP_NAMES),
    }


def _shape(row: ShapeRow) -> dict[str, Any]:
    return {
        "label": row.label,
        "nodes": row.nodes,
        "graphs": row.graphs,
        "units": row.units,
        "averaged": row.averaged,
        "why_not": row.why_not,
        "sum_us": us(row.sum.median),
        "busy_us": us(row.busy.median),
        "span_us": us(row.span.median),
        "layers": row.layers,
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Ranks beside one another; times per unit."""
    return {
        "unit": comparison.unit,
        "units": comparison.units,
        "work_us": {bucket.key: us(time) for bucket, time in comparison.work.items()},
        "calls": {bucket.key: round(calls, 3) for bucket, calls in comparison.calls.items()},
        "slowest_rank": comparison.slowest.rank,
        "ranks_missing": list(comparison.ranks_missing),
        "ranks": [
            {
                "rank": row.rank,
                "file": row.path.name,
                "span_us": us(row.span),
                "own_us": {bucket.key: us(time) for bucket, time in row.own.items()},
                "waiting_us": {bucket.key: us(time) for bucket, time in row.waiting.items()},
            }
            for row in comparison.rows
        ],
    }


def title_of(key: str) -> str:
    """The table's word for a bucket's JSON name; the name itself when it is none of ours."""
    return next((bucket.title for bucket in Bucket if bucket.key == key), key)
