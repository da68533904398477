"""The rungs of each ladder, in the roadmap's order, worked out from the envelopes. Pure but for reading the specs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sm86.errors import CouldNotRun
from sm86.ladder import matrix
from sm86.ladder.matrix import Effect, Settings
from sm86.spec import Envelope, load_all, load_envelope

SEQUENCE, CONTEXT, COMM = "sequence", "context", "comm"
LADDERS = (SEQUENCE, CONTEXT, COMM)

MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Rung:
    """One boot, verification and benchmark. key: its name in this ladder; overrides: of this rung alone.

    effects: of its overrides, in their order. boots: False where no override has an effect: such a run would measure
    the rung without them once more. gate: it must be coherent before the others are worth running.
    """

    key: str
    title: str
    envelope: Envelope
    overrides: Settings = ()
    effects: tuple[Effect, ...] = ()
    boots: bool = True
    gate: bool = False
    round: int = 1

    @property
    def shape(self) -> str:
        """ "2 x 180224"."""
        return f"{self.envelope.serve.sequences} x {self.envelope.serve.context}"


def rungs(
    ladder: str,
    envelopes: str | None = None,
    overrides: Settings = (),
    rounds: int = 1,
    with_inert: bool = False,
    gate: bool = True,
) -> tuple[Rung, ...]:
    """The rungs of a ladder in order.

    envelopes: names or TOML paths joined by commas, in place of the ladder's own (comm: one, the matrix's server);
    overrides: of every rung; rounds: comm runs its matrix so often, settings interleaved; with_inert: comm boots inert
    rows as well; gate: comm starts with the 262K envelope. Raises CouldNotRun for what cannot be a ladder.
    """
    if ladder not in LADDERS:
        raise CouldNotRun(f"there is no ladder {ladder!r}", f"use one of: {', '.join(LADDERS)}")
    given = read_envelopes(envelopes) if envelopes is not None else None
    if ladder == COMM:
        return _comm(given, overrides, rounds, with_inert, gate)
    found = given or (sequence_envelopes() if ladder == SEQUENCE else context_envelopes())
    return tuple(
        Rung(envelope.name, envelope.title, envelope, overrides, matrix.effects(envelope, overrides))
        for envelope in found
    )


def sequence_envelopes() -> tuple[Envelope, ...]:
    """The published envelopes by number of sequences: the control run with one, then 2, 3, 4 (roadmap)."""
    published = [envelope for envelope in load_all() if envelope.published is not None]
    return tuple(sorted(published, key=lambda envelope: envelope.serve.sequences))


def context_envelopes() -> tuple[Envelope, ...]:
    """One sequence, by context: the published frontier, then the experimental envelopes above it (roadmap)."""
    single = [e for e in load_all() if e.serve.sequences == 1 and e.status in ("published", "experimental")]
    return tuple(sorted(single, key=lambda envelope: envelope.serve.context))


def read_envelopes(text: str) -> tuple[Envelope, ...]:
    """The envelopes of a list: names and TOML paths joined by commas. CouldNotRun: none, unknown, or one twice."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise CouldNotRun(
            f"--envelopes {text!r} names no envelope in some place", "write names or TOML paths: a,b,c.toml"
        )
    found = tuple(load_envelope(name) for name in names)
    twice = sorted({e.name for e in found if sum(other.name == e.name for other in found) > 1})
    if twice:
        raise CouldNotRun(
            f"--envelopes has {twice[0]} twice", "give each envelope once; a variant needs a name of its own"
        )
    for what, values in (
        ("engines", [e.engine for e in found]),
        ("models", [e.model.repository for e in found]),
    ):
        if len(set(values)) > 1:
            raise CouldNotRun(
                f"--envelopes mixes {what} ({', '.join(dict.fromkeys(values))}), whose numbers make no curve",
                "run a ladder for each",
            )
    return found


def _comm(
    given: tuple[Envelope, ...] | None, overrides: Settings, rounds: int, with_inert: bool, gate: bool
) -> tuple[Rung, ...]:
    if given is not None and len(given) != 1:
        raise CouldNotRun(
            f"the comm matrix runs on one server, --envelopes names {len(given)}", "name one; 64K is the default"
        )
    if not 1 <= rounds <= MAX_ROUNDS:
        raise CouldNotRun(f"--rounds is {rounds}", f"give a whole number from 1 to {MAX_ROUNDS}")
    server = given[0] if given else load_envelope(matrix.SERVER)
    fixed = {name for name, _ in overrides} & {name for _, settings in matrix.COMM_MATRIX for name, _ in settings}
    if fixed:
        raise CouldNotRun(f"--override sets {sorted(fixed)[0]}, which the matrix itself varies", "leave it out")
    found: list[Rung] = []
    if gate and given is None:
        first = load_envelope(matrix.GATE)
        found.append(
            Rung(first.name, first.title, first, overrides, matrix.effects(first, overrides), gate=True),
        )
    for number in range(1, rounds + 1):
        for title, settings in ((matrix.BASELINE, ()), *matrix.COMM_MATRIX):
            whole = (*overrides, *settings)
            all_effects = matrix.effects(server, whole)
            own = all_effects[len(overrides) :]
            boots = not settings or with_inert or any(effect.is_effective for effect in own)
            if not boots and number > 1:
                continue
            key = slug(title) if number == 1 else f"{slug(title)}-round-{number}"
            found.append(Rung(key, title, server, whole, all_effects, boots, round=number))
    return tuple(found)


def slug(title: str) -> str:
    """ "FlashInfer's all-reduce" -> "flashinfer-all-reduce"."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower().replace("'s", "")))
