"""A measured rate beside the published one: better, within noise, worse, or cannot be compared and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sm86.measure.prompts import REACHED
from sm86.record import Conditions, Verdict
from sm86.spec.envelope import Envelope, Published, PublishedRig

BETTER, WITHIN, WORSE = "better", "within noise", "worse"
CANNOT = "cannot be compared"
NOTHING = "nothing published"

NOISE_FLOOR = 0.02
"""Differences below 2 % of the published number are noise whatever the repeats say: the method itself is held to
no more (client against server), and the published numbers come without a spread of their own."""

MAX_SPREAD = 0.10
"""Repeats that differ by more than this share of their median were not taken under one condition."""

DEFINITION_NOTE = "the source does not state how its number is defined; ours is the steady window"

NEUTRAL_OVERRIDES = {"FUSE_ALLREDUCE_RMS": "1", "SPECULATIVE_CONFIG": "none"}
"""Values the published runs had themselves (roadmap, Keep)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """verdict: one of the five words above; reasons: why it cannot be compared; tolerance_tok_s: what is noise."""

    verdict: str
    text: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tolerance_tok_s: float | None = None

    def as_verdict(self) -> Verdict:
        """The record's form. Worse than published is a fail of the comparison, not of the measurement."""
        state = {BETTER: "pass", WITHIN: "pass", WORSE: "fail"}.get(self.verdict, "not applicable")
        return Verdict("comparison", state, self.text)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a comparison needs to know of a measurement.

    aggregates: tok/s of each repeat; prompt_tokens: the real lengths; wanted_tokens: the length they should have.
    """

    aggregates: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    wanted_tokens: int
    full_context: bool
    cold: bool
    decode_tokens: int
    published_decode_tokens: int
    verdicts: tuple[Verdict, ...]
    server_version: str | None
    verify_state: str | None


def obstacles(envelope: Envelope, conditions: Conditions, measured: Measured) -> tuple[str, ...]:
    """Everything that makes the comparison one of unlike things; empty where it is fair."""
    found: list[str] = []
    if envelope.engine == "cpu" or conditions.engine == "cpu":
        found.append("it is a CPU number")
    elif conditions.mark:
        found.append(f"it is a number marked {conditions.mark}")
    if envelope.engine != "cpu":
        found += _rig(conditions.gpus, envelope.published_rig)
        found += _overrides(conditions.overrides)
        described, answered = conditions.vllm_version, measured.server_version
        if described and answered and described != answered:
            found.append(f"the server that answered is vLLM {answered}, the conditions describe {described}")
    if not measured.full_context:
        found.append("the prompt is not what the context leaves")
    short = [tokens for tokens in measured.prompt_tokens if tokens < REACHED * measured.wanted_tokens]
    if short:
        found.append(f"a prompt has {min(short)} tokens, less than 95 % of the {measured.wanted_tokens} wanted")
    for verdict in measured.verdicts:
        if (
            verdict.name.startswith("coherence")
            and verdict.state != "pass"
            and verdict.name != "coherence: same prompt"
        ):
            found.append(f"{verdict.name} is {_as_words(verdict.state)}")
        if verdict.name == "cross-check" and verdict.state == "fail":
            found.append("client and server do not agree")
    if measured.verify_state != "pass":
        state = "was not run" if measured.verify_state is None else f"says {measured.verify_state}"
        found.append(f"verification of the server's log {state}")
    middle = median(measured.aggregates) if measured.aggregates else 0.0
    if middle and _spread(measured.aggregates) > MAX_SPREAD * middle:
        share = 100 * _spread(measured.aggregates) / middle
        found.append(f"the repeats differ by {share:.0f} % of their median")
    return tuple(dict.fromkeys(found))


def compare(envelope: Envelope, conditions: Conditions, measured: Measured) -> Comparison:
    """The comparison of the median of the repeats with the envelope's published aggregate.

    Noise is the spread of the repeats (largest minus smallest), at least NOISE_FLOOR of the published number.
    """
    if not measured.aggregates:
        return Comparison(CANNOT, f"{CANNOT}: there is no number", ("there is no number",))
    published = envelope.published
    if published is None:
        return Comparison(NOTHING, f"no number is published for {envelope.name}")
    reasons = obstacles(envelope, conditions, measured)
    if reasons:
        return Comparison(
            CANNOT, f"{CANNOT} with the published {published.aggregate_tok_s} tok/s: {'; '.join(reasons)}", reasons
        )
    return _judge(published, envelope.published_rig, conditions, measured)


def _judge(published: Published, rig: PublishedRig | None, conditions: Conditions, measured: Measured) -> Comparison:
    value = median(measured.aggregates)
    tolerance = max(_spread(measured.aggregates), NOISE_FLOOR * published.aggregate_tok_s)
    difference = value - published.aggregate_tok_s
    verdict = WITHIN if abs(difference) <= tolerance else BETTER if difference > 0 else WORSE
    notes = [DEFINITION_NOTE]
    if measured.decode_tokens != measured.published_decode_tokens:
        notes.append(
            f"{measured.decode_tokens} tokens were decoded, {measured.published_decode_tokens} are the envelope's"
        )
    if measured.cold and len(measured.prompt_tokens) > 1:
        # the window begins behind the last prefill, so it holds decode alone; those who began first are longer by then
        notes.append("the prompts were not in the prefix cache; measured while all decoded together")
    if len(measured.aggregates) < 2:
        notes.append(f"one repeat has no spread; noise is taken as {100 * NOISE_FLOOR:.0f} %")
    notes += _power(conditions.gpus, rig)
    share = 100 * difference / published.aggregate_tok_s
    text = (
        f"{verdict}: {value:.1f} against the published {published.aggregate_tok_s} tok/s "
        f"({share:+.1f} %, noise {tolerance:.1f} tok/s); {'; '.join(notes)}"
    )
    return Comparison(verdict, text, (), tuple(notes), tolerance)


def _rig(gpus: Sequence[Mapping[str, Any]], published: PublishedRig | None) -> list[str]:
    if not gpus:
        return ["the GPUs are not known"]
    if published is None:
        return ["the published rig is not known: its envelope has no [published_rig]"]
    names = [str(gpu.get("name", "unknown")) for gpu in gpus]
    if len(names) != published.gpus or not all(name.endswith(published.gpu) for name in names):
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return [f"the rig is {kinds}, the published one {published.gpus} x {published.gpu}"]
    return []


def _overrides(overrides: Mapping[str, str]) -> list[str]:
    changed = [f"{name}={value}" for name, value in sorted(overrides.items()) if NEUTRAL_OVERRIDES.get(name) != value]
    return [f"the run had overrides: {', '.join(changed)}"] if changed else []


def _power(gpus: Sequence[Mapping[str, Any]], published: PublishedRig | None) -> list[str]:
    for gpu in gpus:
        limit = gpu.get("power_limit_w")
        usual = gpu.get("default_power_limit_w") or (published.power_limit_w if published else None)
        if isinstance(limit, (int, float)) and usual is not None and limit < usual - 1:
            return [f"a GPU is limited to {limit:.0f} W ({usual:.0f} W by default; it slows prefill more than decode)"]
    return []


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values) if values else 0.0


def _as_words(state: str) -> str:
    return {"fail": "failed"}.get(state, state)
