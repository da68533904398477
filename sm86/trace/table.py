"""The words and tables of an analysis in the terminal; piped output has no control characters."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from sm86.trace.analysis import FileResult, View
from sm86.trace.as_json import title_of
from sm86.trace.diff import Diff
from sm86.trace.idle import idle_of
from sm86.trace.kernels import Bucket, short_name
from sm86.trace.ranks import Comparison

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 132
OTHER_NAMES = 6


def console(file: IO[str] | None = None) -> Console:
    """A console for `file` (stdout); as wide as the terminal, PIPED_WIDTH where there is none."""
    from rich.console import Console

    made = Console(file=file, highlight=False, markup=False, emoji=False)
    return (
        made if made.is_terminal else Console(file=file, highlight=False, markup=False, emoji=False, width=PIPED_WIDTH)
    )


def print_result(out: Console, result: FileResult, tpot_ms: float | None = None, alone: bool = True) -> None:
    """One file: what was read, what was left out, the buckets, layers, and what lies outside.

    alone: no other rank of it was given.
    """
    out.print(_headline(result), style="bold", soft_wrap=True)
    for line in _reading(result):
        out.print("  " + line, soft_wrap=True)
    view = result.main
    if view is not None:
        for line in _view_lines(view, result, tpot_ms):
            out.print("  " + line, soft_wrap=True)
        out.print(_bucket_table(view, out.width >= 116))
        for line in _below(view, alone and (result.world_size or 0) > 1):
            out.print("  " + line, soft_wrap=True)
        if result.steps is not None and result.graphs is not None:
            for line in _graphs_beside_steps(result.graphs):
                out.print("  " + line, soft_wrap=True)
    _print_outside(out, result)


def _headline(result: FileResult) -> str:
    rank = "" if result.rank is None else f", rank {result.rank}"
    world = f" of {result.world_size}" if rank and result.world_size else ""
    return f"{result.path.name}: {result.device or 'GPU without a name'}{rank}{world}"


def _reading(result: FileResult) -> list[str]:
    counts = result.counts
    lines = [
        f"{result.events:,} events, {counts.gpu_events:,} of the GPU; "
        f"{plural(counts.launches, 'graph launch', 'graph launches')}, "
        f"{counts.graphs_with_gpu_events:,} with GPU events ({counts.graph_gpu_events:,}, "
        f"{counts.nodes_min}-{counts.nodes_max} per graph)"
    ]
    left_out = []
    if counts.orphan_groups:
        events = sum(counts.orphan_groups)
        left_out.append(
            f"{plural(len(counts.orphan_groups), 'orphan graph')}"
            f" ({events:,} events, {ms(counts.orphan_ns)} ms; launched before)"
        )
    if counts.cut_launches:
        left_out.append(f"{plural(counts.cut_launches, 'launch', 'launches')} without GPU events (cut)")
    if counts.without_time:
        left_out.append(f"{counts.without_time:,} GPU events without a time")
    if counts.late_events:
        left_out.append(f"{counts.late_events:,} events far behind the rest of their graph or step")
    if left_out:
        lines.append("left out: " + "; ".join(left_out))
    if result.truncated:
        lines.append(f"incomplete: {result.truncated}; everything before that is counted")
    if result.repaired or result.dropped:
        lines.append(f"broken JSON: {result.repaired:,} events mended, {result.dropped:,} dropped")
    if counts.gpu_before_launch:
        lines.append(
            f"{counts.gpu_before_launch:,} GPU events start before their launch: clocks disagree; joined by id"
        )
    if result.readings > 1:
        lines.append("launches stand far behind their kernels in this file: it was read twice")
    elif result.late_launches:
        lines.append(
            f"{result.late_launches:,} launches or steps stand too far behind their kernels to be joined in one pass"
        )
    return lines


def _view_lines(view: View, result: FileResult, tpot_ms: float | None) -> list[str]:
    left_out = []
    if view.partial:
        left_out.append(f"{view.partial} partial")
    if view.first:
        left_out.append("the session's first")
    if view.odd:
        left_out.append(f"{view.odd} of another kind")
    words = f"{plural(view.units, view.unit)} averaged" + (f" ({view.label})" if view.label else "")
    lines = [words + (f"; left out: {', '.join(left_out)}" if left_out else "")]
    idle = view.span.median - view.busy.median
    lines.append(
        f"per {view.unit} (median): sum {ms(view.sum.median)} ms, busy {ms(view.busy.median)} ms, "
        f"span {ms(view.span.median)} ms ({ms(view.span.low)}-{ms(view.span.high)}), idle inside {ms(idle)} ms"
    )
    found = idle_of(result)
    if found is not None and view.unit == "step" and found.host:
        lines.append(found.words())
    if tpot_ms:
        ratio = view.span.median / 1e6 / tpot_ms
        lines.append(
            f"tracing: span is {ratio:.2f} times the unprofiled {tpot_ms:g} ms per token"
            + ("; the profiler slows this rig, so trust shares more than times" if ratio > 1.1 else "")
        )
    if view.layers:
        every = ", ".join(f"{count} {kind}" for kind, count in view.layers.items())
        agree = "" if view.layers_agree else f"; not the same in every {view.unit}: see --json, shapes"
        lines.append(f"layers found: {sum(view.layers.values())} ({every}){agree}")
    else:
        lines.append(f"layers found: none (no attention between mHC kernels in a {view.unit})")
    if len(view.shapes) > 1:
        for row in sorted(view.shapes, key=lambda row: -row.units * row.nodes)[:5]:
            name = f"{row.label}, " if row.label else ""
            fate = "averaged" if row.averaged else f"left out: {row.why_not}"
            lines.append(f"  shape: {name}{row.nodes} nodes x {row.units}, span {ms(row.span.median)} ms, {fate}")
        if len(view.shapes) > 5:
            lines.append(f"  and {len(view.shapes) - 5} more shapes")
    return lines


def _bucket_table(view: View, names: bool) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("bucket", no_wrap=True)
    seconds = view.total >= 1_000_000_000
    for title in ("calls", "total s" if seconds else "total ms", f"calls/{view.unit}", f"ms/{view.unit}", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    if names:
        table.add_column("mostly", overflow="ellipsis", no_wrap=True)
    for row in view.buckets:
        top = short_name(row.names[0][0], 44) + (f" +{len(row.names) - 1}" if len(row.names) > 1 else "")
        table.add_row(
            row.bucket.title,
            f"{row.calls:,}",
            _total(row.total, seconds),
            f"{row.calls / view.units:g}" if row.calls % view.units == 0 else f"{row.calls / view.units:.2f}",
            ms(row.total / view.units),
            f"{row.total / view.total:.1%}" if view.total else "-",
            *([top] if names else []),
        )
    calls = sum(row.calls for row in view.buckets)
    table.add_section()
    per_unit = f"{calls / view.units:g}" if calls % view.units == 0 else f"{calls / view.units:.2f}"
    table.add_row("sum", f"{calls:,}", _total(view.total, seconds), per_unit, ms(view.total / view.units), "100.0%")
    return table


def _total(ns: int, seconds: bool) -> str:
    return f"{ns / 1e9:.3f}" if seconds else f"{ns / 1e6:.3f}"


def _below(view: View, with_waiting: bool) -> list[str]:
    lines = []
    inside = [(layer, time) for layer, time in view.all_reduce_per_layer if layer >= 0]
    if inside:
        times = sorted(time for _, time in inside)
        worst = max(inside, key=lambda item: item[1])
        outside = next((time for layer, time in view.all_reduce_per_layer if layer < 0), None)
        lines.append(
            f"TP all-reduce per layer: median {times[len(times) // 2] / 1000:.1f} us, least {times[0] / 1000:.1f}, "
            f"most {worst[1] / 1000:.1f} (layer {worst[0]})"
            + ("" if outside is None else f"; outside the layers {outside / 1000:.1f} us")
        )
        if with_waiting:
            lines.append("  waiting for the slowest rank is part of it; give the other ranks' traces to tell it apart")
    other = next((row for row in view.buckets if row.bucket is Bucket.OTHER), None)
    if other is not None:
        lines.append("other, by time:")
        for name, calls, time in other.names[:OTHER_NAMES]:
            lines.append(f"  {ms(time / view.units)} ms/{view.unit}  {calls:>8,} x {short_name(name)}")
        if len(other.names) > OTHER_NAMES:
            rest = sum(time for _, _, time in other.names[OTHER_NAMES:])
            lines.append(f"  {ms(rest / view.units)} ms/{view.unit}  in {len(other.names) - OTHER_NAMES} more names")
    return lines


def _graphs_beside_steps(view: View) -> list[str]:
    fate = f", {view.partial} partial left out" if view.partial else ""
    return [
        f"graphs in these steps: {view.units} averaged{fate}; per graph (median): sum {ms(view.sum.median)} ms, "
        f"busy {ms(view.busy.median)} ms, span {ms(view.span.median)} ms"
    ]


def _print_outside(out: Console, result: FileResult) -> None:
    if not result.outside:
        return
    view = result.main
    where = f"outside the {view.unit}s" if view else "in the whole file (no graphs, no steps)"
    total = sum(time for _, _, _, time in result.outside)
    calls = sum(calls for _, _, calls, _ in result.outside)
    out.print(f"  {where}: {calls:,} GPU events, {ms(total)} ms", soft_wrap=True)
    by_bucket: dict[Bucket, int] = {}
    for _, bucket, _, time in result.outside:
        by_bucket[bucket] = by_bucket.get(bucket, 0) + time
    for bucket, time in sorted(by_bucket.items(), key=lambda item: -item[1]):
        names = [name for name, of, _, _ in result.outside if of is bucket]
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        out.print(f"    {ms(time):>10} ms  {bucket.title}: {short_name(names[0], 60)}{more}", soft_wrap=True)


def print_comparison(out: Console, comparison: Comparison) -> None:
    """Ranks beside one another: time in collectives, told apart into work and waiting."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out.print(f"{len(comparison.rows)} ranks over {comparison.units} common {comparison.unit}s", style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rank", justify="right")
    buckets = list(comparison.work)
    for bucket in buckets:
        table.add_column(f"{bucket.title} ms", justify="right")
        table.add_column("waiting ms", justify="right")
    table.add_column("span ms", justify="right")
    for row in comparison.rows:
        cells = [text for bucket in buckets for text in (ms(row.own[bucket]), ms(row.waiting[bucket]))]
        table.add_row(str(row.rank), *cells, ms(row.span))
    table.add_section()
    table.add_row("work", *[text for bucket in buckets for text in (ms(comparison.work[bucket]), "")], "")
    out.print(table)
    out.print(f"  {_who_is_slow(comparison)}", soft_wrap=True)
    if comparison.ranks_missing:
        missing = ", ".join(map(str, comparison.ranks_missing))
        word = "rank" if len(comparison.ranks_missing) == 1 else "ranks"
        out.print(f"  not given: {word} {missing}; with them work can only be less", soft_wrap=True)


def _who_is_slow(comparison: Comparison) -> str:
    slow = comparison.slowest
    waits = sorted(sum(row.waiting.values()) for row in comparison.rows if row is not slow)
    own = sum(slow.waiting.values())
    words = "work is the least duration of each call over the ranks. "
    others = f"{ms(waits[0])}-{ms(waits[-1])} ms"
    if 2 * own < waits[len(waits) // 2]:
        return words + (
            f"Rank {slow.rank} is slow: it waits {ms(own)} ms per {comparison.unit}, the others wait for it ({others})"
        )
    return words + f"No rank is slow alone: the least waits {ms(own)} ms per {comparison.unit}, the others {others}"


def print_diff(out: Console, diff: Diff) -> None:
    """Two traces side by side, per bucket."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    for side, letter in ((diff.a, "A"), (diff.b, "B")):
        layers = ", ".join(f"{count} {kind}" for kind, count in side.layers.items()) or "no layers told"
        out.print(
            f"{letter}: {side.name}: {side.units} {side.unit}s ({side.label or 'all'}), {layers}, "
            f"span {side.span.median / 1000:.3f} ms, {side.device or 'GPU without a name'}",
            soft_wrap=True,
        )
    for line in diff.conditions:
        out.print(f"  differs: {line}", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("bucket", no_wrap=True)
    for title in ("calls A", "calls B", "A ms", "B ms", "B - A ms", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("judgement", no_wrap=True)
    for row in diff.rows:
        table.add_row(
            title_of(row.key),
            f"{row.calls_a:g}" if row.counted else "",
            f"{row.calls_b:g}" if row.counted else "",
            f"{row.a / 1000:.3f}",
            f"{row.b / 1000:.3f}",
            f"{(row.b - row.a) / 1000:+.3f}",
            f"{row.b / row.a - 1:+.1%}" if row.a else "new",
            row.judgement,
        )
    out.print(table)
    for name, bucket, a, b in diff.names:
        out.print(
            f"  {(b - a) / 1000:+.3f} ms  {title_of(bucket)}: {name} ({a / 1000:.3f} -> {b / 1000:.3f})",
            soft_wrap=True,
        )


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 graph", "2 graphs"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def ms(ns: float) -> str:
    """Milliseconds of nanoseconds, three decimals."""
    return f"{ns / 1e6:.3f}"
