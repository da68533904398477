"""What the GPUs did while it was measured: clocks, power, temperature, links, and what held them back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm86.report.charts import Line, Lines, amount
from sm86.report.document import Block, Column, Figure, Fold, Inline, Prose, Ref, Table
from sm86.report.gather import Entry, Machine
from sm86.report.sections.parts import clipped, readable

DRAWN = (("power_w", "Power", "W"), ("sm_clock_mhz", "SM clock", "MHz"), ("temperature_c", "Temperature", "°C"))
MOST_GPUS = 16
TITLES = {
    "sm_clock_mhz": "SM clock, MHz",
    "mem_clock_mhz": "memory clock, MHz",
    "busy_percent": "busy, %",
    "tx_mb_s": "sent, MB/s",
    "rx_mb_s": "received, MB/s",
    "link_gen": "link generation",
}


def telemetry(machine: Machine, entry: Entry, seen: Mapping[str, Any]) -> list[Block]:
    """Limits first, then a table of the GPUs and lines over time; nothing for an engine without GPUs."""
    if not seen.get("gpus"):
        why = clipped(seen.get("text", "")) if seen.get("state") == "not seen" else ""
        return [Prose((f"Telemetry: {why}.",), "missing")] if why else []
    limits = [limit for limit in seen.get("limits") or () if isinstance(limit, Mapping)]
    blocks: list[Block] = [Prose((f"{clipped(limit['text'])}. ", Ref(entry.number)), "bad") for limit in limits[:8]]
    if not limits:
        blocks.append(Prose((f"GPUs: {clipped(seen.get('text', ''))}. ", Ref(entry.number)), "note"))
    inner: list[Block] = [_table(seen["gpus"])]
    inner += _figures(machine, entry, seen.get("series") or {})
    notes = [clipped(note) for note in seen.get("notes") or ()]
    if notes and limits:
        inner.append(Prose((f"{'; '.join(notes)}.",), "note"))
    samples = f"{seen.get('samples', '?')} samples, {seen.get('in_window', '?')} in the counted windows"
    count = len(seen["gpus"])
    title = f"Telemetry of {count} GPU{'s' * (count != 1)}: {samples}"
    return [*blocks, Fold((title,), tuple(inner))]


def _table(gpus: Any) -> Table:
    names = list(dict.fromkeys(name for gpu in gpus for name in gpu.get("statistics") or {}))
    titles = [
        Column("GPU"),
        *(Column(TITLES.get(name) or readable(name), True) for name in names),
        Column("held back by"),
    ]
    rows = []
    for index, gpu in enumerate(gpus[:MOST_GPUS]):
        statistics = gpu.get("statistics") or {}
        row: list[Inline] = [(clipped(gpu.get("name") or f"GPU {index}", 40),)]
        for name in names:
            low, middle, high = statistics.get(name) or (0.0, None, 0.0)
            row.append((_ranged(low, middle, high),))
        reasons = [f"{clipped(words, 40)} {100 * share:.0f} %" for words, share in (gpu.get("reasons") or {}).items()]
        row.append((", ".join(reasons) or "nothing",))
        rows.append(tuple(row))
    return Table(tuple(titles), tuple(rows))


def _ranged(low: float, middle: float | None, high: float) -> str:
    """The median with its range, where there is one: a page has room for ten such columns only if they are short."""
    if middle is None:
        return ""
    return amount(middle) if amount(low) == amount(high) else f"{amount(middle)} ({amount(low)} to {amount(high)})"


def _figures(machine: Machine, entry: Entry, series: Mapping[str, Any]) -> list[Figure]:
    times = series.get("at_s") or ()
    figures = []
    for name, title, unit in DRAWN:
        lines = []
        for index, gpu in enumerate((series.get("gpus") or ())[:8]):
            pairs = zip(times, gpu.get(name) or (), strict=False)
            points = tuple((float(x), float(y)) for x, y in pairs if y is not None and x >= 0)
            if len(points) > 1:
                lines.append(Line(f"GPU {index}", points, dots=False))
        if lines:
            chart = Lines(title, "s", unit, tuple(lines), None, False, machine.mark)
            key = f"{machine.key}-{name.replace('_', '-')}-{entry.number}"
            figures.append(Figure(key, chart, (f"{title} during the run. ", Ref(entry.number))))
    return figures
