"""The runbook's publish summary, filled in from measurements only; what is missing is said to be missing. Pure.

Every sentence stands on records: a claim about the server needs the rule of a verified log that proves it, a number
needs a coherent benchmark of that same server, and "as checked in" needs the shipped envelope's digest and no
override.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sm86.report.charts import RATE, amount
from sm86.report.document import Block, Code, Inline, Listing, Prose, Quote, Ref, Section
from sm86.report.gather import Entry, Gathered, Machine
from sm86.report.sections.measured import aggregate, compared, is_good, part, passed, published, verified
from sm86.spec import PROOF

CLAIMS = (
    ("kv-cache-dtype", "{kv} KV cache"),
    ("hybrid-kv", "hybrid compressed KV"),
    ("attention-backend", "{attention} attention"),
    ("moe-backend", "{moe} MoE"),
    ("graphs-captured", "CUDA graph decode"),
)
"""What the summary says of the server, and the rule of the log that proves it."""

FULL = 0.9
"""Share of the context that the prompts must fill; a long decode leaves a short prompt."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A benchmark that may be published: coherent, of a server whose log was verified, of a shipped envelope."""

    entry: Entry
    log: Entry
    context: int
    sequences: int
    tok_s: float


def summary(gathered: Gathered) -> Section:
    """The summary of the rig with the most to say; the words that there is nothing to publish where there is none."""
    rigs = [machine for machine in gathered.machines if not machine.mark]
    if not rigs:
        return Section("publish", "Publish summary", 1, _nothing(gathered))
    blocks: list[Block] = []
    for rig in rigs:
        if len(rigs) > 1:
            blocks.append(Prose((f"{rig.name}:",)))
        blocks += _of(gathered, rig)
    return Section("publish", "Publish summary", 1, tuple(blocks))


def _nothing(gathered: Gathered) -> tuple[Block, ...]:
    marks = ", ".join(dict.fromkeys(machine.mark for machine in gathered.machines))
    first = (
        f"There is nothing to publish: no record is of an SM86 rig ({marks} only). Missing are all of these, and none "
        "of them can be filled in from here:"
    )
    return (Prose((first,), "missing"), *(Prose((f"Missing: {what}.",), "missing") for what in _WANTED))


_WANTED = (
    "the longest context that was served, with its decode rate",
    "the highest decode rate of all sequences together, with its shape",
    "the verified log of each of those servers",
)


def _of(gathered: Gathered, rig: Machine) -> list[Block]:
    proven, refused = _proven(gathered, rig)
    missing: list[Inline] = []
    paragraphs: list[Inline] = []
    blocks: list[Block] = []
    if proven:
        frontier = max(proven, key=lambda p: (p.context, p.tok_s))
        champion = max(proven, key=lambda p: p.tok_s)
        paragraphs.append(_server(gathered, rig, proven, missing))
        paragraphs.append(
            (
                f"The longest measured context on {rig.name} is {frontier.context:,} tokens, "
                f"{_sequences(frontier)} at {amount(frontier.tok_s, RATE)} tok/s{_against(rig, frontier)} ",
                Ref(frontier.entry.number),
                ".",
            )
        )
        paragraphs.append(
            (
                f"The highest measured throughput is {amount(champion.tok_s, RATE)} tok/s with "
                f"{_sequences(champion)} of {champion.context:,} tokens{_against(rig, champion)} ",
                Ref(champion.entry.number),
                ".",
            )
        )
        paragraphs.append(_as_checked_in(gathered, proven, missing))
        blocks.append(Quote(tuple(paragraphs)))
        blocks.append(Prose(("The longest context and the highest throughput again:",)))
        names = dict.fromkeys((frontier.entry.envelope, champion.entry.envelope))
        commands = [f"docker compose up {name}" for name in names]
        blocks.append(Listing("\n".join(commands)))
        if frontier is champion:
            missing.append(("a second envelope: the longest context is also the highest throughput here",))
    else:
        missing += [(what,) for what in _WANTED]
    missing += _never_measured(gathered, rig, proven)
    missing += refused
    if missing:
        blocks.append(Prose(("What these records do not hold; nothing was put in its place:",), "note"))
    blocks += [Prose(("Missing: ", *words, "."), "missing") for words in missing]
    return blocks


def _proven(gathered: Gathered, rig: Machine) -> tuple[list[Proven], list[Inline]]:
    found: list[Proven] = []
    refused: list[Inline] = []
    for name in rig.envelopes():
        entry = rig.latest("bench", name)
        envelope = gathered.shipped.get(name)
        if entry is None:
            continue
        number, log = aggregate(entry.record), verified(rig, entry)
        why = ""
        if envelope is None:
            why = "this version ships no such envelope"
        elif envelope.status == PROOF:
            why = "it proves the code path, with a made-up checkpoint"
        elif envelope.digest() != entry.record.envelope_digest:
            why = "the envelope has changed since"
        elif not is_good(entry.record) or number is None:
            why = "its benchmark is not a coherent measurement"
        elif log is None:
            why = "no verified log of that server is here"
        elif not passed(log.record):
            why = "its log does not pass every rule"
        if why or number is None or log is None or envelope is None:
            refused.append(("a number of ", Code(name), f" that may be published: {why} ", Ref(entry.number)))
            continue
        context = part(entry.record, "context")
        sequences = part(entry.record, "sequences")
        if (context, sequences) != (envelope.serve.context, envelope.serve.sequences):
            what = f"its benchmark was of {sequences} x {context} tokens"
            refused.append(("a number of ", Code(name), f" that may be published: {what} ", Ref(entry.number)))
            continue
        prompts = part(entry.record, "wanted_prompt_tokens")
        if not isinstance(prompts, int) or prompts < FULL * context:
            what = f"its prompts were of {prompts or 'unknown'} tokens, which do not fill its context"
            refused.append(("a number of ", Code(name), f" that may be published: {what} ", Ref(entry.number)))
            continue
        found.append(Proven(entry, log, int(context), int(sequences), number.value))
    return found, refused


def _never_measured(gathered: Gathered, rig: Machine, proven: Sequence[Proven]) -> list[Inline]:
    names = {entry.envelope for entry in rig.of("bench")}
    wanted = [e for e in gathered.shipped.values() if e.uses_gpu and e.published and e.name not in names]
    if not wanted:
        return []
    spans: list[str | Code] = ["a benchmark of "]
    for index, envelope in enumerate(wanted):
        spans += [", "] if index else []
        spans.append(Code(envelope.name))
    return [tuple(spans)]


def _server(gathered: Gathered, rig: Machine, proven: Sequence[Proven], missing: list[Inline]) -> Inline:
    envelope = gathered.shipped[proven[0].entry.envelope]
    words = {"kv": envelope.serve.kv_cache_dtype, "attention": envelope.serve.attention_backend}
    words["moe"] = envelope.serve.moe_backend
    said = []
    for rule, text in CLAIMS:
        if all(_states(p.log, rule) == "pass" for p in proven):
            said.append(text.format(**words))
        else:
            missing.append(
                (f"the proof of {text.format(**words)}: the rule ", Code(rule), " does not pass in every log")
            )
    models = list(dict.fromkeys(p.entry.record.conditions.model for p in proven))
    hashes = {p.entry.record.conditions.model_hash for p in proven}
    if len(models) == 1 and models[0] and len(hashes) == 1 and None not in hashes:
        model = f"the pre-quantized checkpoint {models[0]}"
    else:
        model = "a pre-quantized checkpoint"
        missing.append(("one checkpoint, named with its hash, in all of these records",))
    using = f" using {_listed(said)}" if said else ""
    refs: list[str | Ref] = []
    for p in proven:
        refs += [" ", Ref(p.log.number)]
    return (f"This revision serves {model} on {rig.name}{using}", *refs, ".")


def _states(entry: Entry, rule: str) -> str:
    return next((v.state for v in entry.record.verdicts if v.name == rule), "not seen")


def _as_checked_in(gathered: Gathered, proven: Sequence[Proven], missing: list[Inline]) -> Inline:
    """The sentence that all numbers are of the envelopes as they are checked in, or what stands against it."""
    against: list[str] = []
    for p in proven:
        for rule in ("manifest", "argv", "git-revision"):
            if _states(p.log, rule) != "pass":
                against.append(f"{p.entry.envelope}: {rule} does not pass")
        changed = [f"{name}={value}" for name, value in p.entry.record.conditions.overrides.items()]
        usual = dict(gathered.shipped[p.entry.envelope].environment)
        other = [text for text in changed if usual.get(text.split("=", 1)[0]) != text.split("=", 1)[1]]
        if other:
            against.append(f"{p.entry.envelope} ran with {', '.join(other)}")
    revisions = list(dict.fromkeys(p.entry.record.conditions.git_rev or "unknown" for p in proven))
    if len(revisions) > 1 or revisions == ["unknown"]:
        against.append(f"revisions: {', '.join(revision[:12] for revision in revisions)}")
    if against:
        missing.append(("the statement that all numbers are of the envelopes as checked in; ", "; ".join(against)))
        return ("Not all of these numbers are of the checked-in envelopes as they stand.",)
    return (
        "All of these numbers are of the checked-in envelopes as they stand, at revision ",
        Code(revisions[0][:12]),
        ".",
    )


def _sequences(p: Proven) -> str:
    return "one sequence" if p.sequences == 1 else f"{p.sequences} sequences"


def _against(rig: Machine, p: Proven) -> str:
    known = published(rig, p.entry)
    if known is None:
        return ""
    return f" ({compared(rig, p.entry)} against the published {amount(known['aggregate_tok_s'], RATE)})"


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
