"""`invoke comm`: every way of making the decode step's all-reduce on this rig, beside one another, without a model."""

from __future__ import annotations

import contextlib
import importlib.util
import json as json_module
import os
import sys
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sm86.cli.bench import progress
from sm86.cli.comm_view import EMULATED, RIG, Matrix, decode_bytes
from sm86.cli.engines import ROOT, check_dotenv, docker_engine, open_engine
from sm86.cli.guard import whole_number
from sm86.comm import answer, matrix, step
from sm86.comm.answer import Run
from sm86.comm.matrix import Setting
from sm86.comm.plan import CPU, CUDA, Plan
from sm86.comm.recommend import dotenv_lines
from sm86.errors import EXIT_FINDING, EXIT_OK, CouldNotRun
from sm86.files import require_writable
from sm86.record import latest, save
from sm86.record.store import RESULTS_DIR
from sm86.spec import Envelope, load_all, load_envelope

SCHEMA = "sm86.comm"
VERSION = 1

LOCK_FILE = Path(".cache/run/comm.lock")

MAX_RANKS = 8
MAX_SIZE = 16 * 1024 * 1024
EMULATED_RANKS, EMULATED_SIZES, EMULATED_CALLS = 2, (8 * step.KIB, 32 * step.KIB), 8


def comm(
    engine: str = "docker",
    envelope_name: str | None = None,
    only: Sequence[str] = (),
    sizes: str | None = None,
    ranks: str | int | None = None,
    repeats: str | int | None = None,
    calls: str | int | None = None,
    recommend_file: str | None = None,
    png: str | None = None,
    python: str | None = None,
    emulate: bool = False,
    dry_run: bool = False,
    json: bool = False,
    results_dir: str | Path = RESULTS_DIR,
) -> int:
    """Measure the matrix, print it, write its record.

    envelope_name: whose decode size and calls the recommendation is for (default: one to four sequences); only: names
    or patterns of settings; sizes: KiB, joined by commas; calls: all-reduces in a step; recommend_file: write the
    setting to use there as lines of `.env` ("-": print them alone); emulate: CPU processes with gloo in place of GPUs.
    Exit code 0: measured; 1: a setting gave wrong values, failed or hung; 2: could not run (no GPU, a server runs).
    """
    envelope = load_envelope(envelope_name) if envelope_name else None
    plan = plan_from(envelope, only, sizes, ranks, repeats, calls, emulate)
    if png is not None:
        from sm86.comm.picture import require_png

        require_png(Path(png))
    if engine not in ("docker", "local"):
        raise CouldNotRun(f"there is no engine {engine!r}", "use one of: docker, local")
    check_dotenv()
    if dry_run:
        return _tell_plan(plan, engine, emulate, json)
    from sm86.host.comm_run import alone

    with alone(ROOT / LOCK_FILE):
        plan, source, image_id = _source(plan, engine, python, emulate)
        # not after an hour of measuring
        require_writable(Path(results_dir, envelope.name if envelope else RIG, "record.json"))
        for output in (png, recommend_file):
            if output not in (None, "-"):
                require_writable(Path(str(output)))
        began, started = time.monotonic(), datetime.now(UTC)
        runs = _measure(plan, source)
    found = Matrix(plan, envelope, tuple(runs), emulate)
    record = found.record(started, time.monotonic() - began, image_id)
    path = save(record, Path(results_dir))
    if png is not None:
        from sm86.comm.picture import draw

        draw(found.rows, found.headline, found.mark, Path(png))
    if recommend_file not in (None, "-"):
        _write_recommendation(Path(str(recommend_file)), found)
    if json:
        print(
            json_module.dumps({"schema": SCHEMA, "version": VERSION, **found.to_json(), "record": str(path)}, indent=2)
        )
    elif recommend_file == "-":
        print("\n".join(dotenv_lines(found.recommendation)))
        print(f"record: {path}", file=sys.stderr)
    else:
        found.tell()
        print(f"record: {path}" + (f"\ndrawn: {png}" if png else ""))
    return EXIT_FINDING if found.faulty else EXIT_OK


def plan_from(
    envelope: Envelope | None,
    only: Sequence[str],
    sizes: str | None,
    ranks: str | int | None,
    repeats: str | int | None,
    calls: str | int | None,
    emulate: bool,
) -> Plan:
    """The plan of these arguments; `ranks` 0 where they are to be counted. Raises CouldNotRun for a wrong one."""
    every = matrix.emulated_settings() if emulate else matrix.settings()
    usual = EMULATED_SIZES if emulate else (*step.SIZES, step.PREFILL_BYTES)
    wanted = parse_sizes(sizes) if sizes is not None else usual
    if envelope is not None and sizes is None:
        wanted = tuple(sorted({*wanted, decode_bytes(envelope)}))
    number = whole_number(calls, "calls", 1, 10_000) or (EMULATED_CALLS if emulate else _calls_per_step(envelope))
    return Plan(
        ranks=whole_number(ranks, "ranks", 2, MAX_RANKS) or (EMULATED_RANKS if emulate else 0),
        device=CPU if emulate else CUDA,
        sizes=wanted,
        calls=number,
        settings=matrix.chosen(every, only),
        repeats=whole_number(repeats, "repeats", 1, 100) or (2 if emulate else 3),
        replays=5 if emulate else 30,
        warm=1 if emulate else 10,
    )


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of "8,32" (KiB). Raises CouldNotRun."""
    found = []
    for part in text.split(","):
        try:
            size = int(float(part) * step.KIB)
        except (ValueError, OverflowError):
            size = 0
        # whole vectors of 16 bytes: what the collectives move
        if not 16 <= size <= MAX_SIZE or size % 16:
            raise CouldNotRun(f"--sizes {text!r}: {part!r} is no size", "give KiB from 1 to 16384, such as 8,16,32")
        found.append(size)
    return tuple(sorted(set(found)))


def _calls_per_step(envelope: Envelope | None) -> int:
    """All-reduces in a step: of this envelope's newest trace on this machine, else the model's own count."""
    record = latest(envelope.name, "trace") if envelope is not None else None
    calls = record.details.get("all_reduce_calls_per_step") if record is not None else None
    return round(calls) if isinstance(calls, int | float) and calls >= 1 else step.CALLS_PER_STEP


def _measure(plan: Plan, lines: Generator[str]) -> list[Run]:
    runs: list[Run] = []
    with contextlib.closing(lines), progress() as shown:
        many = "s" * (len(plan.settings) > 1)
        times = f"{plan.repeats} times" if plan.repeats > 1 else "once"
        shown.stage(f"{len(plan.settings)} setting{many}, {times}", plan.runs, "runs")
        for line in lines:
            run = answer.run_in_line(line)
            if run is not None:
                runs.append(run)
                shown.advance(1)
    return runs


def _source(plan: Plan, engine: str, python: str | None, emulate: bool) -> tuple[Plan, Generator[str], str | None]:
    """The plan with its ranks counted, the output of its driver, and the image's id; all checked."""
    from sm86.host import comm_run

    if engine == "docker":
        from sm86.host.settings import effective, read_dotenv
        from sm86.image.names import image_name
        from sm86.render.variables import IMAGE

        target = "cpu" if emulate else "gpu"
        if not emulate:
            plan = _with_ranks(plan, engine)
        docker = docker_engine()
        image = effective(IMAGE[target], os.environ, read_dotenv(ROOT / ".env"), image_name(target))
        facts = docker.image(image)
        if facts is None:
            raise CouldNotRun(f"the image {image} is not on this machine", f"invoke build --target {target}")
        text = json_module.dumps(plan.to_json())
        return plan, comm_run.container_lines(docker, image, text, not emulate, plan.limit_total_s), facts.id
    interpreter = _interpreter(python, emulate)
    if not emulate:
        plan = _with_ranks(plan, engine)
    search = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    text = json_module.dumps(plan.to_json())
    return plan, comm_run.local_lines(interpreter, text, search, plan.limit_total_s), None


def _interpreter(python: str | None, emulate: bool) -> Path:
    if python is not None:
        path = Path(python)
        if not os.access(path, os.X_OK) or path.is_dir():
            raise CouldNotRun(f"--python {python} is no program", "give the path of a Python that has torch")
        return path.absolute()
    if importlib.util.find_spec("torch") is not None:
        return Path(sys.executable)
    if emulate:
        from sm86.embedded import environment

        return environment.ensure(ROOT)[0]
    raise CouldNotRun(
        f"this Python ({sys.executable}) has no torch", "use the engine docker, or name a Python that has it: --python"
    )


def _with_ranks(plan: Plan, engine: str) -> Plan:
    """The plan with as many ranks as there are GPUs, or as were asked for. Raises CouldNotRun: too few, or in use."""
    from dataclasses import replace

    from sm86.host.facts import gpu_facts
    from sm86.host.preflight import DRIVER_FILES, require_gpus

    wanted = plan.ranks or 2
    # first of all, as what Docker lacks for GPUs matters only where there are some
    if not any(path.exists() for path in DRIVER_FILES):
        raise CouldNotRun(*NO_GPU)
    count = len(gpu_facts()[1])
    if count < wanted:
        what = NO_GPU[0] if not count else f"this machine has {count} GPU{'s' * (count > 1)}, and {wanted} are needed"
        raise CouldNotRun(what, NO_GPU[1])
    if engine == "docker":
        require_gpus(docker_engine().facts, wanted)
    _require_idle(engine)
    return replace(plan, ranks=plan.ranks or min(count, MAX_RANKS))


NO_GPU = (
    "no NVIDIA GPU answers on this machine, and an all-reduce needs two",
    "run it on the rig; --emulate shows the command on CPU processes, whose numbers say nothing about one",
)


def _require_idle(engine: str) -> None:
    """Raise CouldNotRun while an envelope's server runs: it would be measured along."""
    for envelope in load_all():
        if envelope.uses_gpu and open_engine(envelope, engine).state().is_up:
            option = "" if engine == "docker" else f" --engine {engine}"
            raise CouldNotRun(
                f"{envelope.name} runs on these GPUs", f"invoke down --envelope {envelope.name}{option}, then again"
            )


def _write_recommendation(path: Path, found: Matrix) -> None:
    from sm86.files import write_atomic

    reasons = "".join(f"# {reason}\n" for reason in found.recommendation.reasons)
    lines = "\n".join(dotenv_lines(found.recommendation))
    write_atomic(path, f"# {found.headline}\n{reasons}{lines}\n")


def _tell_plan(plan: Plan, engine: str, emulate: bool, json: bool) -> int:
    ranks = plan.ranks or "as many as there are GPUs"
    if json:
        values = {"engine": engine, "mark": EMULATED if emulate else "", **plan.to_json()}
        print(json_module.dumps({"schema": "sm86.comm-plan", "version": VERSION, **values}, indent=2))
        return EXIT_OK
    sizes = ", ".join(step.size_words(size) for size in plan.sizes)
    each = "on the CPU" if emulate else "one for each GPU"
    print(f"nothing was measured; comm would start {plan.runs} groups of processes ({engine}), {each}:")
    print(f"  ranks     {ranks}")
    print(f"  sizes     {sizes}")
    print(f"  in graph  {plan.calls} all-reduces, {plan.replays} timed replays")
    print(f"  repeats   {plan.repeats}, interleaved; at most {plan.limit_s:.0f} s for each group")
    for setting in plan.settings:
        print(f"  {setting.name:<20} {_shown(setting)}")
    return EXIT_OK


def _shown(setting: Setting) -> str:
    values = " ".join(f"{name}={value}" for name, value in setting.environment)
    return f"{setting.words}{f'  ({values})' if values else ''}"
