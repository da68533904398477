"""Judge run files against the transformers reference at its own bf16 noise floor.

    python -m sm86.backend.testing.parity CHECKPOINT RUN.json [RUN.json ...] [--json FILE] [--budget-s S]

For each entry: mean absolute log-prob difference of the actual tokens from the `rounded` reference, and the same for
transformers' own bf16 (the floor). Passes when the difference is not above FACTOR floors by more than chance, neither
in any entry nor in all of them together, and every greedy token that differs from the reference's lies at a near tie:
where the reference's lead is below NEAR_TIE, or below the largest lead at which transformers' own bf16 chooses another
token in the same sequence.

Chance is reckoned from the tokens themselves: of each the served difference less FACTOR times the floor's, whose mean
may lie above zero by three of its standard errors (noise.py). Forty tokens are few: floors of equally long prompts
were seen from 0.10 to 0.20. All entries together have thousands, so that a small error of every token shows there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sm86.backend.testing.budget import add_option, budget_of, progress
from sm86.backend.testing.noise import Sample, sample, together
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_FINDING, EXIT_OK, CouldNotRun
from sm86.files import write_atomic
from sm86.json_text import parse as parse_json

FACTOR = 1.25
"""A served mean may be so many times the floor's mean: one kind of arithmetic is not another's."""
KEYS = {"name", "prompt", "generated", "logprobs"}
"""What an entry must have; prompt_logprobs where the prompt was scored."""
MEND = "give what sm86.backend.testing.ask wrote"
NEAR_TIE = 1.0
"""A greedy choice may differ from the reference's where the reference's lead is below this many nats."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One entry judged. mean, floor: nats; agree of total: greedy tokens equal to the reference's best; excess: of each
    token the served difference less FACTOR times the floor's, nats (empty where the prompt was not scored)."""

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
    prompt_excess: Sample
    excess: Sample

    @property
    def passed(self) -> bool:
        """Not above FACTOR floors by more than chance, and different from the reference at near ties only."""
        if not self.total:
            return False  # nothing was generated: nothing was seen
        above = self.prompt_excess.is_above_zero or self.excess.is_above_zero
        return not above and self.worst_lead <= max(NEAR_TIE, self.floor_lead)


def check_complete(entry: dict[str, Any]) -> None:
    """Raise CouldNotRun for an entry whose log-probs are not one for each token: the rest would go unseen."""
    scored = entry.get("prompt_logprobs") or ()
    generated_short = len(entry["logprobs"]) != len(entry["generated"])
    prompt_short = bool(scored) and len(scored) != len(entry["prompt"]) - 1
    if generated_short or prompt_short:
        raise CouldNotRun(f"{entry['name']}: not every token has its log-prob", MEND)


def judge(entry: dict[str, Any], rounded: Any, bf16: Any) -> Verdict:
    """Judge one entry by the reference's scores of prompt + generated tokens in both variants.

    Raises CouldNotRun as `check_complete`.
    """
    check_complete(entry)
    start = len(entry["prompt"]) - 1
    count = len(entry["generated"])
    reference, floor = rounded.logprob.tolist(), bf16.logprob.tolist()

    def apart(values: Sequence[float], begin: int) -> list[float]:
        return [abs(a - b) for a, b in zip(values, reference[begin:], strict=False)]

    def excess(served: list[float], own: list[float]) -> Sample:
        return sample([one - FACTOR * other for one, other in zip(served, own, strict=False)])

    scored = entry.get("prompt_logprobs") or []
    prompt, prompt_floor = apart(scored, 0), apart(floor[:start], 0)
    generated, generated_floor = apart(entry["logprobs"], start), apart(floor[start:], start)
    best, lead = rounded.best.tolist()[start:], rounded.lead.tolist()[start:]
    differing = [lead[i] for i in range(count) if best[i] != entry["generated"][i]]
    swayed = [at for one, other, at in zip(rounded.best, bf16.best, rounded.lead, strict=True) if one != other]
    return Verdict(
        name=entry["name"],
        tokens=len(entry["prompt"]),
        prompt_mean=sample(prompt).mean if scored else None,
        prompt_floor=sample(prompt_floor).mean,
        mean=sample(generated).mean,
        floor=sample(generated_floor).mean,
        agree=count - len(differing),
        total=count,
        worst_lead=max(differing, default=0.0),
        floor_lead=float(max(swayed, default=0.0)),
        prompt_excess=excess(prompt, prompt_floor),
        excess=excess(generated, generated_floor),
    )


def all_together(verdicts: Sequence[Verdict]) -> tuple[bool, str]:
    """(whether all tokens of all entries together are not above FACTOR floors by more than chance, in words)."""
    parts = {
        "prompts": together(verdict.prompt_excess for verdict in verdicts),
        "generated": together(verdict.excess for verdict in verdicts),
    }
    words = "; ".join(
        f"{name}, {part.count} tokens: {part.mean:+.4f} nats beside {FACTOR} floors, standard error {part.error:.4f}"
        for name, part in parts.items()
    )
    good = not any(part.is_above_zero for part in parts.values())
    return good, f"all together: {words}: {'pass' if good else 'FAIL'}"


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


def document(verdicts: list[Verdict], left_out: list[str]) -> dict[str, Any]:
    """The verdicts for --json."""
    rows = [{**asdict(verdict), "passed": verdict.passed} for verdict in verdicts]
    good, words = all_together(verdicts)
    return {
        "schema": "sm86.parity",
        "version": 2,
        "entries": rows,
        "all_together": {"passed": good, "text": words},
        "left_out": left_out,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.backend.testing.parity", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.json")
    parser.add_argument("--json", type=Path, help="also write the verdicts to this file, after each")
    add_option(parser)
    given = parser.parse_args(arguments)
    try:
        budget = budget_of(given)
        entries = [(run.stem, entry) for run in given.runs for entry in _read(run)]
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return fault.exit_code
    import torch

    from sm86.backend.testing.reference import Reference

    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    progress(f"loading the reference on {device}")
    reference = Reference(given.checkpoint, device)
    # the short ones first: where the time does not suffice, most are judged
    order = sorted(entries, key=lambda one: len(one[1]["prompt"]) + len(one[1]["generated"]))
    scores: dict[str, dict[tuple[int, ...], Any]] = {"rounded": {}, "bf16": {}}
    verdicts: dict[int, Verdict] = {}
    left_out: list[str] = []
    for variant, known in scores.items():
        reference.use(variant)
        # half of the time for each variant
        least = budget.left() / 2 if variant == "rounded" and budget.seconds is not None else 0.0
        for run, entry in order:
            tokens = tuple(entry["prompt"] + entry["generated"])
            name = f"{run} {entry['name']}"
            if tokens not in known and budget.allows(least) and (variant == "rounded" or tokens in scores["rounded"]):
                progress(f"{variant}: {name}, {len(tokens)} tokens")
                known[tokens] = reference.score(list(tokens))
            if variant == "bf16" and tokens in known:
                place = next(at for at, one in enumerate(entries) if one[1] is entry)
                verdicts[place] = judge({**entry, "name": name}, scores["rounded"][tokens], known[tokens])
            elif variant == "bf16":
                left_out.append(name)
            if variant == "bf16" and given.json:
                done = [verdicts[place] for place in sorted(verdicts)]
                write_atomic(given.json, json.dumps(document(done, left_out), indent=1) + "\n")
    print(table([verdicts[place] for place in sorted(verdicts)]))
    good, words = all_together(list(verdicts.values()))
    print(words)
    for name in left_out:
        print(f"{name}: {budget.words()}")
    sys.stdout.flush()
    if not good or not all(verdict.passed for verdict in verdicts.values()):
        return EXIT_FINDING
    return EXIT_COULD_NOT_RUN if left_out or not verdicts else EXIT_OK


def _read(run: Path) -> list[dict[str, Any]]:
    """A run file's entries. Raises CouldNotRun."""
    try:
        found = parse_json(run.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CouldNotRun(f"{run} is no run file: {error}", MEND) from None
    if not isinstance(found, list) or not found:
        raise CouldNotRun(f"{run} holds no entries", MEND)
    if not all(isinstance(entry, dict) and entry.keys() >= KEYS and entry["prompt"] for entry in found):
        raise CouldNotRun(f"{run} holds an entry without {', '.join(sorted(KEYS))}", MEND)
    for entry in found:
        check_complete(entry)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
