"""The benchmark of one envelope against a running server: rounds -> verdicts -> result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sm86.errors import CheckFailed, Sm86Error
from sm86.measure import judge, preflight, sampler
from sm86.measure.client import REFUSED, TIMEOUT, Client, ServerFault
from sm86.measure.compare import Measured, compare
from sm86.measure.metrics import cross_check
from sm86.measure.plan import BenchPlan
from sm86.measure.progress import Progress, Silent
from sm86.measure.result import BenchResult, Repeat, aggregates, conditions_for
from sm86.measure.rounds import Rounds
from sm86.measure.telemetry import NO_GPU, NOT_TAKEN, Source, Telemetry, summarise
from sm86.measure.window import Refusal
from sm86.record import Conditions, Verdict
from sm86.record.left_out import SHORTER, in_words
from sm86.spec.envelope import Envelope


def run(
    envelope: Envelope,
    plan: BenchPlan,
    client: Client,
    conditions: Conditions | None = None,
    verify_state: str | None = None,
    progress: Progress | None = None,
    salt: str | None = None,
    sample_s: float = sampler.INTERVAL_S,
    telemetry: Source | None = None,
) -> BenchResult:
    """Benchmark the server behind `client` as `plan` says.

    conditions: what is known of image and rig; verify_state: what verification of this server's log said, None
    where it was not run; salt: makes this run's prompts its own, random by default; sample_s: seconds between two
    readings of the server's counters; telemetry: who watches the GPUs meanwhile, None where nobody can.
    Raises CouldNotRun before anything was sent to decode (no server, wrong model, busy), CheckFailed when the server
    fails in the middle. A window that does not exist is no fault: the result then has no number and says why.
    """
    progress = progress or Silent()
    salt = salt or secrets.token_hex(3)
    started, clock = datetime.now(UTC), time.perf_counter()
    progress.stage("check the server", 1, "")
    server = preflight.check_server(client, plan)
    rounds = Rounds(client, plan, server, progress)
    if telemetry is not None:
        telemetry.start()
    try:
        made = rounds.prompts(salt)
        rounds.prime(made)
        alone = rounds.alone(made)
        same = rounds.same_prompt(made)
        rounds_done = rounds.measure(made, sample_s)
        prose = rounds.prose(made)
    except ServerFault as fault:
        raise failed(fault, plan, _at_the_end(telemetry, clock)) from None
    finally:
        if telemetry is not None:
            telemetry.stop()
    repeats, left_out = rounds_done.repeats, rounds_done.left_out
    plan = replace(plan, decode_tokens=rounds_done.decode_tokens)
    seen = _seen(envelope, telemetry, repeats, clock)
    measured = [repeat.timelines for repeat in repeats]
    lengths = [timeline.prompt_tokens for timeline in measured[0]]
    verdicts = (
        window_verdict(repeats, left_out),
        judge.text(alone, measured, prose, envelope.writes_text),
        judge.log_probabilities(alone, prose),
        judge.known_answers([prompt.facts for prompt in made], alone, measured),
        judge.same_prompt(same, plan.sequences),
        judge.prompt_length(lengths, plan.prompt_tokens),
        cache_verdict(repeats),
        cross_check(rounds_done.observed, plan.sequences),
    )
    facts = Measured(
        aggregates=aggregates(repeats),
        prompt_tokens=tuple(tokens or 0 for tokens in lengths),
        wanted_tokens=plan.prompt_tokens,
        full_context=plan.full_context,
        cold=not all(repeat.warm for repeat in repeats),
        decode_tokens=plan.decode_tokens,
        published_decode_tokens=envelope.bench.decode_tokens,
        verdicts=verdicts,
        server_version=server.version,
        verify_state=verify_state,
    )
    known = conditions_for(envelope, server, conditions)
    comparison = compare(envelope, known, facts)
    return BenchResult(
        envelope=envelope,
        plan=plan,
        salt=salt,
        started=started,
        seconds=time.perf_counter() - clock,
        server=server,
        conditions=known,
        prompts=made,
        repeats=repeats,
        left_out=left_out,
        alone=alone,
        prose=prose,
        verdicts=(*verdicts, seen.verdict(), comparison.as_verdict()),
        comparison=comparison,
        telemetry=seen,
    )


def _seen(envelope: Envelope, source: Source | None, repeats: Sequence[Repeat], origin: float) -> Telemetry:
    """What the GPUs did in the windows, or while the requests ran where there is no window."""
    if source is None:
        return NOT_TAKEN if envelope.uses_gpu else NO_GPU
    spans = []
    for repeat in repeats:
        if isinstance(repeat.window, Refusal):
            ends = [t.points[-1].at for t in repeat.timelines if t.points]
            spans.append((min(t.sent_at for t in repeat.timelines), max(ends, default=0.0)))
        else:
            spans.append((repeat.window.start, repeat.window.end))
    return summarise(source, spans, origin)


def window_verdict(repeats: Sequence[Repeat], left_out: Sequence[Repeat] = ()) -> Verdict:
    """Pass only if every repeat has a steady window; it names the rounds that were left out and measured again."""
    again = in_words([r.window.reason if isinstance(r.window, Refusal) else SHORTER for r in left_out])
    told = f"; {again}" if again else ""
    reasons = [
        f"repeat {number}: {repeat.window.reason}"
        for number, repeat in enumerate(repeats, 1)
        if isinstance(repeat.window, Refusal)
    ]
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return Verdict(judge.WINDOW, "fail", f"no number: {reasons[0]}{more}{told}")
    return Verdict(judge.WINDOW, "pass", f"all sequences decoded together in each of {len(repeats)} repeats{told}")


def cache_verdict(repeats: Sequence[Repeat]) -> Verdict:
    """Whether the measured prompts came from the prefix cache in every repeat."""
    cached = [t.cached_tokens for repeat in repeats for t in repeat.timelines if t.cached_tokens is not None]
    seen = f": {min(cached)} to {max(cached)} cached tokens" if cached else ""
    if all(repeat.warm for repeat in repeats):
        return Verdict(judge.CACHE, "pass", f"the prompts came from the prefix cache{seen}")
    if any(repeat.warm is None for repeat in repeats):
        return Verdict(judge.CACHE, "not seen", "the server does not say how much of a prompt was cached")
    return Verdict(judge.CACHE, "fail", f"cold: the prompts did not come from the prefix cache{seen}")


def _at_the_end(source: Source | None, origin: float) -> tuple[str, ...]:
    """What telemetry says of a server that failed, one sentence for each limit: a GPU may have gone with it."""
    if source is None:
        return ()
    source.stop()
    now = time.perf_counter()
    seen = summarise(source, [(origin, now)], origin)
    return tuple(f"telemetry: {text}" for text in (*(limit.text for limit in seen.limits), *seen.notes))


def failed(fault: ServerFault, plan: BenchPlan, seen: tuple[str, ...] = ()) -> Sm86Error:
    """The server failed in the middle: what it did, where to look, and what the GPUs did."""
    said = ((fault.server_said,) if fault.server_said else ()) + seen
    logs = f"invoke logs --envelope {plan.envelope}"
    if fault.kind == TIMEOUT:
        mend = f"it may hang: {logs} shows its last words; stop it, start it again and verify the boot"
    elif fault.kind == REFUSED and fault.status is not None and fault.status < 500:
        mend = f"the request is at odds with the server's settings; compare them with the envelope: {logs}"
    else:
        mend = f"its log has the reason: {logs}"
    return CheckFailed(f"the server failed in the middle of the benchmark: {fault.problem}", mend, said)
