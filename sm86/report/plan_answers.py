"""The planner's other answers in the terminal: what fits, what must shrink, and a log against its prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm86.fit.check_log import FAIL, NOT_SEEN, LogCheck
from sm86.fit.memory_plan import between
from sm86.fit.search import Search
from sm86.fit.what_if import PUBLISHED_BLOCKS, PUBLISHED_CONTEXT, PUBLISHED_MISS, Published, WhatIf
from sm86.plan.memory import mib
from sm86.report.plan_words import STYLES, WIDE, span, table

if TYPE_CHECKING:
    from rich.console import Console


def print_search(out: Console, found: Search) -> None:
    """What fits a rig, the best first."""
    rig = found.rig
    mark = f" [{rig.mark}]" if rig.mark else ""
    out.print(f"{rig.title}{mark}: the longest context for each number of sequences", style="bold")
    wide = out.width >= WIDE
    shown = table(
        ">sequences",
        ">context",
        ">in all",
        ">batch",
        ">blocks",
        *([">KV MiB"] if wide else []),
        ">MiB left",
        "verdict",
    )
    for candidate in found.candidates:
        server, plan = candidate.server, candidate.plan
        row = [str(server.sequences), f"{server.context:,}", f"{server.sequences * server.context:,}"]
        row += [str(server.batched_tokens), f"{server.blocks:,}"]
        row += [mib(dict(plan.by_kind())["KV pool"].low)] if wide else []
        shown.add_row(*row, span(plan.room), _styled(plan.verdict))
    out.print(shown)
    out.print(f"  tensor parallel {found.ranks}", style="dim")
    if found.idle:
        out.print(f"  {found.idle} of {rig.count} GPUs stay unused: {found.why_idle}")
    for note in rig.notes:
        out.print(f"  note: {note}")
    if any(not candidate.sure for candidate in found.candidates):
        out.print(
            "  uncertain: fits only where some estimates prove too high; a boot decides",
            style="yellow",
        )


def print_what_if(out: Console, answer: WhatIf) -> None:
    """What must shrink for one context."""
    server, plan = answer.base.server, answer.base
    head = f"{server.sequences} x {answer.context:,} tokens on {plan.rig.title}: {plan.verdict}"
    out.print(head, style="bold " + STYLES.get(plan.verdict, "").removeprefix("bold "))
    out.print(
        f"  {server.blocks:,} KV blocks (engine minimum {plan.lines.minimum:,}); MiB left per GPU: {span(plan.room)}"
    )
    if answer.short.high:
        least = mib(answer.short.low) if answer.short.low else "perhaps nothing"
        out.print(f"  short by {least}, at most {mib(answer.short.high)} MiB on each GPU")
    if answer.enough is None:
        out.print("  no setting makes it fit for sure, not all of them together", style="red")
    elif answer.enough:
        out.print(f"  enough for sure: {', '.join(answer.enough)}", style="green")
    shown = table("what could shrink", "<change", ">saves MiB", "<price")
    for lever in answer.levers:
        if lever.possible:
            shown.add_row(lever.name, lever.change, between(lever.saves), lever.price)
    out.print(shown)
    out.print("  what cannot:", style="dim")
    for lever in answer.levers:
        if not lever.possible:
            saves = f" ({between(lever.saves)} MiB)" if lever.saves.high else ""
            out.print(f"  {lever.name}, {lever.change}{saves}: {lever.price}", style="dim")


def print_published(out: Console, answer: Published) -> None:
    """Where the published rig's 30 MiB went."""
    out.print(
        f"Where the {mib(PUBLISHED_MISS)} MiB went: {PUBLISHED_CONTEXT:,} tokens, {PUBLISHED_BLOCKS} blocks",
        style="bold",
    )
    out.print(
        f"  On the published rig {PUBLISHED_BLOCKS} blocks passed the engine's minimum, and the graphs missed by about "
        f"{mib(PUBLISHED_MISS)} MiB. Its code is not public; vLLM 0.26.0's own path is the nearest one to compute."
    )
    shown = table("MiB per GPU", ">vLLM's own", ">this backend", ">saved")
    for difference in answer.differences:
        saved = difference.stock + -difference.own
        text = span(saved) if difference.stock.exact and difference.own.exact else "not known"
        shown.add_row(difference.name, span(difference.stock), span(difference.own), text)
    shown.add_row("all together", span(answer.stock.used), span(answer.own.used), "")
    shown.add_row("left", span(answer.stock.left), span(answer.own.left), "")
    out.print(shown)
    out.print(
        f"  If all that is not arithmetic took as much here as there, {mib(answer.carried)} MiB would be left: an "
        "estimate from one number, not run on a 3090."
    )


def print_check(out: Console, answer: LogCheck) -> None:
    """A log against its prediction, line by line."""
    boots = f"the last of {answer.boots} boots" if answer.boots > 1 else "one boot"
    out.print(f"{answer.lines:,} lines, {boots}; predicted for", style="bold")
    for name, value, line in answer.settings:
        where = f"line {line}" if line else "not in the log: vLLM's default or the envelope's"
        out.print(f"  {name} = {value} ({where})", style="dim")
    shown = table("line of the log", "", "<predicted", "<printed", ">at")
    for check in answer.checks:
        shown.add_row(check.name, _styled(check.state), check.predicted, check.printed, str(check.line or ""))
    out.print(shown)
    for note in answer.notes:
        out.print(f"  note: {note}")
    off = [check for check in answer.checks if check.state == FAIL]
    unseen = [check for check in answer.checks if check.state == NOT_SEEN]
    if off:
        at = ", ".join(f"{check.name} (line {check.line})" if check.line else check.name for check in off)
        out.print(f"off: {at}", style="bold red")
    elif unseen:
        out.print(f"not seen: {', '.join(check.name for check in unseen)}", style="yellow")
    else:
        out.print("as predicted", style="green")
    for mend in dict.fromkeys(check.mend for check in answer.checks if check.mend):
        out.print(f"mend: {mend}")


def _styled(state: str):  # type: ignore[no-untyped-def]
    from rich.text import Text

    return Text(state, style=STYLES.get(state, ""))
