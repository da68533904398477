"""`invoke trace.capture`: record some decode steps of a running server, bring the traces here, and analyse them."""

from __future__ import annotations

import contextlib
import json as json_module
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sm86.cli.bench import progress
from sm86.cli.engines import docker_engine, open_engine
from sm86.cli.guard import whole_number
from sm86.cli.intended import tell_intended
from sm86.errors import EXIT_FINDING, EXIT_OK, CheckFailed, CouldNotRun
from sm86.record import Number, Record, Verdict, save
from sm86.record.store import RESULTS_DIR
from sm86.record.store import results_dir as place
from sm86.spec import Envelope, load_envelope
from sm86.trace.capture import (
    SETTLED_TOKENS,
    Profiler,
    Shape,
    annotated_steps,
    decode_steps,
    missing_ranks,
    profiler_of,
    shape_of,
    worker_files,
)

if TYPE_CHECKING:
    from sm86.host.engine import ServerEngine
    from sm86.trace.analysis import FileResult

SCHEMA = "sm86.trace-capture"
VERSION = 1

PROMPT_TOKENS = 1024
EXPORT_S = 1800.0
"""A trace with many ranks was seen to take twenty minutes to write; giving up sooner would leave it half written."""

NO_GPU_KERNELS = "there are no GPU kernels in it: the engine runs on the CPU"


def capture(
    envelope_name: str,
    engine: str = "docker",
    out: str | None = None,
    prompt_tokens: str | int | None = None,
    png: str | None = None,
    port: str | int | None = None,
    api_key_file: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    results_dir: str | Path = RESULTS_DIR,
) -> int:
    """Record the running envelope's decode, and say where its time goes.

    out: folder for the traces (default: results/<envelope>/<UTC>-trace). Exit code 0: recorded and analysed; 1: a
    rank's file is missing, or there is neither a step nor a graph in it (on a GPU); 2: no server, or no profiler in it.
    """
    from sm86.measure.api_key import read_api_key

    envelope = load_envelope(envelope_name)
    wanted = whole_number(prompt_tokens, "prompt-tokens", 16, envelope.serve.context) or _usual_prompt(envelope)
    key = read_api_key(api_key_file)
    if png is not None and Path(png).suffix.lower() != ".png":
        raise CouldNotRun(f"{png} does not end in .png", "give a file name that ends in .png")
    server = open_engine(envelope, engine, port)
    profiler = running_profiler(envelope, server, engine)
    shape = shape_of(profiler, envelope.serve.sequences, envelope.serve.context, wanted)
    started = datetime.now(UTC)
    folder = (
        Path(out) if out is not None else place(Path(results_dir)) / envelope.name / f"{started:%Y%m%dT%H%M%SZ}-trace"
    )
    if dry_run:
        return tell_intended("trace.capture", _plan_lines(envelope, server, profiler, shape, folder), json)
    began = time.monotonic()
    files = _record(envelope, server, profiler, shape, key, folder)
    record, code = _analyse(envelope, server, folder, files, started, began, profiler, shape)
    path = save(record, Path(results_dir))
    if png is not None and record.details["units"]:
        from sm86.trace.analysis import analyse
        from sm86.trace.picture import draw

        draw(analyse(folder / files[min(files)]), Path(png))
    _tell(envelope, folder, files, record, path, json)
    return code


def running_profiler(envelope: Envelope, server: ServerEngine, engine: str) -> Profiler:
    """The profiler of the running server, by its manifest. Raises CouldNotRun: no server, no manifest, no profiler."""
    from sm86.host.health import health
    from sm86.launch.arguments import json_of
    from sm86.manifest import manifest_of

    option = "" if engine == "docker" else f" --engine {engine}"
    start = f"invoke up --envelope {envelope.name}{option} --override SM86_PROFILE_STEPS=50"
    state = server.state()
    if not state.is_up:
        raise CouldNotRun(f"{envelope.name} does not serve: {state.words()}", f"start it: {start}")
    if health(server.base_url) != 200:
        raise CouldNotRun(
            f"{envelope.name} runs and does not answer yet", "wait until invoke status says that it serves"
        )
    log = b"".join(server.log_chunks(follow=False, this_run=True)).decode("utf-8", "replace")
    manifest = manifest_of(log.splitlines())
    if manifest is None:
        raise CouldNotRun(
            f"the log of {envelope.name} has no manifest, so its profiler is not known", f"start it: {start}"
        )
    argv = manifest.get("argv")
    arguments = [str(item) for item in argv] if isinstance(argv, list) else []
    return profiler_of(json_of(arguments, "--profiler-config"), envelope.name, option)


def _usual_prompt(envelope: Envelope) -> int:
    return min(envelope.bench.prompt_tokens or PROMPT_TOKENS, PROMPT_TOKENS, envelope.serve.context // 4)


def _record(
    envelope: Envelope, server: ServerEngine, profiler: Profiler, shape: Shape, key: str | None, folder: Path
) -> dict[int, str]:
    """Rank -> the name of its trace in `folder`."""
    from sm86.measure import plan as plans
    from sm86.measure import preflight, profiled
    from sm86.measure.client import Client, Request, ServerFault, parse_address
    from sm86.measure.limits import Limits
    from sm86.measure.rounds import COMPLETIONS, FORCED, Rounds

    address = parse_address(server.base_url)
    client = Client(address, key)
    stopper = Client(address, key, Limits(answer_s=EXPORT_S))
    steps = replace(
        plans.plan(envelope, 1),
        prompt_tokens=shape.prompt_tokens,
        decode_tokens=shape.decode_tokens,
        full_context=False,
    )
    with progress() as shown:
        try:
            facts = preflight.check_server(client, steps)
            rounds = Rounds(client, steps, facts, shown)
            made = rounds.prompts(f"trace{time.time_ns() % 1_000_000}")
            rounds.prime(made)
        except ServerFault as fault:
            raise preflight.could_not_run(fault, address, envelope.name) from None
        body = {**FORCED, "model": steps.model, "max_tokens": shape.decode_tokens, "min_tokens": shape.decode_tokens}
        requests = [
            Request(COMPLETIONS, {**body, "prompt": prompt.text}, shape.decode_tokens, steps.queued_tokens)
            for prompt in made
        ]
        done = profiled.record(client, stopper, requests, SETTLED_TOKENS, envelope.name, shown)
    names = _fetch(server, profiler, done.started, folder)
    files = worker_files(names)
    if not files:
        raise CheckFailed(
            f"the profiler left no trace in {profiler.folder}",
            f"its log has the reason: invoke logs --envelope {envelope.name}",
        )
    return files


def _fetch(server: ServerEngine, profiler: Profiler, since: float, folder: Path) -> tuple[str, ...]:
    from sm86.host import trace_files

    if server.kind == "docker":
        return trace_files.from_container(docker_engine(), server.envelope.name, profiler.folder, since, folder)
    return trace_files.from_folder(Path(profiler.folder), since, folder)


def _analyse(
    envelope: Envelope,
    server: ServerEngine,
    folder: Path,
    files: dict[int, str],
    started: datetime,
    began: float,
    profiler: Profiler,
    shape: Shape,
) -> tuple[Record, int]:
    """The record of kind "trace", and the exit code."""
    from sm86.host.facts import conditions
    from sm86.manifest import manifest_of
    from sm86.trace.analysis import analyse
    from sm86.trace.as_json import file_json
    from sm86.trace.kernels import Bucket
    from sm86.trace.source import CpuAlone, Truncation, pieces

    log = b"".join(server.log_chunks(follow=False, this_run=True)).decode("utf-8", "replace")
    known = conditions(server, envelope, manifest_of(log.splitlines()))
    first = folder / files[min(files)]
    result: FileResult | None = None
    # what was recorded without a GPU has nothing to attribute, and was recorded all the same
    with contextlib.suppress(CpuAlone):
        result = analyse(first)
    view = result.main if result is not None else None
    steps = decode_steps(pieces(first, Truncation())) if result is None else annotated_steps(result.counts.annotations)
    mark = known.mark
    numbers: list[Number] = []
    calls = None
    if view is not None:
        numbers = [
            Number(
                row.bucket.key,
                round(row.total / view.units / 1000, 3),
                "us",
                note=f"{mark} in each {view.unit}".strip(),
            )
            for row in view.buckets
        ]
        numbers.append(Number("span", round(view.span.median / 1000, 3), "us", note=f"of one {view.unit}, median"))
        calls = next((r.calls / view.units for r in view.buckets if r.bucket == Bucket.ALL_REDUCE), None)
    missing = missing_ranks(files, envelope.serve.tensor_parallel)
    kernels = result.counts.gpu_events if result is not None else 0
    verdicts = (
        Verdict(
            "captured",
            "fail" if missing or not steps else "pass",
            f"no trace of rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            if missing
            else f"{len(files)} of {envelope.serve.tensor_parallel} ranks; the first recorded {steps} decode steps",
        ),
        _kernels_verdict(envelope, kernels, view is not None),
    )
    record = Record(
        kind="trace",
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        started=started,
        seconds=round(time.monotonic() - began, 3),
        conditions=known,
        numbers=tuple(numbers),
        verdicts=verdicts,
        details={
            "folder": str(folder),
            "files": {str(rank): name for rank, name in sorted(files.items())},
            "profiler": asdict(profiler),
            "sent": asdict(shape),
            "units": view.units if view is not None else 0,
            "all_reduce_calls_per_step": calls,
            "decode_steps": steps,
            "trace": file_json(result) if result is not None else None,
        },
    )
    return record, EXIT_FINDING if any(verdict.state == "fail" for verdict in verdicts) else EXIT_OK


def _kernels_verdict(envelope: Envelope, kernels: int, analysed: bool) -> Verdict:
    if not envelope.uses_gpu:
        return Verdict("gpu-kernels", "not applicable", NO_GPU_KERNELS)
    if not kernels:
        return Verdict("gpu-kernels", "fail", "there are no GPU kernels in it: CUPTI recorded none")
    if not analysed:
        return Verdict("gpu-kernels", "fail", f"{kernels:,} GPU events, and neither a step of vLLM nor a graph launch")
    return Verdict("gpu-kernels", "pass", f"{kernels:,} GPU events in the first rank's trace")


def _tell(envelope: Envelope, folder: Path, files: dict[int, str], record: Record, path: Path, json: bool) -> None:
    if json:
        values = {"schema": SCHEMA, "version": VERSION, **record.to_json()["details"], "record": str(path)}
        values["verdicts"] = [asdict(verdict) for verdict in record.verdicts]
        values["mark"] = record.conditions.mark
        print(json_module.dumps(values, indent=2))
        return
    mark = f"  [{record.conditions.mark}]" if record.conditions.mark else ""
    print(f"{envelope.name}: {len(files)} trace{'s' * (len(files) != 1)} in {folder}{mark}")
    for verdict in record.verdicts:
        print(f"{verdict.state:<14}  {verdict.name}: {verdict.text}")
    if record.details["units"]:
        from sm86.cli import trace as cli

        cli.trace(str(folder))
    print(f"record: {path}")


def _plan_lines(
    envelope: Envelope, server: ServerEngine, profiler: Profiler, shape: Shape, folder: Path
) -> tuple[str, ...]:
    return (
        f"{envelope.name} ({server.describe()}): nothing was sent; the capture would",
        f"  1. prime {shape.sequences} prompts of {shape.prompt_tokens} tokens",
        f"  2. decode {shape.decode_tokens} tokens of each, and start the profiler when all of them decode",
        f"  3. record {profiler.steps} steps after {profiler.delay} others",
        f"  4. bring the traces from {profiler.folder} to {folder}, and analyse them",
    )
