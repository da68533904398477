"""Records -> one report on the terminal. Everything shown comes from the records; nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sm86.record import Conditions, Number, Record, Verdict
from sm86.spec import Envelope

if TYPE_CHECKING:
    from rich.console import RenderableType

STATE_STYLES = {"pass": "green", "fail": "bold red", "not seen": "yellow", "not applicable": "dim"}


def report(envelope: Envelope, records: Sequence[Record]) -> RenderableType:
    """One renderable for a run: what ran, how it booted, what the log proves, what was measured.

    Records of any kinds; a kind that is not there is left out, never filled in.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    conditions = records[-1].conditions if records else Conditions(engine=envelope.engine, mark="")
    parts: list[RenderableType] = [_facts(envelope, conditions)]
    for record in records:
        parts.append(Text())
        parts.append(Text(_TITLES.get(record.kind, record.kind) + f" ({record.seconds:.1f} s)", style="bold"))
        if record.numbers:
            parts.append(_numbers(record.numbers, conditions.mark))
        if record.verdicts:
            parts.append(_verdicts(record.verdicts))
    mark = f"  [{conditions.mark} numbers: never compared with published ones]" if conditions.mark else ""
    return Panel(Group(*parts), title=f"{envelope.name}: {envelope.title}", subtitle=mark or None, padding=(1, 2))


_TITLES = {"boot": "Boot", "verify": "What the log proves", "bench": "Decode"}


def _facts(envelope: Envelope, conditions: Conditions) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    host = conditions.host
    rows = [
        ("shape", f"{envelope.serve.sequences} x {envelope.serve.context} tokens, {envelope.serve.served_model_name}"),
        ("engine", f"vLLM {conditions.vllm_version or 'unknown'} on {_where(conditions)}"),
        ("image", conditions.image_id or "none: a process on this machine"),
        ("revision", conditions.git_rev or "unknown"),
        ("host", ", ".join(f"{value}" if key == "cpu" else f"{key} {value}" for key, value in host.items())),
    ]
    if conditions.overrides:
        rows.append(("overrides", ", ".join(f"{name}={value}" for name, value in conditions.overrides.items())))
    for name, value in rows:
        if value:
            table.add_row(name, value)
    return table


def _where(conditions: Conditions) -> str:
    if conditions.engine == "cpu":
        return "the CPU"
    names = sorted({str(gpu.get("name", "GPU")) for gpu in conditions.gpus})
    return f"{len(conditions.gpus)} x {', '.join(names)}" if names else "GPUs that could not be read"


def _numbers(numbers: Sequence[Number], mark: str) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("spread", justify="right")
    table.add_column("")
    for number in numbers:
        spread = f"{number.spread:.2f} over {len(number.repeats)}" if len(number.repeats) > 1 else ""
        # a note that already carries the mark says it once
        note = number.note if mark and mark in number.note else " ".join((mark, number.note)).strip()
        table.add_row(number.name, f"{number.value:.2f}", number.unit, spread, note)
    return table


def _verdicts(verdicts: Sequence[Verdict]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for verdict in verdicts:
        table.add_row(Text(verdict.state, style=STATE_STYLES.get(verdict.state, "")), verdict.name, verdict.text)
    return table
