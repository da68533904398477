"""What the server counts of drafts: Prometheus text -> tokens per step. Pure.

Names as vLLM 0.26.0 registers them (v1/spec_decode/metrics.py); the Prometheus client adds `_total` to counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm86.measure.metrics import parse

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposals made and draft tokens accepted since the server started."""

    proposals: float
    accepted: float


def read_drafts(text: str) -> Drafts | None:
    """The counters, summed over engines; None where the server does not draft."""
    sums: dict[str, float] = {}
    for sample in parse(text):
        if sample.name in (DRAFTS, ACCEPTED):
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Drafts(sums[DRAFTS], sums.get(ACCEPTED, 0.0)) if DRAFTS in sums else None


def tokens_per_step(before: Drafts | None, after: Drafts | None) -> float | None:
    """Tokens that one step gave: the accepted drafts and the model's own; None where nothing was drafted between."""
    if before is None or after is None or after.proposals <= before.proposals:
        return None
    return 1.0 + (after.accepted - before.accepted) / (after.proposals - before.proposals)
