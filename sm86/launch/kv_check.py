"""Do the pinned KV blocks still suffice for what this run asks? Pure; the model itself is `sm86.plan.kv`."""

from __future__ import annotations

from collections.abc import Sequence

from sm86.errors import CouldNotRun
from sm86.launch.arguments import Facts
from sm86.plan import kv


def scheduled_tokens(facts: Facts) -> int | None:
    """m of the KV model; None where the batch size is left to vLLM, which then depends on the device."""
    if facts.max_num_batched_tokens is None:
        return None
    # absent, vLLM turns asynchronous scheduling on
    return kv.scheduled_tokens(facts.max_num_batched_tokens, facts.async_scheduling is not False)


def needed(facts: Facts) -> int | None:
    """Blocks that this run needs at least; None where an argument that decides it is absent."""
    m = scheduled_tokens(facts)
    if m is None or facts.max_model_len is None or facts.max_num_seqs is None:
        return None
    if facts.block_size not in (None, kv.BLOCK_TOKENS):
        return None
    return kv.needed_blocks(facts.max_model_len, facts.max_num_seqs, m, facts.draft_tokens)


def require_blocks(facts: Facts, changed_by: Sequence[str]) -> None:
    """Raise CouldNotRun when fewer blocks are pinned than needed, with the count; `changed_by` names the overrides."""
    blocks, least = facts.num_gpu_blocks_override, needed(facts)
    if blocks is None or least is None or blocks >= least:
        return
    m = scheduled_tokens(facts)
    drafts = f" with {facts.draft_tokens} draft tokens" if facts.draft_tokens else ""
    because = f" ({', '.join(changed_by)})" if changed_by else ""
    rounded = -(-least // kv.BLOCK_STEP) * kv.BLOCK_STEP
    raise CouldNotRun(
        f"{blocks} KV blocks are pinned, but {facts.max_num_seqs} x {facts.max_model_len} tokens at m = {m}{drafts} "
        f"need {least}{because}",
        f"set SM86_NUM_GPU_BLOCKS={rounded} if the GPUs have the memory, or ask for less",
    )
