"""`invoke probe.dispatch` and `invoke probe.spec`: one boot with diagnostics on, read, and brought down again."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.cli import boot_view
from sm86.cli.bench import progress
from sm86.cli.ending import end
from sm86.cli.engines import open_engine
from sm86.cli.guard import whole_number
from sm86.cli.intended import tell_intended
from sm86.errors import EXIT_FINDING, EXIT_OK, CheckFailed, CouldNotRun, printable
from sm86.json_text import parse as parse_json
from sm86.measure.api_key import read_api_key
from sm86.probe import dispatch as readouts
from sm86.probe import spec as spec_readouts
from sm86.probe.dispatch import Expected
from sm86.probe.lines import Lines, read
from sm86.probe.spec import Rates
from sm86.record import Conditions, Number, Record, Verdict, latest, save
from sm86.record.store import RESULTS_DIR
from sm86.spec import Envelope, load_envelope

if TYPE_CHECKING:
    from sm86.host.engine import ServerEngine

SCHEMA = "sm86.probe"
VERSION = 1

NOT_APPLICABLE = "not applicable: no CUDA graphs on this engine"
DISPATCH_TOKENS = 64
SPEC_TOKENS = 192
DRAFT_LINES = 64
DEFAULT_DRAFTS = '{"method":"mtp","num_speculative_tokens":1}'
LOG_WAIT_S = 20.0
"""The last steps' lines reach the log after the answer does; a busy machine takes seconds."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What one probing boot gave. log: where the server's whole log is kept."""

    lines: Lines
    conditions: Conditions
    tok_s: float | None
    tokens_per_step: float | None
    log: Path | None = None


def dispatch(
    envelope_name: str,
    engine: str = "docker",
    tokens: str | int | None = None,
    port: str | int | None = None,
    api_key_file: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    results_dir: str | Path = RESULTS_DIR,
) -> int:
    """Boot once with dispatch diagnostics, decode `tokens` of each sequence, and say how batches were dispatched.

    Exit code 0: all decode batches were replayed in the expected shape (or there is nothing to probe); 1: not, with the
    next root cause; 2: could not run. Nothing is left running, whatever happens.
    """
    envelope = load_envelope(envelope_name)
    wanted = whole_number(tokens, "tokens", 8, 4096) or DISPATCH_TOKENS
    if not envelope.uses_gpu:
        return _tell_not_applicable(envelope, "dispatch", json)
    settings = ("CUDAGRAPH_DISPATCH_DEBUG=1",)
    if dry_run:
        return tell_intended("probe.dispatch", _intended(envelope, engine, port, settings, wanted), json)
    key = read_api_key(api_key_file)
    started, began = datetime.now(UTC), time.monotonic()
    boot = _boot(envelope, engine, port, settings, wanted, key, Path(results_dir))
    found = readouts.read_out(boot.lines, expected_of(envelope))
    numbers = [Number(f"batches {outcome}", float(count), "") for outcome, count in sorted(found.counts.items())]
    verdict = Verdict("dispatch", found.state, found.text)
    details = {"name": "dispatch", "settings": list(settings), **_plain(found)}
    record = _record(envelope, started, began, boot, numbers, verdict, details)
    path = save(record, Path(results_dir))
    _tell(envelope, record, path, boot.log, found.mend, found.evidence, _kind_lines(found.kinds), json)
    return EXIT_OK if found.state == readouts.PASS else EXIT_FINDING


def spec(
    envelope_name: str,
    engine: str = "docker",
    config: str | None = None,
    tokens: str | int | None = None,
    port: str | int | None = None,
    api_key_file: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    results_dir: str | Path = RESULTS_DIR,
) -> int:
    """Boot once with drafting on, and say whether drafts are captured and lose on compute, or are dispatched wrongly.

    config: vLLM's JSON for SPECULATIVE_CONFIG (default: the checkpoint's own MTP layer, one token). Exit code 0: it is
    captured; 1: it is not, or could not be seen; 2: could not run.
    """
    envelope = load_envelope(envelope_name)
    wanted = whole_number(tokens, "tokens", 8, 4096) or SPEC_TOKENS
    drafts = config or DEFAULT_DRAFTS
    from sm86.launch import overrides

    overrides.read("SPECULATIVE_CONFIG", drafts, "--config")
    if drafts == "none":
        raise CouldNotRun("--config none drafts nothing", "leave it out, or give vLLM's JSON")
    if not envelope.uses_gpu:
        return _tell_not_applicable(envelope, "spec", json)
    settings = (f"SPECULATIVE_CONFIG={drafts}", f"SPEC_CUDAGRAPH_DEBUG={DRAFT_LINES}", "CUDAGRAPH_DISPATCH_DEBUG=1")
    if dry_run:
        return tell_intended("probe.spec", _intended(envelope, engine, port, settings, wanted), json)
    key = read_api_key(api_key_file)
    started, began = datetime.now(UTC), time.monotonic()
    boot = _boot(envelope, engine, port, settings, wanted, key, Path(results_dir))
    rates = Rates(boot.tok_s, _plain_rate(envelope, boot.conditions, Path(results_dir)), boot.tokens_per_step)
    count = int(parse_json(drafts)["num_speculative_tokens"])
    found = spec_readouts.read_spec(boot.lines, expected_of(envelope, count), rates)
    numbers = [
        Number(name, value, unit, note="a probe, not a benchmark")
        for name, value, unit in (
            ("decode with drafts", rates.drafted, "tok/s"),
            ("tokens per step", rates.tokens_per_step, ""),
        )
        if value is not None
    ]
    verdict = Verdict("spec", found.state, found.text)
    details = {"name": "spec", "kind": found.kind, "settings": list(settings), **_plain(found)}
    record = _record(envelope, started, began, boot, numbers, verdict, details)
    path = save(record, Path(results_dir))
    _tell(envelope, record, path, boot.log, found.mend, found.evidence, _kind_lines(found.target.kinds), json)
    return EXIT_OK if found.state == readouts.PASS else EXIT_FINDING


def expected_of(envelope: Envelope, spec_tokens: int = 0) -> Expected:
    """The capture shape that the envelope asks for."""
    graphs = envelope.graphs
    return Expected(graphs.mode, tuple(graphs.capture_sizes), envelope.serve.sequences, spec_tokens)


def _boot(
    envelope: Envelope,
    engine: str,
    port: str | int | None,
    settings: Sequence[str],
    tokens: int,
    key: str | None,
    results: Path,
) -> Boot:
    """One boot with these settings, some decode, its log read and kept; stopped at the end in every case."""
    option = "" if engine == "docker" else f" --engine {engine}"
    server = open_engine(envelope, engine, port, settings)
    before = server.state()
    if before.is_up:
        raise CouldNotRun(
            f"{envelope.name} runs already, and a probe boots it anew",
            f"stop it first: invoke down --envelope {envelope.name}{option}",
        )
    server = open_engine(envelope, engine, port, settings, to_start=True)
    try:
        boot = _probed(envelope, server, tokens, key)
    finally:
        log = end(server, before, _say, results)
    return replace(boot, log=log)


def _probed(envelope: Envelope, server: ServerEngine, tokens: int, key: str | None) -> Boot:
    from sm86.host.facts import conditions
    from sm86.host.watch import boot_and_wait

    with boot_view.progress(f"{envelope.name} starts for a probe ({server.kind})") as show:
        result = boot_and_wait(server, envelope, show)
    if result.failure is not None:
        raise CheckFailed(
            f"the probe's boot failed: {result.failure.what}",
            result.failure.mend,
            tuple(text for _, text in result.failure.lines[:5]),
        )
    tok_s, per_step = _decode(envelope, server, tokens, key)
    return Boot(_lines_of(server), conditions(server, envelope, result.manifest), tok_s, per_step)


def _decode(
    envelope: Envelope, server: ServerEngine, tokens: int, key: str | None
) -> tuple[float | None, float | None]:
    """Decode `tokens` of every sequence at once: aggregate tok/s while all decode, and tokens per step."""
    from sm86.measure import plan as plans
    from sm86.measure import preflight
    from sm86.measure.client import Client, Request, ServerFault, parse_address, run_together
    from sm86.measure.drafts import read_drafts, tokens_per_step
    from sm86.measure.rounds import COMPLETIONS, FORCED, Rounds
    from sm86.measure.window import Window, steady_window

    client = Client(parse_address(server.base_url), key)
    steps = replace(plans.plan(envelope, 1), prompt_tokens=512, decode_tokens=tokens, full_context=False)
    with progress() as shown:
        try:
            facts = preflight.check_server(client, steps)
            rounds = Rounds(client, steps, facts, shown)
            made = rounds.prompts(f"probe{time.time_ns() % 1_000_000}")
            rounds.prime(made)
            before = read_drafts(client.get_text("/metrics"))
            shown.stage("decode with diagnostics on", tokens * steps.sequences, "tokens")
            body = {**FORCED, "model": steps.model, "max_tokens": tokens, "min_tokens": tokens}
            requests = [Request(COMPLETIONS, {**body, "prompt": p.text}, tokens, steps.queued_tokens) for p in made]
            timelines = run_together(client, requests, shown.advance)
            after = read_drafts(client.get_text("/metrics"))
        except ServerFault as fault:
            raise CheckFailed(
                f"the server failed during the probe: {fault.problem}",
                "see its last words; drafting or diagnostics may have brought it down",
                (fault.server_said,) if fault.server_said else (),
            ) from None
    window = steady_window(timelines)
    return window.aggregate_tok_s if isinstance(window, Window) else None, tokens_per_step(before, after)


def _lines_of(server: ServerEngine) -> Lines:
    """The log's dispatch lines, once no more come."""
    deadline = time.monotonic() + LOG_WAIT_S
    found = read(())
    while True:
        text = b"".join(server.log_chunks(follow=False, this_run=True)).decode("utf-8", "replace")
        again = read(text.splitlines())
        if again.dispatches and len(again.dispatches) == len(found.dispatches):
            return again
        found = again
        if time.monotonic() >= deadline:
            return again
        time.sleep(0.5)


def _plain_rate(envelope: Envelope, conditions: Conditions, results: Path) -> float | None:
    """The newest benchmark's rate of the same envelope on the same engine; None where there is none to compare."""
    try:
        record = latest(envelope.name, "bench", results)
    except CouldNotRun:
        # a boot has been paid for; what it found does not hang on an older file
        return None
    if record is None or record.conditions.mark != conditions.mark or record.envelope_digest != envelope.digest():
        return None
    if "SPECULATIVE_CONFIG" in record.conditions.overrides:
        return None
    return next((number.value for number in record.numbers if number.name == "decode aggregate"), None)


def _record(
    envelope: Envelope,
    started: datetime,
    began: float,
    boot: Boot,
    numbers: Sequence[Number],
    verdict: Verdict,
    details: dict[str, Any],
) -> Record:
    return Record(
        kind="probe",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=started,
        seconds=round(time.monotonic() - began, 3),
        conditions=boot.conditions,
        numbers=tuple(numbers),
        verdicts=(verdict,),
        details=details | {"server_log": boot.log.name if boot.log else None},
    )


def _plain(found: Any) -> dict[str, Any]:
    values: dict[str, Any] = json_module.loads(json_module.dumps(asdict(found)))
    return {name: value for name, value in values.items() if name not in ("state", "text")}


def _kind_lines(kinds: Sequence[readouts.Kind]) -> list[str]:
    lines = []
    for kind in kinds[:12]:
        size = f"{kind.tokens} tokens of {kind.requests}" if kind.tokens else "prefill"
        lines.append(f"  {kind.count:>6} x {kind.outcome:<5} cg_mode={kind.mode:<9} {size:<16} {kind.reason}")
    if len(kinds) > 12:
        lines.append(f"  and {len(kinds) - 12} more kinds, in the record")
    return lines


def _tell(
    envelope: Envelope,
    record: Record,
    path: Path,
    log: Path | None,
    mend: str,
    evidence: Sequence[str],
    kinds: Sequence[str],
    json: bool,
) -> None:
    verdict = record.verdicts[0]
    if json:
        values = {"envelope": envelope.name, **asdict(verdict), "mend": mend, **record.details, "record": str(path)}
        values["server_log"] = str(log) if log else None
        print(json_module.dumps({"schema": SCHEMA, "version": VERSION, **values}, indent=2))
        return
    print(f"{envelope.name}: {verdict.name}: {verdict.state}")
    print(f"  {verdict.text}")
    print("\n".join(kinds))
    for line in evidence:
        print(printable(f"  | {line}"))
    if mend:
        print(f"mend: {mend}")
    print(f"record: {path}")
    if log is not None:
        print(f"log: {log}")


def _say(text: str) -> None:
    print(printable(f"sm86: {text}"), file=sys.stderr, flush=True)


def _tell_not_applicable(envelope: Envelope, probe: str, json: bool) -> int:
    if json:
        values = {"envelope": envelope.name, "name": probe, "state": "not applicable", "text": NOT_APPLICABLE}
        print(json_module.dumps({"schema": SCHEMA, "version": VERSION, **values}, indent=2))
    else:
        print(f"{envelope.name}: {NOT_APPLICABLE}; nothing was started")
    return EXIT_OK


def _intended(
    envelope: Envelope, engine: str, port: str | int | None, settings: Sequence[str], tokens: int
) -> list[str]:
    server = open_engine(envelope, engine, port, settings, dry_run=True)
    return [
        f"{envelope.name}: nothing was started; the probe would",
        f"  1. boot it with {', '.join(settings)}",
        *(f"       {line}" for line in server.plan()),
        f"  2. decode {tokens} tokens of each of {envelope.serve.sequences} sequences",
        "  3. read its log, keep it beside the record, and bring it down",
    ]
