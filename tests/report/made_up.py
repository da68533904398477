"""Records of a rig that does not exist, for the tests alone: every number in them is made up and none is a published
one. The real records of the tests are of the embedded default, in data/."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sm86.record import Conditions, Number, Record, Verdict
from sm86.report.gather import Source
from sm86.spec import load_envelope

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UUIDS = tuple(f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in range(8))
REVISION = "a" * 40

RULES = ("manifest", "argv", "git-revision", "vllm-origin", "kv-cache-dtype", "attention-backend", "moe-backend")
RULES += ("hybrid-kv", "graphs-captured", "ready")
GATES = ("window", "coherence: text", "coherence: log probabilities", "coherence: known answers")


def conditions(gpu: str = "NVIDIA GeForce RTX 3090", count: int = 8, mark: str = "", **changes: Any) -> Conditions:
    gpus = tuple(
        {
            "index": i,
            "uuid": UUIDS[i],
            "name": gpu,
            "memory_mib": 24576,
            "power_limit_w": 350.0,
            "temperature_c": 40 + i,
        }
        for i in range(count)
    )
    made = Conditions(
        engine="cuda",
        mark=mark,
        image_id="sha256:" + "b" * 64,
        lock_hash="c" * 64,
        model="Intel/DeepSeek-V4-Flash-W4A16-AutoRound",
        model_hash="d" * 64,
        git_rev=REVISION,
        vllm_version="0.26.0",
        driver="580.126.09",
        gpus=gpus,
        host={"cpu": "AMD EPYC 7302", "cores": 32, "memory_mib": 257000},
    )
    return replace(made, **changes)


def record(kind: str, envelope: str, minutes: float = 0, **changes: Any) -> Record:
    shipped = load_envelope(envelope)
    made = Record(
        kind=kind,
        envelope=envelope,
        envelope_digest=shipped.digest(),
        started=START + timedelta(minutes=minutes),
        seconds=61.5,
        conditions=conditions(),
    )
    return replace(made, **changes)


def bench(envelope: str, tok_s: float, minutes: float = 0, verdict: str = "within noise", **changes: Any) -> Record:
    shipped = load_envelope(envelope)
    count = shipped.serve.sequences
    repeats = (round(tok_s * 0.99, 3), tok_s, round(tok_s * 1.01, 3))
    numbers = [Number("decode aggregate", tok_s, "tok/s", repeats)]
    numbers += [
        Number(f"decode sequence {n}", tok_s / count, "tok/s", tuple(r / count for r in repeats))
        for n in range(1, count + 1)
    ]
    published = shipped.published
    reasons = [] if verdict in ("better", "within noise", "worse") else ["the rig is another one"]
    details: dict[str, Any] = {
        "definition": "steady window",
        "sequences": count,
        "context": shipped.serve.context,
        "wanted_prompt_tokens": shipped.serve.context - 600,
        "decode_tokens": 512,
        "published": None
        if published is None
        else {"aggregate_tok_s": published.aggregate_tok_s, "per_sequence_tok_s": list(published.per_sequence_tok_s)},
        "comparison": {"verdict": verdict, "reasons": reasons, "notes": ["the source states no definition"]},
        "repeats": [
            {
                "window": {"start_s": 1.5, "end_s": 9.5, "aggregate_tok_s": rate},
                "sequences": [
                    {"timeline": [[1.0 + n / 10, 1], [5.0, 250], [10.0 + n / 10, 512]]} for n in range(count)
                ],
            }
            for rate in repeats
        ],
    }
    verdicts = tuple(Verdict(gate, "pass", "it is so") for gate in GATES)
    made = record("bench", envelope, minutes, numbers=tuple(numbers), verdicts=verdicts, details=details)
    return replace(made, **changes)


def verify(envelope: str, minutes: float = 0, failing: tuple[str, ...] = (), **changes: Any) -> Record:
    verdicts = tuple(Verdict(rule, "fail" if rule in failing else "pass", f"{rule} in words") for rule in RULES)
    findings = [{"rule": "ready", "state": "pass", "evidence": [{"line": 7, "text": "Application startup complete."}]}]
    made = record("verify", envelope, minutes, verdicts=verdicts, details={"passed": not failing, "findings": findings})
    return replace(made, **changes)


def boot(envelope: str, minutes: float = 0, **changes: Any) -> Record:
    names = (("image", 1.2), ("start", 31.0), ("load", 188.0), ("profile", 44.0), ("capture", 12.5), ("ready", 3.1))
    numbers = tuple(Number(name, seconds, "s") for name, seconds in names)
    verdicts = tuple(Verdict(name, "pass", "phase") for name, _ in names)
    return replace(record("boot", envelope, minutes, numbers=numbers, verdicts=verdicts), **changes)


def comm(minutes: float = 0, **changes: Any) -> Record:
    rows = []
    for n, (name, base) in enumerate(
        (("nccl", 98.0), ("nccl-ring-ll", 97.0), ("nccl-tree-ll", 121.0), ("sm86-host", 61.0))
    ):
        us = {str(size): {"median": base + size / 2048, "low": base + size / 2048 - 1, "high": base + size / 2048 + n,
                          "repeats": [base]} for size in (8192, 32768, 65536)}  # fmt: skip
        rows.append({"setting": name, "state": "measured", "why": "", "us": us, "ran": {"8192": ["RING LL"]}})
    rows.append({"setting": "flashinfer", "state": "not available", "why": "no peer access", "us": {}, "ran": {}})
    details = {
        "ranks": 8,
        "calls_per_step": 87,
        "rows": rows,
        "facts": {"nccl": "2.28.9"},
        "recommendation": {"setting": "sm86-host", "reasons": ["no other is faster beyond the spread"]},
        "gains": [{"setting": "sm86-host", "size": 8192, "calls": 87, "ms": 3.2, "least_ms": 3.0, "most_ms": 3.4}],
    }
    numbers = tuple(Number(f"{row['setting']} 8 KiB", 98.0, "us") for row in rows[:4])
    return replace(record("comm", "sm86-64k", minutes, details=details, numbers=numbers), **changes)


def ladder(minutes: float = 0, **changes: Any) -> Record:
    rungs = [
        {"key": f"{n}x", "sequences": n, "context": 262144 // n, "state": "passed", "tok_s": 50.0 + 17 * n,
         "repeats_tok_s": [50.0 + 17 * n], "overrides": {}, "published_tok_s": 999.5,
         "comparison": "cannot be compared", "text": "measured"} for n in (1, 2, 3)
    ]  # fmt: skip
    rungs.append({**rungs[0], "key": "4x", "sequences": 4, "state": "failed", "tok_s": None, "text": "out of memory"})
    stop = {"rung": "4x", "kind": "out of memory", "text": "a graph did not fit", "mend": "fewer blocks"}
    details = {"ladder": "sequence", "complete": False, "stopped_by": stop, "rungs": rungs, "matrix": []}
    return replace(record("ladder", "sm86-262k", minutes, details=details), envelope="ladder-sequence", **changes)


def rig() -> list[Record]:
    """A rig with everything: four envelopes, a comm matrix, a ladder."""
    names = (("sm86-262k", 57.25), ("sm86-176k-2seq", 79.25), ("sm86-114k-3seq", 103.0), ("sm86-80k-4seq", 118.75))
    made: list[Record] = []
    for index, (name, tok_s) in enumerate(names):
        at = 30 * index
        made += [boot(name, at), verify(name, at + 6), bench(name, tok_s, at + 7)]
    return [*made, comm(200), ladder(300)]


def sources(records: list[Record]) -> list[Source]:
    return [Source(one, f"{one.envelope}/{number}-{one.kind}.json") for number, one in enumerate(records)]
