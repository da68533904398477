"""The matrix in words: what was measured, who is faster, what it would be worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sm86.comm import answer
from sm86.comm.matrix import BASELINE, NCCL
from sm86.comm.numbers import Gain, Row, Verdict
from sm86.comm.recommend import Recommendation, dotenv_lines
from sm86.comm.step import PREFILL_BYTES, size_words

if TYPE_CHECKING:
    from rich.table import Table


def table_title(mark: str, in_graph: bool) -> str:
    """The line above the table."""
    where = "inside a graph" if in_graph else "one after another"
    title = f"us for one all-reduce, {where}: median over the repeats, and lowest-highest"
    return f"{title}  [{mark}]" if mark else title


def table(rows: Sequence[Row], sizes: Sequence[int], mark: str) -> Table:
    """Microseconds by setting and size: the median, and under it the spread over the repeats."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False)
    made.add_column("setting", no_wrap=True)
    for size in sizes:
        made.add_column(size_words(size), justify="right")
    best = {size: _best(rows, size) for size in sizes}
    for row in rows:
        cells: list[Any] = [Text(row.setting.name, style="" if row.measured else "dim")]
        for size in sizes:
            timing = row.timings.get(size)
            if timing is None or not row.measured:
                cells.append(Text("-", style="dim"))
                continue
            text = f"{timing.median:.2f}\n{timing.low:.2f}-{timing.high:.2f}"
            cells.append(Text(text, style="green" if best[size] == row.setting.name and not mark else ""))
        made.add_row(*cells)
    return made


def _best(rows: Sequence[Row], size: int) -> str | None:
    timed = [row for row in rows if row.measured and size in row.timings]
    return min(timed, key=lambda row: row.timings[size].median).setting.name if timed else None


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    """For each setting what really ran, or why it did not."""
    width = max(len(row.setting.name) for row in rows)
    for row in rows:
        head = f"  {row.setting.name:<{width}}  "
        if not row.measured:
            yield f"{head}{row.state}: {row.why}"
            continue
        ran = " / ".join(_ran(row)) or "what ran was not seen: NCCL did not say"
        via = f" over {', '.join(row.transports)}" if row.transports else ""
        notes = [note for note in (row.differs, "" if row.bit_equal else "ranks differ in some bits") if note]
        yield f"{head}{ran}{via}" + "".join(f"; {note}" for note in notes)


def _ran(row: Row) -> list[str]:
    """Each way with the sizes it ran at: "Ring LL, 1 channel (2 KiB to 32 KiB)"."""
    groups: dict[str, list[int]] = {}
    for size, ways in sorted(row.ran.items()):
        words = " or ".join(way for way in ways if way)
        if words:
            groups.setdefault(words, []).append(size)
    if len(groups) == 1:
        return list(groups)
    return [
        f"{words} ({size_words(sizes[0])}{f' to {size_words(sizes[-1])}' if len(sizes) > 1 else ''})"
        for words, sizes in groups.items()
    ]


def verdict_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """At each size who is fastest, or why nobody can be named."""
    for verdict in verdicts:
        gain = f", {verdict.gain:.2f}x as fast as NCCL's own choice" if verdict.gain else ""
        head = f"  {size_words(verdict.size):>8}  "
        if verdict.winner:
            yield f"{head}{verdict.winner}{gain} ({verdict.why})"
        elif verdict.leaders:
            yield f"{head}no winner: {verdict.why} ({', '.join(verdict.leaders[:6])}){gain}"
        else:
            yield f"{head}no winner: {verdict.why}"


def gain_lines(gains: Sequence[Gain], mark: str) -> Iterator[str]:
    """What a step would gain with the fastest of each kind."""
    marked = f"  [{mark}]" if mark else ""
    for gain in gains:
        yield (
            f"  {size_words(gain.size):>8}  {gain.setting}: {gain.calls} calls x the difference: {gain.ms:+.3f} ms "
            f"saved ({gain.least_ms:+.3f} to {gain.most_ms:+.3f}) of {gain.baseline_ms:.3f} ms with {BASELINE}{marked}"
        )


def recommendation_lines(found: Recommendation) -> Iterator[str]:
    """The setting to use, with its reasons."""
    for reason in found.reasons:
        yield f"  {reason}"
    for line in dotenv_lines(found):
        if not line.startswith("#"):
            yield f"  {line}"


def headline(ranks: int, repeats: int, facts: dict[str, Any], mark: str) -> str:
    """What was measured on."""
    gpus = sorted({str(name) for name in facts.get("gpus", ()) if name})
    where = f"{ranks} x {', '.join(gpus)}" if gpus else f"{ranks} processes on the CPU"
    peer = facts.get("peer_access")
    access = "" if peer is None else f", peer access {'reported by the driver' if peer else 'not available'}"
    versions = [f"NCCL {facts['nccl']}"] if facts.get("nccl") else []
    versions += [f"torch {facts['torch']}"] if facts.get("torch") else []
    tail = f"  [{mark}]" if mark else ""
    return f"{where}{access}; {', '.join(versions)}; {repeats} repeat{'s' * (repeats > 1)} of fresh processes{tail}"


def shown_sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    """Every size that a row has, the prefill chunk last."""
    sizes = sorted({size for row in rows for size in row.timings})
    return tuple([s for s in sizes if s != PREFILL_BYTES] + [s for s in sizes if s == PREFILL_BYTES])


def fastest_of_each_kind(rows: Sequence[Row], size: int) -> tuple[Row, ...]:
    """The fastest NCCL setting and every other way that was measured at `size`, without the baseline."""
    timed = [row for row in rows if row.state == answer.MEASURED and size in row.timings]
    nccl = [row for row in timed if row.setting.path == NCCL and row.setting.name != BASELINE]
    others = [row for row in timed if row.setting.path != NCCL and row.setting.name != BASELINE]
    fastest = min(nccl, key=lambda row: row.timings[size].median, default=None)
    return tuple(([fastest] if fastest else []) + others)
