"""`invoke plan`: a server's memory, what fits a rig, what must shrink, and a boot's log against its prediction."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sm86.cli.guard import require_values, whole_number
from sm86.cli.plan_input import read_model, read_rig
from sm86.errors import EXIT_FINDING, EXIT_OK, CouldNotRun
from sm86.fit import memory_plan
from sm86.fit.memory_plan import MemoryPlan
from sm86.fit.rig import PlanRig
from sm86.plan.memory import Server
from sm86.plan.shape import FLASH, Shape
from sm86.spec import Envelope, envelope_names, load_all, load_envelope

WHAT_IF_CONTEXTS = (393_216, 524_288)
MOST = 2**31
DECIDING = ("published", "development")
"""Envelopes whose verdict decides the exit code where all are shown; an experimental one may fail to fit."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings given on the command line in place of an envelope's; None where not given."""

    context: int | None = None
    sequences: int | None = None
    batched_tokens: int | None = None
    async_scheduling: bool | None = None
    blocks: int | None = None
    pool_bytes: int | None = None
    tensor_parallel: int | None = None

    @property
    def given(self) -> tuple[str, ...]:
        names = (
            "context",
            "sequences",
            "batched_tokens",
            "async_scheduling",
            "blocks",
            "pool_bytes",
            "tensor_parallel",
        )
        return tuple(name for name in names if getattr(self, name) is not None)


def plan(
    envelope: str | None = None,
    rig: str | None = None,
    model: str | None = None,
    fit: bool = False,
    what_if: str | bool | None = None,
    check: str | None = None,
    context: str | int | None = None,
    sequences: str | int | None = None,
    batched_tokens: str | int | None = None,
    async_scheduling: str | bool | None = None,
    blocks: str | int | None = None,
    pool_bytes: str | int | None = None,
    tensor_parallel: str | int | None = None,
    out: str | None = None,
    png: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    record: bool = False,
) -> int:
    """Plan memory; see `docs/plan.md` for the four questions it answers.

    record: write a record of each plan, for the report; of envelopes as they are only.
    Returns 0, or 1 where something does not fit for sure, or a log is not as predicted. Raises CouldNotRun for bad
    input and for questions that exclude each other, CheckFailed where nothing fits.
    """
    require_values(envelope=envelope, rig=rig, model=model, check=check, what_if=what_if, out=out, png=png)
    options = Options(
        context=whole_number(context, "context", 1, MOST),
        sequences=whole_number(sequences, "sequences", 1, 4096),
        batched_tokens=whole_number(batched_tokens, "batched-tokens", 1, 1_048_576),
        async_scheduling=_flag(async_scheduling, "async-scheduling"),
        blocks=whole_number(blocks, "blocks", 1, MOST),
        pool_bytes=whole_number(pool_bytes, "pool-bytes", 0, 2**50),
        tensor_parallel=whole_number(tensor_parallel, "tensor-parallel", 1, 1024),
    )
    asked = [name for name, value in (("--fit", fit), ("--what-if", what_if), ("--check", check)) if value]
    if len(asked) > 1:
        raise CouldNotRun(f"{' and '.join(asked)} are different questions", "ask them one by one")
    _require_fitting(asked, options, envelope, out, png, dry_run)
    if png is not None:
        from sm86.report.plan_picture import require_png

        require_png(Path(png))
    if record and (asked or options.given or model is not None):
        raise CouldNotRun("a record is of a shipped envelope's own plan", "leave out the other settings, or --record")
    shape = read_model(model)
    place = read_rig(rig)
    if check is not None:
        return _check(check, envelope, place, shape, json)
    if fit:
        return _fit(place, shape, options, out, png, dry_run, json)
    if what_if:
        return _what_if(what_if, envelope, place, shape, options, png, json)
    if envelope is None and not options.given:
        return _overview(place, shape, png, json, record)
    return _one(envelope, place, shape, options, png, json, record)


def _flag(value: str | bool | None, name: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    known = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
    if value.lower() not in known:
        raise CouldNotRun(f"--{name} is {value!r}", "give on or off")
    return known[value.lower()]


def _require_fitting(
    asked: list[str], options: Options, envelope: str | None, out: str | None, png: str | None, dry_run: bool
) -> None:
    """Raise CouldNotRun for options that the question has no use for: they would be passed over in silence."""
    question = asked[0] if asked else ""
    idle = []
    if question == "--fit":
        idle = [name for name in options.given if name in ("blocks", "pool_bytes")]
        idle += ["envelope"] if envelope else []
    elif question == "--check":
        idle = [*options.given, *(["png"] if png else [])]
    elif question == "--what-if":
        idle = [name for name in options.given if name in ("context", "blocks", "pool_bytes")]
    if question != "--fit":
        idle += [name for name, value in (("out", out), ("dry_run", dry_run)) if value]
    if idle:
        name = idle[0].replace("_", "-")
        raise CouldNotRun(
            f"--{name} means nothing {f'with {question}' if question else 'without --fit'}", "leave it out"
        )


def _one(
    name: str | None, rig: PlanRig, shape: Shape, options: Options, png: str | None, json: bool, record: bool
) -> int:
    spec = load_envelope(name or "sm86-262k")
    made = _plan_of(spec, rig, shape, options, name is None)
    _show_plans([(made, spec.status)], False, png, json)
    if record:
        _save([(made, spec)], json)
    return EXIT_OK if made.passed else EXIT_FINDING


def _plan_of(spec: Envelope, rig: PlanRig, shape: Shape, options: Options, unnamed: bool) -> MemoryPlan:
    server = _changed(memory_plan.server_of(spec, shape), options, shape)
    utilization = spec.serve.gpu_memory_utilization
    label = "settings" if unnamed else f"{spec.name}, changed" if options.given else spec.name
    pinned = options.blocks is not None or options.pool_bytes is None
    return memory_plan.plan(label, server, rig, shape, utilization, pool_bytes=options.pool_bytes, pinned=pinned)


def _changed(server: Server, options: Options, shape: Shape) -> Server:
    """The server with the settings that were given; the blocks follow unless they were given themselves."""
    sizes = server.capture_sizes
    if options.sequences is not None and sizes:
        sizes = (1,) if options.sequences == 1 else (1, options.sequences)
    wanted = replace(
        server,
        context=options.context or server.context,
        sequences=options.sequences or server.sequences,
        batched_tokens=options.batched_tokens or server.batched_tokens,
        async_scheduling=server.async_scheduling if options.async_scheduling is None else options.async_scheduling,
        ranks=options.tensor_parallel or server.ranks,
        capture_sizes=sizes,
    )
    if options.blocks is not None:
        return replace(wanted, blocks=options.blocks)
    return wanted if wanted == server else replace(wanted, blocks=memory_plan.override_for(shape, wanted))


def _overview(rig: PlanRig, shape: Shape, png: str | None, json: bool, record: bool) -> int:
    specs = [spec for spec in load_all() if spec.uses_gpu]
    plans, skipped = [], []
    for spec in specs:
        if spec.serve.tensor_parallel > rig.count:
            skipped.append(spec.name)
        else:
            plans.append((memory_plan.plan_envelope(spec, rig, shape), spec.status))
    if not plans:
        raise CouldNotRun(
            f"every shipped envelope needs {min(spec.serve.tensor_parallel for spec in specs)} GPUs or more, "
            f"{rig.title} has {rig.count}",
            "ask what fits it: invoke plan --fit --rig ...",
        )
    _show_plans(plans, True, png, json, skipped)
    if record:
        _save([(made, load_envelope(made.name)) for made, _ in plans], json)
    bad = any(not made.passed for made, status in plans if status in DECIDING)
    return EXIT_FINDING if bad else EXIT_OK


def _save(plans: Sequence[tuple[MemoryPlan, Envelope]], json: bool) -> None:
    from sm86.cli.plan_record import to_record
    from sm86.record import save
    from sm86.report.plan_json import plan_values

    now = datetime.now(UTC)
    for made, spec in plans:
        path = save(to_record(plan_values(made), spec, now))
        print(f"record: {path}", file=sys.stderr if json else sys.stdout)


def _show_plans(
    plans: Sequence[tuple[MemoryPlan, str]], overview: bool, png: str | None, json: bool, skipped: Sequence[str] = ()
) -> None:
    if json:
        from sm86.report.plan_json import plan_values

        values = [plan_values(made) | {"status": status} for made, status in plans]
        print(json_module.dumps({"schema": "sm86.plan", "version": 1, "plans": values}, indent=1))
    else:
        from sm86.report.plan_table import print_overview, print_plan
        from sm86.report.plan_words import console

        if overview:
            print_overview(console(), plans)
            for name in skipped:
                print(f"{name}: needs more GPUs than this rig has")
        else:
            print_plan(console(), plans[0][0])
    _draw([made for made, _ in plans], png, json)


def _draw(plans: Sequence[MemoryPlan], png: str | None, json: bool) -> None:
    if png is None:
        return
    from sm86.report.plan_picture import draw

    draw(plans, Path(png))
    if not json:
        print(f"drawn: {png}")


def _fit(
    rig: PlanRig, shape: Shape, options: Options, out: str | None, png: str | None, dry_run: bool, json: bool
) -> int:
    from sm86.fit.envelope_toml import name_of, to_toml
    from sm86.fit.search import Wish, search

    wish = Wish(
        context=options.context,
        sequences=options.sequences,
        tensor_parallel=options.tensor_parallel,
        batched_tokens=options.batched_tokens,
        async_scheduling=bool(options.async_scheduling),
    )
    if shape != FLASH and not dry_run:
        raise CouldNotRun(
            "the envelope would be of the family that serves DeepSeek-V4-Flash, and --model is another one",
            "give --dry-run to see what fits",
        )
    found = search(rig, wish, shape)
    name = Path(out).stem if out else name_of(rig, found.best.server)
    if name in envelope_names():
        raise CouldNotRun(
            f"{name} is a shipped envelope: records and services of the two would be mixed up", "give another --out"
        )
    text = to_toml(found.best, rig, name)
    path = Path(out or f"{name}.toml")
    _require_loads(text, path.name)
    if not dry_run:
        _write(text, path)
    if json:
        from sm86.report.plan_json import search_values

        values = search_values(found) | {"written": None if dry_run else str(path), "toml": text}
        print(json_module.dumps(values, indent=1))
    else:
        from sm86.report.plan_answers import print_search
        from sm86.report.plan_words import console

        print_search(console(), found)
        print()
        print(text if dry_run else f"written: {path} (start it with: invoke up --envelope {path})")
    plans = [replace(c.plan, name=name_of(rig, c.server)) for c in found.candidates]
    _draw(plans, png, json)
    return EXIT_OK if found.best.sure and found.best.plan.passed else EXIT_FINDING


def _require_loads(text: str, name: str) -> None:
    """Read the envelope back as any other is read, before it goes to its place."""
    import tempfile

    if not name.endswith(".toml"):
        raise CouldNotRun(f"{name} does not end in .toml", "give the envelope's file as --out NAME.toml")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        try:
            load_envelope(str(path))
        except CouldNotRun as refusal:
            raise CouldNotRun(refusal.what.replace(f"{folder}/", ""), refusal.mend) from None


def _write(text: str, path: Path) -> None:
    from sm86.files import write_atomic

    if path.is_file() and path.read_bytes() != text.encode():
        raise CouldNotRun(f"{path} is there already, and is another envelope", "give another --out, or move it away")
    write_atomic(path, text)


def _what_if(
    asked: str | bool, name: str | None, rig: PlanRig, shape: Shape, options: Options, png: str | None, json: bool
) -> int:
    from sm86.fit.what_if import published, what_if

    number = None if asked is True else whole_number(str(asked), "what-if", 1, shape.positions)
    spec = load_envelope(name or "sm86-262k")
    server = _changed(memory_plan.server_of(spec, shape), options, shape)
    contexts = WHAT_IF_CONTEXTS if number is None else (number,)
    utilization = spec.serve.gpu_memory_utilization
    answers = [what_if(server, context, rig, shape, utilization) for context in contexts]
    # the published miss is that rig's and that model's, whatever is planned here
    miss = published(read_rig(None))
    if json:
        from sm86.report.plan_json import what_if_values

        print(json_module.dumps(what_if_values(answers, miss), indent=1))
    else:
        from sm86.report.plan_answers import print_published, print_what_if
        from sm86.report.plan_words import console

        shown = console()
        for answer in answers:
            print_what_if(shown, answer)
            print()
        print_published(shown, miss)
    _draw([answer.base for answer in answers], png, json)
    return EXIT_OK if all(answer.base.room.low >= 0 for answer in answers) else EXIT_FINDING


def _check(log: str, name: str | None, rig: PlanRig, shape: Shape, json: bool) -> int:
    from sm86.cli.verify import chunks_of
    from sm86.fit import check_log, log_facts

    spec = load_envelope(name) if name is not None else None
    if spec is not None:
        memory_plan.require_plannable(spec)
    where = "standard input" if log == "-" else log
    facts = log_facts.read(chunks_of(log), where)
    answer = check_log.check(facts, shape, spec, rig.multiprocessors)
    if json:
        from sm86.report.plan_json import check_values

        print(json_module.dumps(check_values(answer), indent=1))
    else:
        from sm86.report.plan_answers import print_check
        from sm86.report.plan_words import console

        print_check(console(), answer)
    return answer.exit_code
