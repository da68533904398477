"""From what came back to verdicts: is the text coherent, were the known answers given, do the slots agree. Pure.

Every check has four states. A failing check that is none of GATES is a warning: the number was measured and the text is
coherent, but a person should know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from sm86.measure import coherence
from sm86.measure.prompts import REACHED, Fact, read_answers
from sm86.measure.timeline import Timeline
from sm86.record import Verdict

TEXT = "coherence: text"
LOGITS = "coherence: log probabilities"
ANSWERS = "coherence: known answers"
SAME = "coherence: same prompt"
WINDOW = "window"
LENGTH = "prompt length"
CACHE = "prefix cache"

GATES = (WINDOW, TEXT, LOGITS, ANSWERS)
"""Without these there is no coherent measurement: each must pass, or not apply."""

RANDOM = "the checkpoint is random: it writes no text"

SAME_TOKENS = 16

FIRM = 0.6
"""Below this probability a greedy token may be a near tie. Sequences that decode together round differently, and that
may turn a tie, which is no fault."""


def is_good(verdicts: Sequence[Verdict]) -> bool:
    """Measured and coherent: every gate passes or does not apply, and text or answers really pass.

    A random checkpoint can show neither; there the log probabilities must really pass.
    """
    states = {verdict.name: verdict.state for verdict in verdicts}
    shown = "pass" in (states.get(TEXT), states.get(ANSWERS))
    if Verdict(TEXT, "not applicable", RANDOM) in verdicts:
        shown = states.get(LOGITS) == "pass"
    return shown and all(states.get(gate) in ("pass", "not applicable") for gate in GATES)


@dataclass(frozen=True, slots=True)
class Prose:
    """The round of prose: one timeline per sequence; what was faulty, once more alone (by 0-based sequence);
    the server's words where it refused the round because a log probability was not a number."""

    together: tuple[Timeline, ...] = ()
    alone: Mapping[int, Timeline] = field(default_factory=dict)
    refused: str = ""


def text(
    alone: Sequence[Timeline], measured: Sequence[Sequence[Timeline]], prose: Prose, writes_text: bool = True
) -> Verdict:
    """Statistics of the prose written at N, and of the measured text as far as the model would have written it.

    alone: one per sequence; measured: per repeat, one per sequence. The measured text is forced to its length, so
    only as many tokens of it count as the same prompt gave alone before its natural end. What the model does alone
    as well is its habit: faulty prose where the same request is faulty alone, and loops of greedy text where greedy
    text alone goes into loops. Where nothing is sound the check does not pass. writes_text: False for a random
    checkpoint, which has no text to judge.
    """
    if not writes_text:
        return Verdict(TEXT, "not applicable", RANDOM)
    faults: list[str] = []
    short: list[str] = []
    habits: set[int] = set()
    sound: set[int] = set()
    for index, timeline in enumerate(prose.together):
        found = _faults(timeline, timeline.tokens)
        if found is None:
            short.append(f"sequence {index + 1}")
        elif not found:
            sound.add(index)
        elif index in prose.alone and _faults(prose.alone[index], prose.alone[index].tokens):
            habits.add(index)
        else:
            faults.append(f"prose of sequence {index + 1}: {found[0].text}")
    # small differences of arithmetic lead greedy text elsewhere at N, so the habit is the model's, not a sequence's
    loops_alone = any(coherence.begins_to_loop(timeline.text) for timeline in alone)
    for repeat, timelines in enumerate(measured, 1):
        for index, (timeline, single) in enumerate(zip(timelines, alone, strict=True)):
            found = _faults(timeline, single.tokens)
            if not found:
                continue
            if index in sound | habits and loops_alone and all(fault.repeats for fault in found):
                habits.add(index)
            else:
                faults.append(f"repeat {repeat}, sequence {index + 1}: {found[0].text}")
    if faults:
        return Verdict(TEXT, "fail", _some(faults))
    if short or not prose.together:
        who = ", ".join(short) if short else "no sequence"
        return Verdict(TEXT, "not seen", f"too little prose to judge before the natural end: {who}")
    names = ", ".join(f"sequence {index + 1}" for index in sorted(habits))
    if not sound:
        return Verdict(TEXT, "not applicable", f"the model writes such text alone as well: {names}")
    note = f"; loops that the model goes into alone as well were left out ({names})" if habits else ""
    return Verdict(TEXT, "pass", f"no loops, mixed scripts, broken characters or soup in prose{note}")


def _faults(timeline: Timeline, tokens: int) -> tuple[coherence.Fault, ...] | None:
    """Faults of the text of the first `tokens` tokens; None where it is too short to tell."""
    if timeline.tokens and not (timeline.text or timeline.reasoning).strip():
        return (coherence.Fault(f"{timeline.tokens} tokens without any text", False),)
    return coherence.faults(timeline.text_up_to(tokens) if timeline.text else timeline.reasoning)


def log_probabilities(alone: Sequence[Timeline], prose: Prose) -> Verdict:
    """Whether every log probability is a number, alone and at N."""
    if prose.refused:
        return Verdict(LOGITS, "fail", f"the logits are not numbers: the server said {prose.refused!r}")
    bad = [str(number) for number, timeline in enumerate(prose.together, 1) if timeline.bad_logprob]
    bad += [f"{number} alone" for number, timeline in enumerate(alone, 1) if timeline.bad_logprob]
    if bad:
        return Verdict(LOGITS, "fail", f"the logits are not numbers in sequence {', '.join(bad)}")
    if not prose.together or any(timeline.bad_logprob is None for timeline in prose.together):
        return Verdict(LOGITS, "not seen", "the server sent no log probabilities")
    return Verdict(LOGITS, "pass", "all log probabilities are numbers")


def says_nan(message: str) -> bool:
    """Whether an error of the server is what it says when logits are NaN."""
    lower = message.lower()
    return "out of range float" in lower or "nan" in lower.replace(",", " ").replace(":", " ").split()


def known_answers(
    rows: Sequence[Sequence[Fact]], alone: Sequence[Timeline], measured: Sequence[Sequence[Timeline]]
) -> Verdict:
    """Codes that the model gave alone must be given at N as well; a code of another sequence is a leak.

    What is wrong alone says nothing about N, and neither does a near tie. An answer counts where the same words lead
    to it at N and its own tokens were firm alone; where all tokens on the way were firm, it must be led to as well.
    Where nothing is known alone the check does not apply; it never passes.
    """
    asked, known, counted = 0, 0, 0
    faults: list[str] = []
    for sequence, single in enumerate(alone):
        answers = read_answers(single.text, sequence, rows)
        asked += len(answers)
        right = [answer for answer in answers if answer.right and _is_firm(single, answer.start, answer.end)]
        known += len(right)
        for repeat, timelines in enumerate(measured, 1):
            text = timelines[sequence].text
            together = {answer.fact.name: answer for answer in read_answers(text, sequence, rows)}
            where = f"repeat {repeat}, sequence {sequence + 1}"
            for answer in together.values():
                if answer.leaked_from is not None:
                    source = f"which only sequence {answer.leaked_from + 1} was told"
                    faults.append(f"{where}: {answer.fact.name} got {answer.given}, {source}")
            for answer in right:
                led_to = text.startswith(single.text[: answer.start])
                if not led_to and not _is_firm(single, 0, answer.end):
                    continue
                counted += 1
                found = together[answer.fact.name]
                if not found.right and found.leaked_from is None:
                    said = found.given or "no code"
                    told = f"{answer.fact.name} is {answer.fact.code}, known alone; together it said {said}"
                    faults.append(f"{where}: {told}")
    if faults:
        return Verdict(ANSWERS, "fail", _some(faults))
    if not known:
        return Verdict(ANSWERS, "not applicable", f"the model knows none of the {asked} codes firmly even alone")
    if not measured:
        return Verdict(ANSWERS, "not seen", "the prompts were not sent together")
    if not counted:
        told = f"together no words led to the {known} codes that are firmly known alone, and none had to"
        return Verdict(ANSWERS, "not applicable", told)
    told = (
        f"{known} of {asked} codes are firmly known alone; all {counted} answers together that depend on them are right"
    )
    return Verdict(ANSWERS, "pass", told)


def _is_firm(timeline: Timeline, start: int, end: int) -> bool:
    lowest = timeline.lowest_logprob(start, end)
    return lowest is None or lowest >= log(FIRM)


def same_prompt(timelines: Sequence[Timeline], sequences: int) -> Verdict:
    """Whether one prompt gives the same first tokens in every slot, which is usual but not promised."""
    if sequences == 1:
        return Verdict(SAME, "not applicable", "there is one slot only")
    agreed = coherence.agreement([timeline.token_ids for timeline in timelines], SAME_TOKENS)
    if agreed is None:
        return Verdict(SAME, "not seen", "the server sent no token ids")
    shortest = min((len(timeline.token_ids or ()) for timeline in timelines), default=0)
    if agreed >= min(SAME_TOKENS, shortest):
        return Verdict(SAME, "pass", f"the first {agreed} tokens are the same in all {sequences} slots")
    return Verdict(SAME, "fail", f"one prompt in {sequences} slots: only the first {agreed} tokens are the same")


def prompt_length(prompt_tokens: Sequence[int | None], wanted: int) -> Verdict:
    """Whether the prompts are as long as they should be, by the server's own count."""
    seen = [tokens for tokens in prompt_tokens if tokens is not None]
    if len(seen) < len(prompt_tokens) or not seen:
        return Verdict(LENGTH, "not seen", "the server did not say how long the prompts are")
    if min(seen) < REACHED * wanted:
        return Verdict(LENGTH, "fail", f"a prompt has {min(seen)} tokens, less than 95 % of the {wanted} wanted")
    return Verdict(LENGTH, "pass", f"{min(seen)} to {max(seen)} of {wanted} tokens")


def _some(faults: Sequence[str]) -> str:
    more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
    return "; ".join(faults[:3]) + more
