"""Judge run files against the transformers reference at its own bf16 noise floor.

    python -m sm86.backend.testing.parity CHECKPOINT RUN.json [RUN.json ...]

For each entry: mean absolute log-prob difference of the actual tokens from the `rounded` reference, and the same for
transformers' own bf16 (the floor). Passes when every difference is at most FACTOR floors, and every greedy token that
differs from the reference's lies at a near tie: where the reference's lead is below NEAR_TIE, or below the largest lead
at which transformers' own bf16 chooses another token in the same sequence.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACTOR = 1.25
"""A served mean may exceed the floor's mean by this much: both are means over few hundred noisy tokens."""
NEAR_TIE = 1.0
"""A greedy choice may differ from the reference's where the reference's lead is below this many nats."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One entry judged. mean, floor: nats; agree of total: greedy tokens equal to the reference's best."""

    name: str
    tokens: int
    prompt_mean: float | None
    prompt_floor: float
    mean: float
    floor: float
    agree: int
    total: int
    worst_lead: float
    floor_lead: float

    @property
    def passed(self) -> bool:
        prompt = self.prompt_mean is None or self.prompt_mean <= FACTOR * self.prompt_floor
        # Few generated tokens: their own floor is noisy, so the larger of both floors counts.
        generated = self.mean <= FACTOR * max(self.floor, self.prompt_floor)
        return prompt and generated and self.worst_lead <= max(NEAR_TIE, self.floor_lead)


def judge(entry: dict[str, Any], rounded: Any, bf16: Any) -> Verdict:
    """Judge one entry by the reference's scores of prompt + generated tokens in both variants."""
    start = len(entry["prompt"]) - 1
    count = len(entry["generated"])
    reference, floor = rounded.logprob.tolist(), bf16.logprob.tolist()

    def mean(values: list[float], begin: int) -> float:
        return sum(abs(a - b) for a, b in zip(values, reference[begin:], strict=False)) / max(1, len(values))

    scored = entry.get("prompt_logprobs")
    best, lead = rounded.best.tolist()[start:], rounded.lead.tolist()[start:]
    differing = [lead[i] for i in range(count) if best[i] != entry["generated"][i]]
    swayed = [at for one, other, at in zip(rounded.best, bf16.best, rounded.lead, strict=True) if one != other]
    return Verdict(
        name=entry["name"],
        tokens=len(entry["prompt"]),
        prompt_mean=mean(scored, 0) if scored else None,
        prompt_floor=mean(floor[:start], 0),
        mean=mean(entry["logprobs"], start),
        floor=mean(floor[start:], start),
        agree=count - len(differing),
        total=count,
        worst_lead=max(differing, default=0.0),
        floor_lead=float(max(swayed, default=0.0)),
    )


def table(verdicts: list[Verdict]) -> str:
    """Markdown."""
    lines = [
        "| run | prompt | prompt mean / floor | generated mean / floor | best token as reference | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for v in verdicts:
        prompt = "-" if v.prompt_mean is None else f"{v.prompt_mean:.3f}"
        lines.append(
            f"| {v.name} | {v.tokens} | {prompt} / {v.prompt_floor:.3f} | {v.mean:.3f} / {v.floor:.3f} "
            f"| {v.agree}/{v.total} (largest lead {v.worst_lead:.2f} / {v.floor_lead:.2f}) "
            f"| {'pass' if v.passed else 'FAIL'} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    import torch

    from sm86.backend.testing.reference import Reference

    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reference = Reference(Path(arguments[0]), device)
    entries = [(Path(name).stem, entry) for name in arguments[1:] for entry in json.loads(Path(name).read_text())]
    scores: dict[str, dict[tuple[int, ...], Any]] = {}
    for variant in ("rounded", "bf16"):
        reference.use(variant)
        known = scores.setdefault(variant, {})
        for _, entry in entries:
            tokens = tuple(entry["prompt"] + entry["generated"])
            if tokens not in known:
                known[tokens] = reference.score(list(tokens))
    verdicts = []
    for run, entry in entries:
        tokens = tuple(entry["prompt"] + entry["generated"])
        named = {**entry, "name": f"{run} {entry['name']}"}
        verdicts.append(judge(named, scores["rounded"][tokens], scores["bf16"][tokens]))
    print(table(verdicts))
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
