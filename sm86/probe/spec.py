"""Drafting: is it captured and loses on draft compute, or is it dispatched wrongly? The roadmap's readout. Pure.

    cg_mode=FULL for draft prefill and decode: spec is captured and loses on draft compute
    cg_mode=NONE: spec dispatch or key selection is broken, and may be worth fixing

One thing has to be known for the second: vLLM 0.26.0 gives the drafter PIECEWISE graphs at most, and none at all where
the model's own mode has no part for mixed batches (v1/spec_decode/llm_base_proposer.py, initialize_cudagraph_keys).
FULL_DECODE_ONLY is such a mode: NONE is then by design of that version, and not a key that failed to match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sm86.probe.dispatch import FAIL, NOT_SEEN, PASS, Expected, Readout, read_out
from sm86.probe.lines import Draft, Lines

CAPTURED, PIECES, BY_DESIGN, BROKEN, MIXED, TARGET, UNSEEN = (
    "captured",
    "captured in pieces",
    "not captured by design",
    "dispatched wrongly",
    "captured in part",
    "the model's own step is not captured",
    "not seen",
)

MIXED_MODES = ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE")
"""Modes of the model that have a part for mixed batches, which alone gives the drafter graphs."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Aggregate tok/s; None where unknown. drafted: this probe's; plain: the same envelope's without drafts, from its
    newest benchmark; tokens_per_step: accepted drafts and one."""

    drafted: float | None = None
    plain: float | None = None
    tokens_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class SpecReadout:
    """kind: one of the words above; state: pass (known and no fault), fail (something to fix), not seen; modes: draft
    kind -> cg_mode -> count."""

    kind: str
    state: str
    text: str
    mend: str
    modes: Mapping[str, Mapping[str, int]]
    target: Readout
    evidence: tuple[str, ...]


def read_spec(lines: Lines, expected: Expected, rates: Rates | None = None) -> SpecReadout:
    """The readout of a boot that drafted. expected.spec_tokens: drafts in each step; expected.mode: of the model."""
    target = read_out(lines, expected)
    modes = {
        kind: dict(Counter(one.mode for one in lines.drafts if one.kind == kind))
        for kind in ("prefill", "decode")
        if any(one.kind == kind for one in lines.drafts)
    }
    seen = set().union(*(set(found) for found in modes.values())) if modes else set()
    kind, state, text, mend = _judge(lines.drafts, seen, modes, expected, target)
    text += _rate_words(kind, rates or Rates())
    evidence = _evidence(lines.drafts) + (target.evidence if kind == TARGET else ())
    return SpecReadout(kind, state, text, mend, modes, target, evidence)


def _judge(
    drafts: Sequence[Draft],
    seen: set[str],
    modes: Mapping[str, Mapping[str, int]],
    expected: Expected,
    target: Readout,
) -> tuple[str, str, str, str]:
    if not drafts:
        text = "no draft line in the log: whether drafts replay graphs is not known"
        return (
            UNSEEN,
            NOT_SEEN,
            text,
            "see in the manifest whether SPECULATIVE_CONFIG and SPEC_CUDAGRAPH_DEBUG are effective",
        )
    told = "; ".join(f"draft {kind}: {_modes(found)}" for kind, found in modes.items())
    if target.state == FAIL and target.counts.get("miss", 0) + target.counts.get("skip", 0):
        text = f"{told}. Before the drafts: {target.text}"
        return TARGET, FAIL, text, target.mend
    if seen == {"FULL"}:
        return CAPTURED, PASS, f"{told}. Spec is captured: it loses on draft compute, and not on dispatch", ""
    if seen == {"PIECEWISE"}:
        text = (
            f"{told}. Spec is captured in pieces, which is the most that vLLM 0.26.0 gives a drafter: its attention "
            "runs between the graphs, so it loses on draft compute and on launches"
        )
        return PIECES, PASS, text, ""
    if seen == {"NONE"} and expected.mode not in MIXED_MODES:
        text = (
            f"{told}. No draft step replays a graph, by design of vLLM 0.26.0: it gives a drafter piecewise graphs, "
            f"and with cudagraph_mode={expected.mode} none at all. No key failed to match; every draft step is "
            "launched kernel by kernel, which costs more than it saves"
        )
        mend = (
            "probe again on an envelope with cudagraph_mode FULL_AND_PIECEWISE, or capture the drafter in the backend"
        )
        return BY_DESIGN, FAIL, text, mend
    if seen == {"NONE"}:
        text = (
            f"{told}. cudagraph_mode={expected.mode} gives the drafter graphs, and no step replays one: spec dispatch "
            "or key selection is broken, and may be worth fixing"
        )
        return BROKEN, FAIL, text, "compare num_tokens of the draft lines with the capture sizes of the boot"
    text = f"{told}. Some draft steps replay graphs and others do not: the sizes that do not are worth a look"
    return MIXED, FAIL, text, "compare num_tokens of the lines with cg_mode=NONE with the capture sizes of the boot"


def _modes(found: Mapping[str, int]) -> str:
    return ", ".join(f"cg_mode={mode} ({count})" for mode, count in sorted(found.items()))


def _rate_words(kind: str, rates: Rates) -> str:
    if kind == UNSEEN or rates.drafted is None:
        return ""
    steps = f", {rates.tokens_per_step:.2f} tokens a step" if rates.tokens_per_step is not None else ""
    words = f". Measured with drafts: {rates.drafted:.1f} tok/s{steps}"
    if rates.plain is None:
        return words + "; this envelope has no benchmark without drafts to compare it with"
    ratio = rates.drafted / rates.plain
    verdict = "drafting wins here" if ratio > 1 else "drafting loses here"
    return words + f", without: {rates.plain:.1f} tok/s ({ratio:.2f}x: {verdict})"


def _evidence(drafts: Sequence[Draft]) -> tuple[str, ...]:
    """The first line of each kind and mode."""
    first: dict[tuple[str, str], str] = {}
    for one in drafts:
        first.setdefault((one.kind, one.mode), one.text)
    return tuple(first.values())
