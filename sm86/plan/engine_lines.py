"""The lines vLLM 0.26.0 prints about its KV cache, predicted from settings alone. Pure.

Source: vLLM 0.26.0 `v1/core/kv_cache_utils.py` get_kv_cache_configs, get_kv_cache_capacity,
_check_enough_kv_cache_memory, _estimate_max_model_len_from_groups; `config/vllm.py` max_in_flight_tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm86.plan.groups import Pool
from sm86.plan.units import gib_as_printed


@dataclass(frozen=True, slots=True)
class KvLines:
    """What one boot prints.

    blocks: of the pool in force; minimum: fewest with which it starts; passes: whether it starts; override: the
    line's text, None without an override or without the bytes it replaces; size, concurrency: the two lines of a boot
    that starts; refusal: the error's beginning for one that does not; longest: "the estimated maximum model length"
    of that error (of the pool in general where it starts).
    """

    blocks: int
    minimum: int
    passes: bool
    override: str | None
    size: str | None
    concurrency: str | None
    refusal: str | None
    longest: int
    tokens: int
    times: float


def longest_context(pool: Pool, blocks: int, m: int, at_most: int) -> int:
    """The estimate that vLLM's error names: the longest context its check would let pass, at most `at_most` tokens;
    0 when not even one token passes."""
    memory = blocks * pool.bytes_per_block
    if pool.charged(1, m) > memory:
        return 0
    left, right, best = 1, at_most, 1
    while left <= right:
        middle = (left + right) // 2
        if pool.charged(middle, m) <= memory:
            best, left = middle, middle + 1
        else:
            right = middle - 1
    return best


def predict(pool: Pool, context: int, m: int, override: int | None, pool_bytes: int | None) -> KvLines:
    """The lines for a context of `context` tokens with `m` in flight.

    override: num_gpu_blocks_override; pool_bytes: memory that vLLM measures as available for the cache, which alone
    decides where there is no override. Raises ValueError when both are None.
    """
    profiled = None if pool_bytes is None else pool_bytes // pool.bytes_per_block
    if override is not None:
        blocks, memory = override, override * pool.bytes_per_block
    elif profiled is not None and pool_bytes is not None:
        blocks, memory = profiled, pool_bytes
    else:
        raise ValueError("neither an override nor a size of the pool")
    needed = pool.charged(context, m)
    passes = needed <= memory
    times = blocks / pool.blocks_per_request(context, m)
    tokens = int(times * context)
    longest = longest_context(pool, blocks, m, context)
    refusal = None
    if not passes:
        estimate = (
            f" Based on the available memory, the estimated maximum model length is {longest}." if longest else ""
        )
        refusal = (
            f"To serve at least one request with the model's max seq len ({context}), ({gib_as_printed(needed)} GiB KV "
            f"cache is needed, which is larger than the available KV cache memory ({gib_as_printed(memory)} GiB)."
            + estimate
        )
    replaced = None
    if override is not None and profiled is not None:
        replaced = f"Overriding num_gpu_blocks={profiled} with num_gpu_blocks_override={override}"
    return KvLines(
        blocks=blocks,
        minimum=pool.minimum_blocks(context, m),
        passes=passes,
        override=replaced,
        size=f"GPU KV cache size: {tokens:,} tokens" if passes else None,
        concurrency=f"Maximum concurrency for {context:,} tokens per request: {times:.2f}x" if passes else None,
        refusal=refusal,
        longest=longest,
        tokens=tokens,
        times=times,
    )
