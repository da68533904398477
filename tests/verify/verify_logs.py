"""Logs for the verifier's tests: the recorded and foreign ones, and the composed good one with changes made to it."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

from sm86.manifest import Value, format_manifest
from sm86.spec import Envelope
from sm86.spec import load_envelope as _load_envelope
from sm86.spec.argv import compilation_config, serve_argv
from sm86.verify.findings import Finding, Report
from sm86.verify.verify import verify_log

LOGS = Path(__file__).parent / "logs"
GOOD = "sm86-80k-4seq"
REVISION = "1e70cccf00d5c0de1e70cccf00d5c0de1e70cccf"
PLACEHOLDER = "@@ the manifest, printed by the launcher before it becomes vLLM; filled in from the spec by the test @@"


load_envelope = functools.cache(_load_envelope)


def path_of(name: str) -> Path:
    return next(iter(sorted(LOGS.glob(f"{name}*.log"))))


def read(name: str) -> bytes:
    return path_of(name).read_bytes()


def claims(spec: Envelope, /, **changes: Value) -> dict[str, Value]:
    """What the launcher would put into the manifest of a good start; `changes` with None take a key out.

    Keys with dots are written with two underscores: vllm__envs_origin, override__NCCL_ALGO.
    """
    serve, graphs = spec.serve, spec.graphs
    environment = dict(spec.environment)
    argv = list(serve_argv(spec))
    entries: dict[str, Value] = {
        "envelope": spec.name,
        "envelope_digest": spec.digest(),
        "envelope_matches_image": True,
        "engine": spec.engine,
        "git_rev": REVISION,
        "git_dirty": False,
        "lock_hash": "5e0c",
        "image_id": "sha256:0badcafe",
        "sm86_version": "0.1.0",
        "python": "3.12.12",
        "vllm_distribution": "vllm",
        "vllm_version": "0.26.0",
        "torch_version": "2.11.0+cu130",
        "vllm.envs_origin": "/opt/venv/lib/python3.12/site-packages/vllm/envs.py",
        "exec": ["/opt/venv/bin/python3", "-P", "-m", "vllm.entrypoints.cli.main"],
        "argv": argv,
        "argv_matches_spec": True,
        "argv_overridden": None,
        "environment": environment,
        "environment_matches_spec": True,
        "kv_cache_dtype": serve.kv_cache_dtype,
        "attention_backend": serve.attention_backend,
        "moe_backend": serve.moe_backend,
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
        "num_gpu_blocks_override": serve.num_gpu_blocks_override,
        "cudagraph_mode": graphs.mode,
        "cudagraph_capture_sizes": list(graphs.capture_sizes),
        "max_cudagraph_capture_size": graphs.max_capture_size,
        "hybrid_kv": serve.hybrid_kv_cache,
        "tensor_parallel": serve.tensor_parallel,
        "max_model_len": serve.context,
        "max_num_seqs": serve.sequences,
        "max_num_batched_tokens": serve.max_num_batched_tokens,
        "async_scheduling": serve.async_scheduling,
        "speculative_config": None,
        "model": argv[1],
        "model_hash": "a1b2",
        "gpus": [f"GPU-{index:08x}" for index in range(serve.tensor_parallel)],
        "driver": "580.126.09",
        "api_key": "set",
        "cache": "/cache",
    }
    if "FUSE_ALLREDUCE_RMS" in environment:
        # the launcher reads it as an override, passes it on and says that it does nothing here
        config = {**compilation_config(spec), "pass_config": {"fuse_allreduce_rms": True}}
        argv[argv.index("--compilation-config") + 1] = as_json(config)
        entries["override.FUSE_ALLREDUCE_RMS"] = {"value": "1", "state": "inert", "why": "no pass runs here"}
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            entries.pop(name)
        else:
            entries[name] = value
    return entries


def as_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def good(**changes: Value) -> str:
    """The composed good log as text; `changes` go to the manifest."""
    manifest = "\n".join(format_manifest(claims(load_envelope(GOOD), **changes)))
    text = path_of(f"composed_{GOOD}").read_bytes().decode()
    assert PLACEHOLDER in text
    return text.replace(PLACEHOLDER, manifest)


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    """`text` with `old` replaced; the test is broken where `old` is not in it."""
    assert old in text, old
    return text.replace(old, new, count)


def without(text: str, *words: str) -> str:
    """`text` without the lines that hold one of the words."""
    lines = text.split("\n")
    kept = [line for line in lines if not any(word in line for word in words)]
    assert len(kept) < len(lines), words
    return "\n".join(kept)


def until(text: str, word: str) -> str:
    """`text` up to the end of the first line that holds the word."""
    assert word in text, word
    return text[: text.index("\n", text.index(word)) + 1]


def verified(log: str | bytes, envelope: str = GOOD, git_rev: str | None = REVISION) -> Report:
    data = log.encode() if isinstance(log, str) else log
    return verify_log(load_envelope(envelope), [data], git_rev)


def finding(report: Report, rule: str) -> Finding:
    return next(one for one in report.findings if one.rule == rule)


def states(report: Report) -> dict[str, str]:
    return {one.rule: one.state for one in report.findings}


def not_passed(report: Report) -> dict[str, str]:
    return {rule: state for rule, state in states(report).items() if state not in ("pass", "not applicable")}


def chunked(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def line_of(log: str, pattern: str) -> int:
    """Number of the first physical line that matches."""
    return next(number for number, line in enumerate(log.split("\n"), 1) if re.search(pattern, line))
