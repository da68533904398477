"""`invoke ladder.sequence`, `ladder.context`, `ladder.comm`: envelopes one after another, resumable, one judgement."""

from __future__ import annotations

import fcntl
import json as json_module
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sm86.cli.engines import ROOT, parse_overrides
from sm86.cli.guard import whole_number
from sm86.cli.ladder_hands import LadderHands, say
from sm86.cli.ladder_words import dry_run_json, dry_run_words, end_words
from sm86.errors import EXIT_FINDING, EXIT_INTERRUPTED, EXIT_OK, CouldNotRun, Sm86Error, printable
from sm86.files import read_regular, write_atomic
from sm86.ladder import judge, matrix, summary
from sm86.ladder import rungs as r
from sm86.ladder import state as s
from sm86.ladder.climb import climb
from sm86.ladder.rungs import Rung
from sm86.ladder.state import State
from sm86.record import Conditions, Record, load, save
from sm86.record.store import RESULTS_DIR, results_dir

MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; numbers are checked. results: where states and records lie."""

    ladder: str
    envelopes: str | None
    engine: str
    port: str | int | None
    repeats: int | None
    decode_tokens: int | None
    overrides: r.Settings
    rounds: int
    with_inert: bool
    resume: bool
    restart: bool
    dry_run: bool
    json: bool
    png: str | None
    results: Path

    @property
    def folder(self) -> Path:
        return self.results / f"ladder-{self.ladder}"

    @property
    def path(self) -> Path:
        return self.folder / s.FILE


def ladder(
    name: str,
    envelopes: str | None = None,
    engine: str = "docker",
    port: str | int | None = None,
    repeats: str | int | None = None,
    decode_tokens: str | int | None = None,
    override: Sequence[str] = (),
    rounds: str | int | None = None,
    with_inert: bool = False,
    resume: bool = False,
    restart: bool = False,
    dry_run: bool = False,
    json: bool = False,
    png: str | None = None,
    results: Path = RESULTS_DIR,
    hands: Any = None,
) -> int:
    """Run a ladder, or go on with one that was interrupted.

    Exit code 0: every rung passed; 1: a rung failed, or a log holds a finding; 2: it could not run; 130: interrupted
    (the server is brought down, the state kept). hands: what has the effects, for tests.
    """
    from sm86.cli.bench import MAX_REPEATS, MAX_TOKENS

    results = results_dir(results)
    overrides = tuple(parse_overrides(override).items())
    if resume and restart:
        raise CouldNotRun("--resume goes on and --restart begins anew", "give one of the two")
    if png is not None and Path(png).suffix.lower() != ".png":
        raise CouldNotRun(f"{png} does not end in .png", "give a file name that ends in .png")
    options = Options(
        ladder=name,
        envelopes=envelopes,
        engine=engine,
        port=port,
        repeats=whole_number(repeats, "repeats", 1, MAX_REPEATS),
        decode_tokens=whole_number(decode_tokens, "decode-tokens", 1, MAX_TOKENS),
        overrides=overrides,
        rounds=whole_number(rounds, "rounds", 1, r.MAX_ROUNDS) or 1,
        with_inert=with_inert,
        resume=resume,
        restart=restart,
        dry_run=dry_run,
        json=json,
        png=png,
        results=results,
    )
    previous = None if restart else _previous(options)
    found, gate_note = _rungs(options, previous)
    if dry_run:
        print(
            json_module.dumps(dry_run_json(name, found, previous), indent=2)
            if json
            else "\n".join(printable(line) for line in (*dry_run_words(name, found, previous), *gate_note))
        )
        return EXIT_OK
    if not json:
        print("\n".join(gate_note), end="\n" if gate_note else "")
    doer = hands or LadderHands(engine, port, options.repeats, options.decode_tokens, results)
    with _alone(results):
        return _run(options, found, previous, doer)


def _run(options: Options, found: Sequence[Rung], previous: State | None, hands: Any) -> int:
    left = previous.unfinished if previous is not None else None
    if previous is not None and left is not None and options.resume:
        # the command that ran it was ended in the middle, and its server may have outlived it
        rung = next((rung for rung in found if rung.key == left.key), None)
        if rung is not None:
            say(f"{rung.key}: what is left of the interrupted run is stopped")
            hands.down(rung)
    state = _begin(options, found, previous, hands)
    place = {rung.key: number for number, rung in enumerate(found, 1)}

    def tell(rung: Rung, what: str) -> None:
        # with --json nothing else on the terminal would say why
        why = f": {state.outcomes[rung.key].text}" if what == s.FAILED else ""
        say(f"rung {place[rung.key]} of {len(found)}, {rung.key}: {what}{why}")

    def keep(now: State) -> None:
        nonlocal state
        state = now
        write_atomic(options.path, now.to_text())

    if state.next_key is None:
        say("every rung has passed already; nothing is started, --restart begins anew")
        return _end(options, state, found, hands, again=True)
    keep(state)
    try:
        climb(state, found, hands, keep, tell)
    except KeyboardInterrupt:
        say(f"interrupted; the server is down, the state is kept: {options.path}")
        say(f"invoke ladder.{options.ladder} --resume goes on at rung {state.next_key}, with the same options")
        return EXIT_INTERRUPTED
    except Sm86Error:
        say(f"the state is kept: {options.path}; --resume goes on at rung {state.next_key}, with the same options")
        raise
    return _end(options, state, found, hands)


def _end(options: Options, state: State, found: Sequence[Rung], hands: Any, again: bool = False) -> int:
    """again: nothing was run, so nothing is recorded once more."""
    conditions = getattr(hands, "conditions", None) or _conditions(state, found)
    # those of a single rung are told with it
    conditions = replace(conditions, overrides=dict(options.overrides))
    seconds = sum(outcome.seconds for outcome in state.outcomes.values())
    record = summary.to_record(options.ladder, state, found, conditions, datetime.now(UTC), seconds)
    where: tuple[str, ...] = ()
    if not again:
        path = save(record, options.results)
        where = (*_draw(options, record, path), f"record: {path}")
    if options.json:
        print(json_module.dumps(record.to_json(), indent=2, ensure_ascii=False))
        print("\n".join(where), file=sys.stderr)
    else:
        print("\n".join(printable(line) for line in (*end_words(record, state, found), *where)))
    unproven = any(
        finding.startswith(f"{rule}:")
        for outcome in state.outcomes.values()
        for finding in outcome.findings
        for rule in judge.FINDINGS
    )
    return EXIT_OK if summary.is_complete(state) and not unproven else EXIT_FINDING


def _draw(options: Options, record: Record, path: Path) -> tuple[str, ...]:
    """The curve beside the record, or in --png; without --png, matplotlib may be missing."""
    from sm86.report.curve import plot

    if options.ladder == r.COMM and options.png is None:
        return ()
    target = Path(options.png) if options.png else path.with_suffix(".png")
    try:
        write_atomic(target, plot(record, "context" if options.ladder == r.CONTEXT else "sequences"))
    except CouldNotRun as reason:
        if options.png is not None and record.numbers:
            raise
        return (f"no plot: {reason.what}",)
    return (f"plot: {target}",)


def _rungs(options: Options, previous: State | None) -> tuple[tuple[Rung, ...], tuple[str, ...]]:
    """The rungs, and what is to be said of the gate of the comm matrix."""
    gate = True
    note: tuple[str, ...] = ()
    if options.ladder == r.COMM and options.envelopes is None:
        if previous is not None and options.resume:
            gate = any(key == matrix.GATE for key, *_ in previous.identity.rungs)
        else:
            shown = _shown_coherent(matrix.GATE, options.results)
            gate = shown is None
            note = (
                (f"{matrix.GATE} was shown coherent in {shown}, so the matrix begins at once",)
                if shown
                else (f"the matrix runs only after {matrix.GATE} is coherent, so that is its first rung",)
            )
    found = r.rungs(options.ladder, options.envelopes, options.overrides, options.rounds, options.with_inert, gate)
    return found, note


def _shown_coherent(name: str, results: Path) -> Path | None:
    """The newest benchmark of that envelope as it is now that measured coherent text on a real rig; None: there is
    none, or the newest is not."""
    from sm86.measure.judge import is_good
    from sm86.spec import load_envelope

    paths = sorted((results / name).glob("*-bench*.json"))
    if not paths:
        return None
    try:
        record = load(paths[-1])
    except CouldNotRun:
        return None
    fits = record.kind == "bench" and record.envelope_digest == load_envelope(name).digest()
    return paths[-1] if fits and not record.conditions.mark and is_good(record.verdicts) else None


def _previous(options: Options) -> State | None:
    """The state that is there; None where there is none."""
    try:
        text = read_regular(options.path, MOST_BYTES)
    except FileNotFoundError:
        if options.resume:
            raise CouldNotRun(f"there is no ladder to go on with at {options.path}", "leave --resume out") from None
        return None
    except OSError as error:
        why = error.strerror or error
        raise CouldNotRun(f"cannot read {options.path}: {why}", "begin anew with --restart") from None
    return s.from_text(text, str(options.path))


def _begin(options: Options, found: Sequence[Rung], previous: State | None, hands: Any) -> State:
    """The state to climb from. Raises CouldNotRun: a ladder stands half done and nobody said what to do with it; it was
    of other specs, another image or revision; a rung could not be started."""
    open_ = previous is not None and (previous.next_key is not None or previous.unfinished is not None)
    if previous is not None and open_ and not options.resume:
        stop = summary.stopped_by(previous)
        where = f"failed at rung {stop[0]}" if stop else f"was interrupted at rung {previous.next_key}"
        raise CouldNotRun(
            f"the ladder {options.ladder} of {previous.started} {where}",
            "go on with --resume, or begin anew with --restart; --dry-run shows how far it is",
        )
    todo = [rung for rung in found if rung.boots]
    if previous is not None and options.resume:
        todo = [rung for rung in todo if previous.outcomes.get(rung.key) is None or _open(previous, rung)]
    images = {hands.check(rung) for rung in todo}
    if previous is not None and options.resume and not todo:
        images = set(previous.identity.images)
    identity = s.identity_of(
        options.ladder,
        options.engine,
        found,
        options.repeats,
        options.decode_tokens,
        revision(),
        sorted(images - {""}),
    )
    if previous is None or not options.resume:
        return State(identity, datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))
    other = s.differences(previous.identity, identity)
    if other:
        raise CouldNotRun(f"the ladder {options.ladder} cannot go on: {'; '.join(other)}", s.START_ANEW)
    return previous


def _open(state: State, rung: Rung) -> bool:
    return state.outcomes[rung.key].state not in (s.PASSED, s.INERT)


def _conditions(state: State, found: Sequence[Rung]) -> Conditions:
    """The conditions of the newest record of the ladder: nothing was started by this command."""
    for outcome in reversed(list(state.outcomes.values())):
        for path in reversed(outcome.records):
            try:
                return load(Path(path)).conditions
            except CouldNotRun:
                continue
    engine = found[0].envelope.engine
    return Conditions(engine=engine, mark="CPU" if engine == "cpu" else "conditions unknown")


def revision() -> str:
    """This program's revision, with "+changes" where its files differ from it; "" where git cannot say."""
    from sm86.host.build import git_state

    name, dirty = git_state(ROOT)
    return f"{name}+changes" if name and dirty else name


@contextmanager
def _alone(results: Path) -> Iterator[None]:
    """One ladder at a time: two would take each other's GPUs and write each other's state."""
    path = results / ".ladder.lock"
    try:
        results.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise CouldNotRun(f"cannot write {path}: {error.strerror}", "make the folder writable") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CouldNotRun("another ladder is running here", "wait until it has ended") from None
        yield
