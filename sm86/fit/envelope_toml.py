"""A planned server as an envelope's TOML file, as the shipped ones are written. Pure."""

from __future__ import annotations

import json

from sm86.fit.memory_plan import between
from sm86.fit.rig import PlanRig
from sm86.fit.search import Candidate
from sm86.plan.memory import DEFAULT_MAX_LOGITS_MIB, Server, mib

FAMILY = "dsv4-w4a16"


def name_of(rig: PlanRig, server: Server) -> str:
    """The envelope's name: the rig's, the context in binary thousands, the sequences: "4xa6000-1024k"."""
    context = f"{server.context // 1024}k" if server.context % 1024 == 0 else f"{server.context}t"
    sequences = f"-{server.sequences}seq" if server.sequences > 1 else ""
    return f"{rig.slug}-{context}{sequences}"


def to_toml(candidate: Candidate, rig: PlanRig, name: str) -> str:
    """The file's text: the family for everything that the shipped envelopes share, and what is its own."""
    server, plan = candidate.server, candidate.plan
    marked = f" ({rig.mark})" if rig.mark else ""
    many = "one sequence" if server.sequences == 1 else f"{server.sequences} sequences"
    title = f"{server.context} tokens, {many}, planned for {rig.title}{marked}"
    caveat = (
        f"planned, not run: {plan.verdict} by an estimate, {between(plan.room)} MiB left on each GPU; "
        "what is not arithmetic was measured on another kind of GPU"
    )
    lines = plan.lines
    blocks = (
        f"# the KV model needs {max(lines.minimum, plan.needed_blocks)} (engine minimum {lines.minimum}, "
        f"resident {plan.needed_blocks}), next multiple of 32"
    )
    text = [
        f"# Written by `invoke plan --fit`. Memory of a GPU: {between(plan.used)} MiB of {mib(plan.gpu.free)} MiB.",
        f"family = {_text(FAMILY)}",
        "",
        f"name = {_text(name)}",
        f"title = {_text(title)}",
        'status = "experimental"',
        f"caveat = {_text(caveat)}",
        "",
        "[serve]",
        f"served_model_name = {_text(name)}",
        f"context = {server.context}",
        f"sequences = {server.sequences}",
        f"tensor_parallel = {server.ranks}",
        f"num_gpu_blocks_override = {server.blocks}    {blocks}",
        f"max_num_batched_tokens = {server.batched_tokens}",
        f"async_scheduling = {'true' if server.async_scheduling else 'false'}",
        f"gpu_memory_utilization = {candidate.utilization:g}",
        "",
        "[graphs]",
    ]
    if server.capture_sizes:
        text.append(f"capture_sizes = {list(server.capture_sizes)}")
    else:
        text += ['mode = "NONE"', "capture_sizes = []"]
    if server.max_logits_mib != DEFAULT_MAX_LOGITS_MIB:
        text += ["", "[environment]", f'VLLM_SPARSE_INDEXER_MAX_LOGITS_MB = "{server.max_logits_mib}"']
    return "\n".join(text) + "\n"


def _text(value: str) -> str:
    # TOML's basic strings are JSON's, but for the escapes of what is not printable, which no name here holds
    return json.dumps(value, ensure_ascii=False)
