"""What the comm matrix came to, ready to be told: words, JSON, and the record."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sm86.comm import answer, matrix, numbers, step
from sm86.comm.answer import Run
from sm86.comm.plan import CUDA, Plan
from sm86.comm.recommend import Recommendation, dotenv_lines, recommend
from sm86.record import Conditions, Number, Record, Verdict
from sm86.spec import Envelope

EMULATED = "CPU, emulated"
"""How everything that CPU processes gave is called: it shows that the command works, and nothing about a rig."""

RIG = "rig"
"""The record's place where no envelope was named."""


class Matrix:
    """What came out: rows, who is faster at each size, what a step would gain, what to set."""

    def __init__(self, plan: Plan, envelope: Envelope | None, runs: tuple[Run, ...], emulate: bool) -> None:
        self.plan, self.envelope, self.runs, self.emulate = plan, envelope, runs, emulate
        self.facts = numbers.facts_of(runs)
        self.rows = numbers.rows_of(plan.settings, runs, plan.repeats)
        judged = EMULATED if emulate else ""
        decode = decode_sizes(envelope, plan.sizes)
        shown = [size for size in plan.sizes if size != step.PREFILL_BYTES]
        self.verdicts = tuple(numbers.verdict_at(size, self.rows, judged) for size in shown)
        self.recommendation: Recommendation = recommend(self.rows, decode, plan.calls, judged)
        base = next((row for row in self.rows if row.setting.name == matrix.BASELINE), None)
        from sm86.comm.table import fastest_of_each_kind

        self.gains = tuple(
            gain
            for size in decode
            for row in fastest_of_each_kind(self.rows, size)
            if base is not None and (gain := numbers.gain_of(row, base, size, plan.calls)) is not None
        )

    @property
    def mark(self) -> str:
        """ "" for a rig of SM 8.6, else how its numbers must be called."""
        if self.emulate:
            return EMULATED
        others = sorted({tuple(one) for one in self.facts.get("capability", ()) if one and tuple(one) != (8, 6)})
        return f"SM {others[0][0]}.{others[0][1]}, not 8.6" if others else ""

    @property
    def faulty(self) -> bool:
        bad = (answer.WRONG, answer.FAILED, answer.TIMEOUT)
        return any(row.state in bad for row in self.rows) or not any(row.measured for row in self.rows)

    @property
    def headline(self) -> str:
        from sm86.comm.table import headline

        return headline(self.plan.ranks, self.plan.repeats, self.facts, self.mark)

    def tell(self) -> None:
        from rich.console import Console

        from sm86.comm import table

        out = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
        out.print(self.headline, style="bold", soft_wrap=True)
        others = numbers.company(self.facts)
        if others:
            out.print(f"note: {others}", soft_wrap=True)
        shown = table.shown_sizes(self.rows)
        if shown:
            out.print(table.table_title(self.mark, self.plan.device == CUDA), soft_wrap=True)
            out.print(table.table(self.rows, shown, self.mark))
        for title, lines in (
            ("what really ran", table.row_lines(self.rows)),
            ("who is faster, beyond the spread", table.verdict_lines(self.verdicts)),
            (f"what a decode step of {self.plan.calls} all-reduces would gain", self._gain_lines()),
            ("to use", table.recommendation_lines(self.recommendation)),
        ):
            out.print(title, style="bold")
            for line in lines:
                out.print(line, soft_wrap=True)

    def _gain_lines(self) -> Iterator[str]:
        from sm86.comm.table import gain_lines

        if self.gains:
            yield from gain_lines(self.gains, self.mark)
            yield "  measured alone: in a server each call also waits for the slowest rank, which no setting removes"
        else:
            yield "  nothing to compare"

    def to_json(self) -> dict[str, Any]:
        return {
            "mark": self.mark,
            "ranks": self.plan.ranks,
            "calls_per_step": self.plan.calls,
            "facts": self.facts,
            "company": numbers.company(self.facts),
            "rows": [row_json(row) for row in self.rows],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "gains": [asdict(gain) for gain in self.gains],
            "recommendation": {
                **asdict(self.recommendation),
                "overrides": dict(self.recommendation.overrides),
                "dotenv": list(dotenv_lines(self.recommendation)),
            },
        }

    def _note(self, ran: Sequence[str]) -> str:
        """What ran, with the mark once: the name of what ran may have it already."""
        words = " or ".join(ran)
        return words if self.mark and self.mark in words else " ".join(filter(None, (self.mark, words)))

    def record(self, started: datetime, seconds: float, image_id: str | None) -> Record:
        """The run as a record of kind "comm": a number for each setting and size, a verdict for each setting."""
        from sm86.host.facts import gpu_facts, host_facts

        driver, gpus = (None, ()) if self.emulate else gpu_facts()
        conditions = Conditions(
            engine="cpu" if self.emulate else "cuda",
            mark=self.mark,
            image_id=image_id,
            driver=driver,
            gpus=gpus,
            host=host_facts(),
        )
        timed = [
            Number(
                f"{row.setting.name} {step.size_words(size)}",
                round(timing.median, 3),
                "us",
                tuple(round(value, 3) for value in timing.repeats),
                self._note(row.ran.get(size, ())),
            )
            for row in self.rows
            if row.measured
            for size, timing in row.timings.items()
        ]
        return Record(
            kind="comm",
            envelope=self.envelope.name if self.envelope else RIG,
            envelope_digest=self.envelope.digest() if self.envelope else "",
            started=started,
            seconds=round(seconds, 3),
            conditions=conditions,
            numbers=tuple(timed),
            verdicts=tuple(_verdict(row) for row in self.rows),
            details={**self.to_json(), "runs": [run.to_json() for run in self.runs]},
        )


def row_json(row: numbers.Row) -> dict[str, Any]:
    """A row with plain keys; sizes in bytes, times in microseconds."""
    return {
        "setting": row.setting.name,
        "words": row.setting.words,
        "overrides": dict(row.setting.overrides),
        "state": row.state,
        "why": row.why,
        "us": {
            str(size): {"median": t.median, "low": t.low, "high": t.high, "repeats": list(t.repeats)}
            for size, t in row.timings.items()
        },
        "ran": {str(size): list(ways) for size, ways in row.ran.items()},
        "transports": list(row.transports),
        "differs": row.differs,
        "ran_not_seen": row.unseen,
        "error_over_bound": row.error,
        "bit_equal": row.bit_equal,
    }


def _verdict(row: numbers.Row) -> Verdict:
    if row.measured:
        return Verdict(row.setting.name, "pass", f"every sum within rounding of the float64 sum; {row.setting.words}")
    state = "not applicable" if row.state == answer.UNAVAILABLE else "fail"
    return Verdict(row.setting.name, state, f"{row.state}: {row.why}")


def decode_bytes(envelope: Envelope) -> int:
    """Bytes of one all-reduce when all sequences of the envelope decode: hidden size in bf16, one token each."""
    return envelope.serve.sequences * step.BYTES_PER_TOKEN


def decode_sizes(envelope: Envelope | None, sizes: Sequence[int]) -> tuple[int, ...]:
    wanted = (decode_bytes(envelope),) if envelope is not None else step.DECODE_SIZES
    return tuple(size for size in wanted if size in sizes)
