"""`invoke bench`: measure a running server and say what came out, with its conditions."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sm86.cli.guard import whole_number
from sm86.errors import EXIT_FINDING, EXIT_OK
from sm86.measure import judge
from sm86.measure.api_key import read_api_key
from sm86.measure.bench import run
from sm86.measure.client import Client, parse_address
from sm86.measure.plan import BenchPlan, plan
from sm86.measure.result import BenchResult, to_record
from sm86.measure.telemetry import Source
from sm86.record import Conditions, save
from sm86.record.store import RESULTS_DIR
from sm86.spec import Envelope, load_envelope

if TYPE_CHECKING:
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID

BASE_URL = "http://127.0.0.1:8000"
MAX_REPEATS = 100
MAX_TOKENS = 1_000_000


def bench(
    envelope_name: str,
    base_url: str = BASE_URL,
    api_key_file: str | None = None,
    repeats: str | int | None = None,
    decode_tokens: str | int | None = None,
    json: bool = False,
    results_dir: str | Path = RESULTS_DIR,
    conditions: Conditions | None = None,
    dry_run: bool = False,
    verify_state: str | None = None,
    telemetry: Source | None = None,
) -> int:
    """Benchmark the envelope's server, print the result, write its record.

    conditions: image and rig, as far as the caller knows them; verify_state: what verification of this server's
    log said ("pass", "fail", "not seen"), None where it was not run; telemetry: who watches its GPUs meanwhile.
    Returns 0 when it was measured and the text is coherent, 1 when a check failed. Raises CouldNotRun (no such
    server, wrong model, busy, bad arguments) and CheckFailed (the server failed in the middle).
    """
    envelope = load_envelope(envelope_name)
    steps, key = read_arguments(envelope, repeats, decode_tokens, api_key_file)
    address = parse_address(base_url)
    if dry_run:
        _say_plan(steps, str(address), json)
        return EXIT_OK
    with progress() as shown:
        result = run(envelope, steps, Client(address, key), conditions, verify_state, shown, telemetry=telemetry)
    record = to_record(result)
    path = save(record, Path(results_dir))
    if json:
        print(json_module.dumps(record.to_json(), indent=2, ensure_ascii=False))
        print(f"record: {path}", file=sys.stderr)
    else:
        print("\n".join((*lines(result), f"record: {path}")))
    return EXIT_OK if result.good else EXIT_FINDING


def read_arguments(
    envelope: Envelope, repeats: str | int | None, decode_tokens: str | int | None, api_key_file: str | None
) -> tuple[BenchPlan, str | None]:
    """The plan and the API key of these arguments. Raises CouldNotRun for a wrong one."""
    steps = plan(
        envelope,
        whole_number(repeats, "repeats", 1, MAX_REPEATS),
        whole_number(decode_tokens, "decode-tokens", 1, MAX_TOKENS),
    )
    return steps, read_api_key(api_key_file)


def lines(result: BenchResult) -> tuple[str, ...]:
    """The result in words, one line each; every line with a number of speed carries its mark ("CPU")."""
    steps = result.plan
    mark = f"  [{result.conditions.mark}]" if result.conditions.mark else ""
    lengths = [t.prompt_tokens for t in result.repeats[0].timelines if t.prompt_tokens is not None]
    prompts = f"prompts of {_span(lengths, 0)} tokens" if lengths else "prompts of unknown length"
    said = [
        f"{result.envelope.name}: {_many(steps.sequences, 'sequence')}, {prompts}, "
        f"{steps.decode_tokens} decoded by each, {_many(steps.repeats, 'repeat')}{mark}"
    ]
    if result.aggregates:
        said.append(f"  together    {_rate(result.aggregates)}{mark}")
        for number, rates in enumerate(result.per_sequence(), 1):
            said.append(f"  sequence {number:<3}{_rate(rates)}{mark}")
    else:
        said.append("  no number: see the window below")
    published = result.envelope.published
    if published is not None:
        each = " / ".join(str(rate) for rate in published.per_sequence_tok_s)
        said.append(
            f"  published   {published.aggregate_tok_s:8.1f} tok/s ({each}); definition not stated by the source"
        )
    first = [max(seen) for r in result.repeats if (seen := [s for s in r.first_token_s if s is not None])]
    if first:
        said.append(f"  first token {median(first):8.2f} s after sending (for information){mark}")
    said += [f"{_state(v.name, v.state):<14}  {v.name}: {v.text}" for v in result.verdicts]
    said.append(_verdict_line(result, mark))
    return tuple(said)


def _verdict_line(result: BenchResult, mark: str) -> str:
    if result.good:
        return f"measured and coherent; {result.comparison.verdict}{mark}"
    states = {verdict.name: verdict.state for verdict in result.verdicts}
    bad = [name for name in judge.GATES if states[name] not in ("pass", "not applicable")]
    why = ", ".join(f"{name} ({states[name]})" for name in bad) or "neither text nor answers could be judged"
    return f"not a result: {why}{mark}"


def _state(name: str, state: str) -> str:
    return "warning" if state == "fail" and name not in judge.GATES else state


def _rate(values: Sequence[float]) -> str:
    spread = f" ({_span(values, 1)})" if len(values) > 1 else ""
    return f"{median(values):8.1f} tok/s{spread}"


def _span(values: Sequence[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _say_plan(steps: BenchPlan, address: str, json: bool) -> None:
    if not json:
        print(f"{steps.envelope} at {address}: nothing was sent; the benchmark would")
        print("\n".join(f"  {number}. {step}" for number, step in enumerate(steps.steps(), 1)))
        return
    values: dict[str, Any] = {
        "schema": "sm86.bench-plan",
        "version": 1,
        "envelope": steps.envelope,
        "base_url": address,
        "model": steps.model,
        "sequences": steps.sequences,
        "context": steps.context,
        "prompt_tokens": steps.prompt_tokens,
        "decode_tokens": steps.decode_tokens,
        "repeats": steps.repeats,
        "steps": list(steps.steps()),
    }
    print(json_module.dumps(values, indent=2))


def progress() -> Bars | Lines:
    return Bars() if sys.stderr.isatty() else Lines()


class Lines(AbstractContextManager["Lines"]):
    """One plain line on stderr for each stage: for pipes and logs."""

    def __exit__(self, *_: object) -> None:
        return None

    def stage(self, text: str, total: int, unit: str) -> None:
        print(f"sm86: {text}" + (f" ({total} {unit})" if unit else ""), file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        pass


class Bars(AbstractContextManager["Bars"]):
    """A bar for each stage, on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars: RichBars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()

    def stage(self, text: str, total: int, unit: str) -> None:
        self._finish()
        self._task = self._bars.add_task(text, total=total, unit=unit)

    def advance(self, count: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, count)

    def _finish(self) -> None:
        # a model may end before the planned number of tokens, so a finished stage is filled up
        if self._task is not None:
            total = self._bars.tasks[-1].total
            self._bars.update(self._task, completed=total)
