"""What an envelope may be: consistency, the roadmap's "Avoid" list, and the KV model. Pure."""

from __future__ import annotations

import re

from sm86.errors import CouldNotRun
from sm86.plan import kv
from sm86.spec.envelope import Envelope

NAME = re.compile(r"(?=.{1,63}\Z)[a-z0-9]+(-[a-z0-9]+)*")
FAMILY_DSV4 = "DeepseekV4ForCausalLM"

_NO_DCP = "decode context parallelism forces uniform KV groups and destroys the hybrid compression"
_NO_FLAT_KV = "without the hybrid KV cache manager the compressed groups are lost and long contexts do not fit"
_NO_DRAFT = "drafting cut 56 tok/s to about 20 on the published rig; it is a per-run probe, not a default"

_FLAG_REASONS = {
    "--decode-context-parallel-size": _NO_DCP,
    "-dcp": _NO_DCP,
    "--disable-hybrid-kv-cache-manager": _NO_FLAT_KV,
    "--speculative-config": _NO_DRAFT,
    "-sc": _NO_DRAFT,
    "--spec-method": _NO_DRAFT,
    "--spec-model": _NO_DRAFT,
    "--spec-tokens": _NO_DRAFT,
    "--hf-overrides": "it would change the model that the numbers are about",
    "--config": "a second file of arguments would not stand in the manifest",
}

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD)S?($|_)")


def avoided(argument: str) -> str | None:
    """Why an argument is on the "Avoid" list, or None.

    Reads a flag as vLLM does: `--flag=value`, `--flag.key`, `_` for `-`, and a shortened flag.
    """
    flag = argument.split("=", 1)[0].split(".", 1)[0].lower().replace("_", "-")
    if flag in ("-dcp", "-sc"):
        return _FLAG_REASONS[flag]
    if not flag.startswith("--"):
        return None
    return next((reason for known, reason in _FLAG_REASONS.items() if _same_flag(flag, known)), None)


def _same_flag(flag: str, known: str) -> bool:
    # argparse takes any unambiguous prefix of a long flag; anything shorter than this is ambiguous there
    return flag == known or (len(flag) >= len("--spec") and known.startswith(flag))


def check(envelope: Envelope, where: str) -> None:
    """Raise CouldNotRun for the first thing that cannot be right; `where` is the file to name."""

    def refuse(problem: str, mend: str) -> CouldNotRun:
        return CouldNotRun(f"{where}: {problem}", mend)

    serve, graphs = envelope.serve, envelope.graphs
    if not NAME.fullmatch(envelope.name):
        raise refuse(
            f"name {envelope.name!r} cannot be a service name", "use lower-case letters, digits and single hyphens"
        )
    for argument in serve.extra_args:
        reason = avoided(argument)
        if reason:
            raise refuse(f"serve.extra_args has {argument}: {reason}", "leave it out (roadmap, Avoid)")
    for name, _ in envelope.environment:
        if _SECRET.search(name):
            raise refuse(
                f"environment.{name} looks like a secret", "a spec is public; give secrets in a file at run time"
            )
    if serve.speculative_config != "none":
        raise refuse(
            f"serve.speculative_config is {serve.speculative_config!r}: {_NO_DRAFT}",
            'write speculative_config = "none"; for one run use SPECULATIVE_CONFIG',
        )
    if graphs.mode == "NONE" and graphs.capture_sizes:
        raise refuse("graphs.mode is NONE but capture_sizes are given", "drop the sizes or choose a mode")
    if graphs.mode != "NONE":
        if not graphs.capture_sizes:
            raise refuse("graphs.capture_sizes is empty", f"capture {serve.sequences}, the number of sequences")
        if list(graphs.capture_sizes) != sorted(set(graphs.capture_sizes)):
            raise refuse(
                f"graphs.capture_sizes {list(graphs.capture_sizes)} is not ascending", "write each size once, ascending"
            )
        if graphs.max_capture_size != serve.sequences:
            raise refuse(
                f"the largest capture size is {graphs.max_capture_size}, but {serve.sequences} sequences decode",
                "make the largest capture size the number of sequences, or decode falls out of the graph",
            )
    if envelope.published and len(envelope.published.per_sequence_tok_s) != serve.sequences:
        raise refuse("published.per_sequence_tok_s does not have one number per sequence", "give one per sequence")
    if envelope.uses_gpu and envelope.model.architecture == FAMILY_DSV4:
        _check_dsv4(envelope, refuse)


def _check_dsv4(envelope: Envelope, refuse) -> None:  # type: ignore[no-untyped-def]
    serve = envelope.serve
    if not serve.hybrid_kv_cache:
        raise refuse(f"serve.hybrid_kv_cache is false: {_NO_FLAT_KV}", "write true")
    if serve.kv_cache_dtype != "fp8_ds_mla":
        raise refuse(
            f"serve.kv_cache_dtype is {serve.kv_cache_dtype!r}",
            'DeepSeek-V4 on SM86 needs "fp8_ds_mla" (roadmap, Keep)',
        )
    if serve.block_size != kv.BLOCK_TOKENS:
        raise refuse(
            f"serve.block_size is {serve.block_size}",
            f"use {kv.BLOCK_TOKENS}: the block counts hold for no other (runbook)",
        )
    if serve.num_gpu_blocks_override is None:
        raise refuse(
            "serve.num_gpu_blocks_override is missing",
            "pin it: the profiler drifts by enough to fail at start (runbook)",
        )
    m = kv.scheduled_tokens(serve.max_num_batched_tokens, serve.async_scheduling)
    needed = kv.needed_blocks(serve.context, serve.sequences, m)
    if serve.num_gpu_blocks_override < needed:
        raise refuse(
            f"serve.num_gpu_blocks_override is {serve.num_gpu_blocks_override}, but "
            f"{serve.sequences} x {serve.context} tokens at m = {m} need {needed} KV blocks",
            f"use {kv.block_override(serve.context, serve.sequences, m)}, or a smaller context or batch",
        )
