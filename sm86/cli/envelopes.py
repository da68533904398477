"""`invoke envelopes`: what can be served, and what is published for it."""

from __future__ import annotations

import json as json_module

from sm86.spec import Envelope, load_all


def envelopes(json: bool = False) -> int:
    """Print every shipped envelope; exit code 0."""
    every = load_all()
    if json:
        values = [_facts(envelope) for envelope in every]
        print(json_module.dumps({"schema": "sm86.envelopes", "version": 1, "envelopes": values}, indent=2))
        return 0
    rows = [("envelope", "sequences x context", "published", "status")]
    for envelope in every:
        published = envelope.published
        rows.append(
            (
                envelope.name,
                f"{envelope.serve.sequences} x {envelope.serve.context}",
                f"{published.aggregate_tok_s} tok/s" if published else "-",
                envelope.status + (f": {envelope.caveat}" if envelope.caveat else ""),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + f"  {row[3]}")
    return 0


def _facts(envelope: Envelope) -> dict[str, object]:
    published = envelope.published
    return {
        "name": envelope.name,
        "title": envelope.title,
        "status": envelope.status,
        "engine": envelope.engine,
        "caveat": envelope.caveat,
        "context": envelope.serve.context,
        "sequences": envelope.serve.sequences,
        "served_model_name": envelope.serve.served_model_name,
        "runbook_script": envelope.runbook_script,
        "digest": envelope.digest(),
        "published": None
        if published is None
        else {
            "source": published.source,
            "aggregate_tok_s": published.aggregate_tok_s,
            "per_sequence_tok_s": list(published.per_sequence_tok_s),
        },
    }
