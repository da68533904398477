"""Rules on which engine runs and what it chose: version, tensor parallelism, KV dtype, backends."""

from __future__ import annotations

from sm86.verify import events as ev
from sm86.verify.case import (
    MEND_BOOT,
    MEND_CUT,
    Case,
    failed,
    first_lines,
    not_applicable,
    not_seen,
    passed,
    text_of,
)
from sm86.verify.findings import Finding

_MEND_CLAIM = "do not trust this log's manifest: it was not written by the launcher that started this engine"


def vllm_version(case: Case) -> Finding:
    """The engine is the pinned release; a local build (`+sm86`) of it counts as that release."""
    wanted, engine, banner = case.expected_vllm, case.engine, case.boot.last(ev.VersionBanner)
    entry = case.entry("vllm_version")
    said = engine.version if engine else banner.version if banner else None
    line = engine or banner
    if said is None:
        claims = f"; the manifest claims {case.claim('vllm_version')}" if entry else ""
        return not_seen(f"the engine's own version is not in the log{claims}", MEND_CUT, [entry])
    if _release(said) != wanted:
        return failed(
            f"the engine is vLLM {said}, the pinned release is {wanted}",
            "start the image that was built from this revision's locks",
            [line, entry],
        )
    if entry is not None and _release(text_of(entry.value)) != wanted:
        return failed(
            f"the engine says vLLM {said}, the manifest claims {case.claim('vllm_version')}",
            _MEND_CLAIM,
            [line, entry],
        )
    return passed(f"vLLM {said}", [line, entry])


def _release(version: str) -> str:
    return version.strip().removeprefix("v").partition("+")[0]


def tensor_parallel(case: Case) -> Finding:
    """As many workers as the spec wants, each of them seen, and no other kind of parallelism."""
    wanted = case.envelope.serve.tensor_parallel
    entry, engine = case.entry("tensor_parallel"), case.engine
    workers = case.boot.all(ev.WorkerStarted)
    shared = case.boot.reported("backend", "gpu_shared_for_a_test")
    if shared and case.envelope.status != "proof":
        return failed(
            "the ranks shared one GPU, which is for proofs of the code path alone",
            "start the server without SM86_TEST_SHARE_GPU",
            first_lines(shared),
        )
    said = case.config("tensor_parallel_size")
    if said is not None and said != str(wanted):
        return failed(
            f"tensor parallelism is {said}, the spec wants {wanted}",
            "start the envelope as it is, on a rig with that many GPUs",
            [engine, entry],
            "tensor_parallel_size",
        )
    for name in ("decode_context_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        size = case.config(name)
        if size is not None and size != "1":
            return failed(
                f"{name} is {size}; the envelopes know tensor parallelism only",
                "leave that argument out (for decode contexts: it destroys the hybrid KV compression)",
                [engine],
                name,
            )
    if entry is not None and text_of(entry.value) != str(wanted):
        return failed(f"the manifest claims {text_of(entry.value)}, the spec wants {wanted}", MEND_BOOT, [entry])
    other = [worker for worker in workers if worker.world_size != wanted]
    if other:
        return failed(
            f"a worker belongs to a group of {other[0].world_size}, the spec wants {wanted}",
            MEND_BOOT,
            first_lines(other),
        )
    if said is None:
        return not_seen("the engine's config line with its tensor parallelism is not in the log", MEND_CUT, [entry])
    ranks = {worker.rank for worker in workers}
    if ranks != set(range(wanted)):
        return not_seen(
            f"the engine says {said}, but only {len(ranks)} of {wanted} workers reported",
            MEND_CUT,
            [engine, *first_lines(workers)],
            "tensor_parallel_size",
        )
    plural = f"all {wanted} workers" if wanted > 1 else "the one worker"
    return passed(f"{wanted}, and {plural} reported", [engine, *first_lines(workers)], "tensor_parallel_size")


def kv_cache_dtype(case: Case) -> Finding:
    """The KV cache has the spec's data type: what the engine ends up with, not only what it was told."""
    wanted, entry, engine = case.envelope.serve.kv_cache_dtype, case.entry("kv_cache_dtype"), case.engine
    told, lines = case.config("kv_cache_dtype"), case.boot.all(ev.KvCacheDtype)
    formats = [line for line in lines if line.dtype != told]
    # plain "fp8" is an alias: the worker's line names the format that the cache really has, and has the last word
    final = formats[-1].dtype if formats else told
    if final is None:
        claims = f"; the manifest claims {case.claim('kv_cache_dtype')}" if entry else ""
        return not_seen(f"the engine does not say its KV cache dtype in this log{claims}", MEND_CUT, [entry])
    if final != wanted:
        return failed(
            f"the KV cache is {final}, the spec wants {wanted}",
            f"start vLLM with --kv-cache-dtype {wanted}",
            [engine, *lines, entry],
            "kv_cache_dtype",
        )
    if entry is not None and text_of(entry.value) != wanted:
        return failed(
            f"the engine says {final}, the manifest claims {text_of(entry.value)}",
            _MEND_CLAIM,
            [entry, engine],
            "kv_cache_dtype",
        )
    if told is None:
        return not_seen("the engine's config line with its KV cache dtype is not in the log", MEND_CUT, [*lines, entry])
    also = f" (told {told}, which is that format here)" if told != final else ""
    return passed(f"{final}{also}", [engine, *lines, entry], "kv_cache_dtype")


def attention_backend(case: Case) -> Finding:
    """The attention backend is the spec's, by the word of whoever runs it: vLLM or the plugin. What the server was
    asked for is no word of what it got."""
    wanted = case.envelope.serve.attention_backend
    entry = case.entry("attention_backend")
    if not wanted:
        return not_applicable("the spec leaves the attention backend to vLLM")
    spoken = case.boot.all(ev.AttentionBackend)
    reported = case.boot.reported("backend", "attention_backend")
    mend = f"start vLLM with --attention-backend {wanted}, in the image that carries the SM86 plugin"
    left_out = case.boot.reported("backend", "left_out_for_a_test")
    if left_out:
        return failed(
            f"the plugin left out {text_of(left_out[0].value)}, which is for tests of it only",
            "start the server without that setting",
            first_lines(left_out),
        )
    said: list[tuple[ev.Event, str]] = [(line, line.name) for line in spoken]
    said += [(line, text_of(line.value)) for line in reported]
    for line, name in said:
        if _backend(name) != wanted:
            return failed(f"attention is {name}, the spec wants {wanted}", mend, [line, entry])
    asked = case.argument("attention_backend")
    if asked is not None and _backend(asked) != wanted:
        return failed(
            f"the server was asked for {asked}, the spec wants {wanted}", mend, [case.arguments], "attention_backend"
        )
    if entry is not None and _backend(text_of(entry.value)) != wanted:
        return failed(f"the manifest claims {text_of(entry.value)}, the spec wants {wanted}", MEND_BOOT, [entry])
    if spoken or reported:
        return passed(wanted, [*first_lines(spoken), *first_lines(reported), entry])
    claims = [
        words for words, said in (("the server was asked for it", asked), ("the manifest claims it", entry)) if said
    ]
    return not_seen(
        f"neither vLLM nor the SM86 plugin says that attention is {wanted}{''.join(f'; {claim}' for claim in claims)}",
        mend,
        [case.arguments if asked else None, entry],
        "attention_backend",
    )


def _backend(name: str) -> str:
    return name.rpartition(".")[2]


def moe_backend(case: Case) -> Finding:
    """The experts run on the spec's backend, as the first worker says when it builds them."""
    wanted = case.envelope.serve.moe_backend
    entry, engine = case.entry("moe_backend"), case.engine
    if not wanted:
        return not_applicable("the spec leaves the expert backend to vLLM")
    lines = case.boot.all(ev.MoeBackend)
    mend = f"start vLLM with --moe-backend {wanted}"
    ordered = [line for line in case.boot.reported("backend", "deterministic_moe") if text_of(line.value) == "true"]
    if ordered:
        return failed(
            "the plugin runs the experts in a fixed order, which is for tests that compare bits, and slow",
            "start the server without SM86_DETERMINISTIC_MOE",
            first_lines(ordered),
        )
    for line in lines:
        if line.name.lower() != wanted.lower():
            return failed(f"the experts run on {line.name}, the spec wants {wanted}", mend, [line, entry])
    if entry is not None and text_of(entry.value).lower() != wanted.lower():
        return failed(f"the manifest claims {text_of(entry.value)}, the spec wants {wanted}", MEND_BOOT, [entry])
    asked = case.argument("moe_backend")
    if asked is not None and asked.lower() != wanted.lower():
        return failed(
            f"the server was asked for {asked}, the spec wants {wanted}", mend, [case.arguments], "moe_backend"
        )
    if not lines:
        claims = "; the manifest claims it" if entry else ""
        return not_seen(
            f"no worker says its expert backend, which vLLM always prints{claims}", MEND_CUT, [entry, engine]
        )
    return passed(f"{lines[0].name}", [*first_lines(lines), entry])
