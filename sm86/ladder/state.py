"""What a ladder has done so far, as a file that a later command reads: which rungs, of what, with which outcome.

The file is written whole before and after every step, so that a ladder which ends at any point goes on at the right
rung. `identity` and `conditions` say of what its outcomes are; those of other specs, another image or another
revision are never mixed into one ladder. The text is JSON; reading and writing the file is the command's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json
from sm86.ladder import cause as causes
from sm86.ladder.cause import Cause
from sm86.ladder.rungs import Rung
from sm86.record import Conditions

SCHEMA = "sm86.ladder-state"
VERSION = 1
FILE = "ladder.state"
"""Not .json: it lies among the records and is none."""

PASSED, FAILED, INERT, RUNNING = "passed", "failed", "inert", "running"
STATES = (PASSED, FAILED, INERT, RUNNING)
TEXTS = ("key", "state", "step", "text", "comparison", "started")

START_ANEW = "go back to what it was, or begin anew with --restart"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a ladder is of, known before anything is started.

    rungs: key, envelope and its digest, overrides as NAME=VALUE; revision: of this program, with "+changes" where
    files differ from it; images: ids of the images that will be started; none for processes of this machine.
    """

    ladder: str
    engine: str
    rungs: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    repeats: int | None
    decode_tokens: int | None
    revision: str
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a rung. tok_s: the aggregates of the repeats; each_tok_s: of each sequence, the median;
    comparison: the benchmark's word on it and the published number.

    step: what was being done, "" once its server is down; records: paths of its records; findings: what stands beside
    the number; started: UTC, as text.
    """

    key: str
    state: str
    step: str = ""
    text: str = ""
    cause: Cause | None = None
    findings: tuple[str, ...] = ()
    tok_s: tuple[float, ...] = ()
    each_tok_s: tuple[float, ...] = ()
    comparison: str = ""
    records: tuple[str, ...] = ()
    started: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """A ladder as far as it has come. conditions: of the first server that it started, None before."""

    identity: Identity
    started: str
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    conditions: Mapping[str, Any] | None = None

    def with_outcome(self, outcome: Outcome) -> State:
        return replace(self, outcomes={**self.outcomes, outcome.key: outcome})

    @property
    def next_key(self) -> str | None:
        """The first rung that has neither passed nor is inert; None where the ladder is complete."""
        for key, *_ in self.identity.rungs:
            found = self.outcomes.get(key)
            if found is None or found.state not in (PASSED, INERT):
                return key
        return None

    @property
    def unfinished(self) -> Outcome | None:
        """The rung in whose middle the ladder ended; its server may have outlived the command that started it."""
        return next((outcome for outcome in self.outcomes.values() if outcome.step), None)

    def to_text(self) -> str:
        """The file's text; `from_text` gives the same state back."""
        values = {
            "schema": SCHEMA,
            "version": VERSION,
            "started": self.started,
            "identity": asdict(self.identity),
            "conditions": None if self.conditions is None else dict(self.conditions),
            "outcomes": [_outcome_json(outcome) for outcome in self.outcomes.values()],
        }
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def identity_of(
    ladder: str,
    engine: str,
    rungs: Sequence[Rung],
    repeats: int | None,
    decode_tokens: int | None,
    revision: str,
    images: Sequence[str],
) -> Identity:
    """The identity of these rungs, run so."""
    return Identity(
        ladder,
        engine,
        tuple(
            (rung.key, rung.envelope.name, rung.envelope.digest(), tuple(f"{n}={v}" for n, v in rung.overrides))
            for rung in rungs
        ),
        repeats,
        decode_tokens,
        revision,
        tuple(images),
    )


def differences(was: Identity, now: Identity) -> tuple[str, ...]:
    """In what two identities differ, one sentence each; empty where a ladder of `was` may go on as `now`."""
    found = []
    if was.ladder != now.ladder or was.engine != now.engine:
        found.append(f"it was the ladder {was.ladder} on the engine {was.engine}")
    ours, theirs = dict(_by_key(now)), dict(_by_key(was))
    if list(ours) != list(theirs):
        found.append(f"its rungs were {', '.join(theirs)}")
    for key in ours:
        if key in theirs and ours[key] != theirs[key]:
            name, digest, overrides = theirs[key]
            other = ours[key]
            if (name, digest) != other[:2]:
                found.append(f"the spec of rung {key} was {name} {digest}, now it is {other[0]} {other[1]}")
            else:
                found.append(f"rung {key} had the overrides {', '.join(overrides) or 'none'}")
    for name, before, after in (
        ("--repeats", was.repeats, now.repeats),
        ("--decode-tokens", was.decode_tokens, now.decode_tokens),
    ):
        if before != after:
            found.append(f"{name} was {'not given' if before is None else before}")
    if was.revision != now.revision:
        found.append(f"this program's revision was {was.revision or 'unknown'}, now it is {now.revision or 'unknown'}")
    if was.images != now.images:
        found.append(f"the image was {_listed(was.images)}, now it is {_listed(now.images)}")
    return tuple(found)


CONDITIONS = ("image_id", "lock_hash", "git_rev", "model", "model_hash", "vllm_version", "driver", "mark")


def conditions_json(conditions: Conditions) -> dict[str, Any]:
    """What all rungs of one ladder must have in common, as plain values."""
    values: dict[str, Any] = {name: getattr(conditions, name) for name in CONDITIONS}
    values["gpus"] = sorted(str(gpu.get("uuid", gpu.get("index"))) for gpu in conditions.gpus)
    return values


def unlike(first: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """In what a server's conditions differ from the ladder's first; a fact that one of them lacks is no difference."""
    return tuple(
        f"{name} was {_listed(first[name])}, now it is {_listed(now[name])}"
        for name in (*CONDITIONS, "gpus")
        if first.get(name) and now.get(name) and first[name] != now[name]
    )


def from_text(text: str | bytes, where: str) -> State:
    """The state in a file's text. Raises CouldNotRun: no state, another version, damaged."""
    mend = "begin anew with --restart (the records of its rungs stay)"
    try:
        values = parse_json(text)
    except ValueError:
        raise CouldNotRun(f"{where} is damaged: it is not JSON", mend) from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise CouldNotRun(f"{where} is not the state of a ladder", mend)
    if values.get("version") != VERSION:
        raise CouldNotRun(
            f"{where} is of version {values.get('version')!r}; this program reads version {VERSION}",
            f"finish it with the program version that began it, or {mend}",
        )
    try:
        # half of a surrogate pair can be spelled in JSON and written nowhere
        json.dumps(values, ensure_ascii=False).encode()
        raw = values["identity"]
        identity = Identity(
            **{
                **raw,
                "rungs": tuple((k, n, d, tuple(o)) for k, n, d, o in raw["rungs"]),
                "images": tuple(raw["images"]),
            }
        )
        outcomes = [_outcome(one) for one in values["outcomes"]]
        known = {key for key, *_ in identity.rungs}
        if not known or any(outcome.key not in known for outcome in outcomes):
            raise ValueError("an outcome of no rung")
        conditions = values["conditions"]
        if conditions is not None and not isinstance(conditions, dict):
            raise ValueError("conditions that are no table")
        return State(identity, str(values["started"]), {outcome.key: outcome for outcome in outcomes}, conditions)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CouldNotRun(f"{where} is damaged: {error!r}", mend) from None


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    values = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__}
    for name in ("findings", "tok_s", "each_tok_s", "records"):
        values[name] = list(values[name])
    return {**values, "cause": None if outcome.cause is None else outcome.cause.to_json()}


def _outcome(values: Any) -> Outcome:
    if values["state"] not in STATES:
        raise ValueError(f"state {values['state']!r}")
    numbers = [float(value) for name in ("tok_s", "each_tok_s") for value in values[name]]
    if len(numbers) != len(values["tok_s"]) + len(values["each_tok_s"]) or not all(map(isfinite, numbers)):
        raise ValueError("rates")
    texts = [values[name] for name in TEXTS]
    texts += [text for name in ("findings", "records") for text in values[name]]
    if not all(isinstance(text, str) for text in texts) or not isfinite(values["seconds"]):
        raise ValueError("texts or seconds")
    return Outcome(
        **{
            **values,
            "cause": causes.from_json(values["cause"]),
            **{name: tuple(values[name]) for name in ("findings", "tok_s", "each_tok_s", "records")},
        }
    )


def _by_key(identity: Identity) -> list[tuple[str, tuple[str, str, tuple[str, ...]]]]:
    return [(key, (name, digest, overrides)) for key, name, digest, overrides in identity.rungs]


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value)
