"""Envelope -> the argument list of `vllm serve`. The only place where it is built; everything else reads it."""

from __future__ import annotations

import json

from sm86.spec.envelope import Envelope

MODELS_DIR = "/models"
"""Where the models folder is mounted in a container, read-only."""

CONTAINER_PORT = 8000

QUIET = "--disable-access-log-for-endpoints"
QUIET_PATHS = "/health,/metrics"
"""What the launcher adds to the arguments of a spec; it changes the access log alone."""


def compilation_config(envelope: Envelope) -> dict[str, object]:
    """vLLM's compilation config for the envelope's graphs."""
    if not envelope.graphs.capture_sizes:
        return {"cudagraph_mode": envelope.graphs.mode}
    return {
        "cudagraph_mode": envelope.graphs.mode,
        "cudagraph_capture_sizes": list(envelope.graphs.capture_sizes),
        "max_cudagraph_capture_size": envelope.graphs.max_capture_size,
    }


def serve_argv(
    envelope: Envelope,
    model_path: str | None = None,
    host: str = "0.0.0.0",
    port: int = CONTAINER_PORT,
) -> tuple[str, ...]:
    """Arguments after `vllm`, starting with "serve", one flag or value per item (vLLM 0.26.0 names).

    model_path: where the checkpoint lies for the process; by default below MODELS_DIR.
    host, port: what the server binds to; inside a container all interfaces, as only a loopback port is published.
    """
    serve = envelope.serve
    argv: list[str] = ["serve", model_path or f"{MODELS_DIR}/{envelope.model.folder}"]

    def add(flag: str, value: object) -> None:
        argv.extend((flag, str(value)))

    add("--served-model-name", serve.served_model_name)
    add("--host", host)
    add("--port", port)
    add("--tensor-parallel-size", serve.tensor_parallel)
    add("--max-model-len", serve.context)
    add("--max-num-seqs", serve.sequences)
    add("--max-num-batched-tokens", serve.max_num_batched_tokens)
    argv.append("--async-scheduling" if serve.async_scheduling else "--no-async-scheduling")
    argv.append("--enable-prefix-caching" if serve.prefix_caching else "--no-enable-prefix-caching")
    add("--kv-cache-dtype", serve.kv_cache_dtype)
    add("--block-size", serve.block_size)
    if serve.num_gpu_blocks_override is not None:
        add("--num-gpu-blocks-override", serve.num_gpu_blocks_override)
    add("--gpu-memory-utilization", serve.gpu_memory_utilization)
    if serve.hybrid_kv_cache and envelope.uses_gpu:
        argv.append("--no-disable-hybrid-kv-cache-manager")
    if serve.attention_backend:
        add("--attention-backend", serve.attention_backend)
    if serve.moe_backend:
        add("--moe-backend", serve.moe_backend)
    if envelope.graphs.capture_sizes:
        add("--compilation-config", json.dumps(compilation_config(envelope), separators=(",", ":")))
    if serve.speculative_config != "none":
        add("--speculative-config", serve.speculative_config)
    argv.append("--enable-prompt-tokens-details")
    argv.extend(serve.extra_args)
    return tuple(argv)
