"""Is this the envelope's server, and is it idle? Asked before anything is measured. Effects: network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sm86.errors import CouldNotRun
from sm86.measure import sampler
from sm86.measure.client import NONSENSE, REFUSED, TIMEOUT, UNREACHABLE, Client, ServerFault
from sm86.measure.plan import BenchPlan


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself; None for what it does not say. has_metrics: /metrics shows vLLM's counters."""

    version: str | None
    max_model_len: int | None
    has_metrics: bool
    has_tokenizer: bool


def could_not_run(fault: ServerFault, address: object, envelope: str) -> CouldNotRun:
    """A fault met before anything was measured, with the mend that fits it."""
    said = (fault.server_said,) if fault.server_said else ()
    if fault.kind == UNREACHABLE:
        return CouldNotRun(
            f"there is no server at {address}: {fault.problem}",
            f"start it with invoke up --envelope {envelope}, or give its address with --url",
        )
    if fault.kind == REFUSED and fault.status in (401, 403):
        return CouldNotRun(
            f"the server at {address} refused the API key (HTTP {fault.status})",
            "give the file with the key the server was started with: --api-key-file",
        )
    if fault.kind == TIMEOUT:
        return CouldNotRun(fault.problem, f"see what it is doing: invoke logs --envelope {envelope}", said)
    return CouldNotRun(
        f"what answers at {address} is not a working OpenAI-style server: {fault.problem}",
        "check the address; if it is the right one, look at the server's log",
        said,
    )


def check_server(client: Client, plan: BenchPlan, settle_s: float = sampler.SETTLE_S) -> ServerFacts:
    """Raise CouldNotRun unless the server serves the plan's model and context and nobody else uses it."""
    address = client.address
    try:
        models = client.get_json("/v1/models")
        version = _version(client)
    except ServerFault as fault:
        raise could_not_run(fault, address, plan.envelope) from None
    card = _card(models, plan, address)
    context = card.get("max_model_len")
    if isinstance(context, int) and context != plan.context:
        raise CouldNotRun(
            f"the server at {address} serves a context of {context} tokens, {plan.envelope} has {plan.context}",
            f"start it with invoke up --envelope {plan.envelope}; a shorter context may mean that it did not fit",
        )
    now = sampler.read_idle(client, settle_s)
    if now is not None and (now.running or now.waiting):
        raise CouldNotRun(
            f"the server at {address} is busy: {now.running or 0:.0f} requests running, {now.waiting or 0:.0f} waiting",
            "wait until they have ended, or stop their clients; a shared server cannot be measured",
        )
    return ServerFacts(
        version=version,
        max_model_len=context if isinstance(context, int) else None,
        has_metrics=now is not None and now.generation_tokens is not None,
        has_tokenizer=_has_tokenizer(client, plan.model),
    )


def _card(models: Any, plan: BenchPlan, address: object) -> dict[str, Any]:
    data = models.get("data") if isinstance(models, dict) else None
    if not isinstance(data, list) or not all(isinstance(card, dict) for card in data):
        raise CouldNotRun(
            f"what answers at {address} is not an OpenAI-style server: /v1/models has no list of models",
            "check the address",
        )
    served = [str(card.get("id")) for card in data]
    for card in data:
        if card.get("id") == plan.model:
            return card
    raise CouldNotRun(
        f"the server at {address} serves {', '.join(served) or 'no model'}, not {plan.model}",
        f"start the right one with invoke up --envelope {plan.envelope}, or name the envelope that runs",
    )


def _version(client: Client) -> str | None:
    try:
        values = client.get_json("/version")
    except ServerFault as fault:
        if fault.kind in (REFUSED, NONSENSE):
            return None
        raise
    version = values.get("version") if isinstance(values, dict) else None
    return version if isinstance(version, str) else None


def _has_tokenizer(client: Client, model: str) -> bool:
    try:
        return count_tokens(client, model, "one two three") > 0
    except ServerFault:
        return False


def count_tokens(client: Client, model: str, text: str) -> int:
    """Length of a text in tokens, special tokens included, as /v1/completions will see it. Raises ServerFault."""
    values = client.post_json("/tokenize", {"model": model, "prompt": text})
    count = values.get("count") if isinstance(values, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ServerFault(NONSENSE, "/tokenize did not give a count")
    return count
