"""Hands that start nothing: they make records, count what was done, and fail or are interrupted where told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sm86.ladder.rungs import Rung
from sm86.record import Conditions, Number, Record, Verdict, save

GOOD = (
    Verdict("window", "pass", "all sequences decoded together in each of 3 repeats"),
    Verdict("coherence: text", "pass", "no loops"),
    Verdict("coherence: log probabilities", "pass", "all are numbers"),
    Verdict("coherence: known answers", "pass", "5 of 5"),
)
CONDITIONS = Conditions(
    engine="cuda",
    mark="",
    image_id="sha256:1",
    git_rev="a" * 40,
    model_hash="m",
    vllm_version="0.26.0",
    gpus=tuple({"index": n, "uuid": f"GPU-{n}", "name": "NVIDIA GeForce RTX 3090"} for n in range(8)),
)


def record(rung: Rung, kind: str, **more: Any) -> Record:
    return Record(
        kind=kind,
        envelope=rung.envelope.name,
        envelope_digest=rung.envelope.digest(),
        started=datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC),
        seconds=1.0,
        **{"conditions": CONDITIONS, **more},
    )


def failure(kind: str, what: str = "it did not fit") -> dict[str, Any]:
    return {"failure": {"kind": kind, "what": what, "mend": "free the GPUs", "lines": [{"line": 7, "text": "said so"}]}}


def verified(rung: Rung, bad: Mapping[str, tuple[str, str]] | None = None) -> Record:
    """A verify record; bad: rule to (state, text)."""
    found = {**{rule: ("pass", "fine") for rule in rung.envelope.rules}, **(bad or {})}
    return record(
        rung,
        "verify",
        verdicts=tuple(Verdict(name, state, text) for name, (state, text) in found.items()),
        details={
            "findings": [
                {
                    "rule": n,
                    "state": s,
                    "text": t,
                    "mend": f"mend {n}",
                    "evidence": [{"line": 3, "text": f"line of {n}"}],
                }
                for n, (s, t) in found.items()
            ]
        },
    )


def measured(rung: Rung, tok_s: Sequence[float] = (50.0, 51.0, 50.5), verdicts: Sequence[Verdict] = GOOD) -> Record:
    middle = sorted(tok_s)[len(tok_s) // 2]
    return record(
        rung,
        "bench",
        numbers=(
            Number("decode aggregate", middle, "tok/s", tuple(tok_s)),
            Number("decode sequence 1", middle, "tok/s", tuple(tok_s)),
        ),
        verdicts=tuple(verdicts),
    )


@dataclass
class FakeHands:
    """answers: (step, rung key) to the record or the exception of that step; stop_at: the number of the call (from 1)
    at which `stop_with` is raised; before: whether the effect of that call happens first."""

    results: Path
    answers: dict[tuple[str, str], Any] = field(default_factory=dict)
    stop_at: int = 0
    stop_with: type[BaseException] = KeyboardInterrupt
    calls: list[str] = field(default_factory=list)
    up: set[str] = field(default_factory=set)
    image: str = "sha256:1"
    conditions: Conditions | None = None
    clock: float = 0.0

    def _call(self, step: str, rung: Rung) -> Any:
        self.calls.append(f"{step} {rung.key}")
        if len(self.calls) == self.stop_at:
            raise self.stop_with
        answer = self.answers.get((step, rung.key))
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def check(self, rung: Rung) -> str:
        return self.image

    def boot(self, rung: Rung) -> Record:
        assert not self.up, f"{self.up} still runs while {rung.key} boots"
        self.up.add(rung.key)
        real = {one.name: one.value for one in rung.effects if one.is_effective}
        usual = record(rung, "boot", conditions=replace(CONDITIONS, overrides=real), details={"failure": None})
        made = self._call("boot", rung) or usual
        self.conditions = made.conditions
        return made

    def verify(self, rung: Rung) -> Record:
        return self._call("verify", rung) or verified(rung)

    def bench(self, rung: Rung, verified: bool) -> Record:
        return self._call("bench", rung) or measured(rung)

    def down(self, rung: Rung) -> None:
        self._call("down", rung)
        self.up.discard(rung.key)

    def save(self, record: Record) -> str:
        return str(save(record, self.results))

    def now(self) -> tuple[str, float]:
        self.clock += 1
        return f"2026-05-01T12:{int(self.clock) // 60:02d}:{int(self.clock) % 60:02d}Z", self.clock
