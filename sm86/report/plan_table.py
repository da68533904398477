"""A memory plan in the terminal: parts, cache, the engine's lines, what is left; and all envelopes side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sm86.fit.memory_plan import PASS, MemoryPlan
from sm86.plan.memory import KINDS, STOCK, gib, mib, share
from sm86.plan.units import Bytes, total
from sm86.report.plan_words import STYLES, WIDE, bar, span, table

if TYPE_CHECKING:
    from rich.console import Console

BAR = 30


def print_plan(out: Console, plan: MemoryPlan) -> None:
    """One plan whole."""
    server, rig = plan.server, plan.rig
    mark = f" [{rig.mark}]" if rig.mark else ""
    out.print(f"{plan.name}: {server.sequences} x {server.context:,} tokens on {rig.title}{mark}", style="bold")
    scheduling = "asynchronous" if server.async_scheduling else "synchronous"
    stack = "vLLM's own path" if plan.stack == STOCK else "this backend"
    out.print(
        f"  tensor parallel {server.ranks} of {rig.count} GPUs, {server.batched_tokens} batched tokens, {scheduling} "
        f"scheduling (m = {server.in_flight}), graphs {_sizes(server.capture_sizes)}, {stack}"
    )
    for note in rig.notes:
        out.print(f"  note: {note}")
    out.print()
    _print_parts(out, plan)
    out.print()
    _print_groups(out, plan)
    out.print()
    _print_lines(out, plan)
    out.print()
    _print_checks(out, plan)


def print_overview(out: Console, plans: Sequence[tuple[MemoryPlan, str]]) -> None:
    """Plans side by side, each with its envelope's status."""
    rig = plans[0][0].rig
    out.print(f"{rig.title}: MiB per GPU, of {mib(plans[0][0].gpu.free)} free on {plans[0][0].gpu.label}", style="bold")
    wide = out.width >= WIDE
    columns = ["envelope", ">shape", ">weights", ">KV pool", *([">other"] if wide else []), ">left", "verdict"]
    shown = table(*columns, *(["status"] if wide else []))
    for plan, status in plans:
        kinds = dict(plan.by_kind())
        others = total(kinds[kind] for kind in KINDS[2:])
        server = plan.server
        row = [plan.name, f"{server.sequences} x {server.context}", mib(kinds[KINDS[0]].low), mib(kinds[KINDS[1]].low)]
        row += [span(others)] if wide else []
        row += [span(plan.room), _styled(plan.verdict, plan.verdict)]  # type: ignore[list-item]
        shown.add_row(*row, *([status] if wide else []))
    out.print(shown)
    _print_troubles(out, [plan for plan, _ in plans])
    for note in rig.notes:
        out.print(f"note: {note}")
    out.print(
        "What is not arithmetic is an interval, measured on an H200 that was told it is SM86: an estimate for other "
        "GPUs. `invoke plan --envelope NAME` shows each part with its source.",
        style="dim",
    )


def _print_troubles(out: Console, plans: Sequence[MemoryPlan]) -> None:
    """What else than the memory does not pass, and for which envelopes; once for all that have it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for plan in plans:
        for check in plan.checks:
            if check.state != PASS and check.name != "memory":
                found.setdefault((check.name, check.state, check.mend), []).append(plan.name)
    for (name, state, mend), names in found.items():
        whose = "all" if len(names) == len(plans) else ", ".join(names)
        out.print(f"{name}: {state} ({whose}); mend: {mend}", style=STYLES.get(state, ""))


def _print_parts(out: Console, plan: MemoryPlan) -> None:
    wide = out.width >= WIDE
    most, width = plan.gpu.free, BAR
    shown = table("memory of one GPU", ">bytes", ">MiB", ">share", *([""] if wide else []))
    for kind in KINDS:
        own = [part for part in plan.parts if part.kind == kind]
        size = total(part.size for part in own)
        if len(own) > 1:
            row = [_styled(kind, "", "bold"), _number(size), span(size), _percent(size.high, most)]
            shown.add_row(*row, *([bar(out, size.low, size.high, most, width)] if wide else []))
        for part in own:
            name = f"  {part.name}" if len(own) > 1 else _styled(part.name, "", "bold")
            row = [name, _number(part.size), span(part.size), _percent(part.size.high, most)]
            shown.add_row(
                *row, *([bar(out, part.size.low, part.size.high, most, width)] if wide and len(own) == 1 else [])
            )
    shown.add_row("")
    shown.add_row(_styled("all together", "", "bold"), "", span(plan.used), _percent(plan.used.high, most))
    shown.add_row(f"free on {plan.gpu.label}", f"{plan.gpu.free:,}", mib(plan.gpu.free))
    if plan.gpu.used:
        shown.add_row("  held by others", f"{plan.gpu.used:,}", mib(plan.gpu.used))
    shown.add_row(_styled("left", "", "bold"), "", _styled(span(plan.left), plan.verdict), "")
    out.print(shown)
    out.print(plan.verdict, style=STYLES.get(plan.verdict, ""))
    out.print()
    out.print("where the numbers come from (share: at the upper end)", style="dim")
    sources = dict.fromkeys((part.kind if part.kind == KINDS[0] else part.name, part.source) for part in plan.parts)
    notes = table("", "<")
    for name, source in sources:
        notes.add_row(f"  {name}", source, style="dim")
    notes.show_header = False
    out.print(notes)


def _percent(number: int, of: int) -> str:
    return f"{share(number, of):.1f} %"


def _number(size: Bytes) -> str:
    return f"{size.low:,}" if size.exact else "estimate"


def _print_groups(out: Console, plan: MemoryPlan) -> None:
    shown = table("KV cache pages", ">layers", ">page B", ">tokens", ">prefill", ">decode", ">all", ">MiB")
    used = 0
    for use in plan.groups:
        group = use.group
        used += use.all
        layers = "+".join(str(count) for _, count in group.layers)
        row = (group.name, layers, f"{group.page_bytes:,}", str(group.tokens))
        size = mib(use.all * group.page_bytes)
        shown.add_row(*row, f"{use.full:,}", f"{use.decoding:,}", f"{use.all:,}", size)
    out.print(shown)
    held = f"{used + 1:,} of {plan.server.blocks:,} blocks with the null block"
    out.print(f"  prefill, decode: one such sequence; all: {held}, while the last one prefills")
    out.print("  A page of any group takes one block; what it does not fill of it stays empty.", style="dim")


def _print_lines(out: Console, plan: MemoryPlan) -> None:
    lines = plan.lines
    out.print("vLLM will print", style="bold")
    available = plan.available
    low, high = gib(available.low), gib(available.high)
    out.print(f"  Available KV cache memory: {low} to {high} GiB (an estimate, before the blocks are pinned)")
    for text in (lines.override, lines.size, lines.concurrency, lines.refusal):
        if text:
            out.print(f"  {text}")
    least = f"  (minimum {lines.minimum:,} blocks; {lines.blocks:,} are there"
    out.print(least + (")" if lines.passes else f"; longest context {lines.longest:,})"), style="dim")


def _print_checks(out: Console, plan: MemoryPlan) -> None:
    shown = table("check", "", "<")
    for check in plan.checks:
        text = check.text if check.state == PASS else f"{check.text}\nmend: {check.mend}"
        shown.add_row(check.name, _styled(check.state, check.state), text)
    out.print(shown)


def _sizes(sizes: tuple[int, ...]) -> str:
    return ",".join(str(size) for size in sizes) or "none"


def _styled(text: str, state: str, style: str = ""):  # type: ignore[no-untyped-def]
    from rich.text import Text

    return Text(text, style=style or STYLES.get(state, ""))
