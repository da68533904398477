"""Everything on a GPU beside the weights and the KV pool: arithmetic where it is arithmetic, else an interval. Pure.

Every part carries its source. What was measured was measured on one NVIDIA H200 that was told it is SM86, at tensor
parallel 1, in the boots whose logs are test data here; nothing was measured on an RTX 3090. The published rig's own
two facts (262144 tokens serve, 393216 missed by about 30 MiB) bound the sum: see `tests/plan/test_memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sm86.plan.groups import Pool
from sm86.plan.shape import C4, C128, WINDOW_ONLY, Shape
from sm86.plan.units import GIB, MIB, Bytes, ceil_div, exactly, total
from sm86.plan.weights import SLACK_PER_LAYER, weights

SM86, STOCK = "sm86", "stock"
"""Whose code serves: this product's backend; or vLLM 0.26.0's own path, with RoPE tables of full length, keys gathered
into workspaces, and decode logits as wide as the context: the nearest to the published stack that can be computed."""

WEIGHTS, KV, BUFFERS, ACTIVATIONS, GRAPHS, COLLECTIVES, CUDA, RESERVE = (
    "weights",
    "KV pool",
    "tables and buffers",
    "activations",
    "graphs",
    "collectives",
    "CUDA",
    "allocator",
)
KINDS = (WEIGHTS, KV, BUFFERS, ACTIVATIONS, GRAPHS, COLLECTIVES, CUDA, RESERVE)

ROPE_MARGIN_ROWS = 256
"""Rows beyond the context that the backend keeps of a RoPE table (`sm86/backend/hooks/rope_tables.py`)."""

TOPK_WORKSPACE_BYTES = MIB
"""What vLLM's persistent top-k asks for."""

DEFAULT_MAX_LOGITS_MIB = 512
"""VLLM_SPARSE_INDEXER_MAX_LOGITS_MB: vLLM's bound on one chunk of the indexer's logits."""

CONTEXT_BYTES = Bytes(250 * MIB, 540 * MIB)
KERNEL_BYTES = Bytes(150 * MIB, 390 * MIB)
NCCL_BYTES = Bytes(100 * MIB, 600 * MIB)
GRAPH_BYTES = Bytes(60 * MIB, 400 * MIB)
STOCK_GRAPH_BYTES = Bytes(100 * MIB, 900 * MIB)
GRAPH_BYTES_PER_SIZE = 30 * MIB
FRAGMENTS = Bytes(0, 150 * MIB)

_H200 = "H200, tensor parallel 1"
_ESTIMATE = "an estimate for a 3090"


@dataclass(frozen=True, slots=True)
class Server:
    """What decides the memory of one rank. batched_tokens: max_num_batched_tokens; blocks: of the KV pool;
    capture_sizes: of the graphs, empty for none; max_logits_mib: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB."""

    context: int
    sequences: int
    ranks: int
    batched_tokens: int
    async_scheduling: bool
    blocks: int
    capture_sizes: tuple[int, ...]
    max_logits_mib: int = DEFAULT_MAX_LOGITS_MIB

    @property
    def in_flight(self) -> int:
        """m: tokens scheduled before anything is freed."""
        return self.batched_tokens * (2 if self.async_scheduling else 1)


@dataclass(frozen=True, slots=True)
class Part:
    """One use of a GPU's memory: name, one of KINDS, bytes, and where the number comes from."""

    name: str
    kind: str
    size: Bytes
    source: str


def parts(shape: Shape, pool: Pool, server: Server, multiprocessors: int, stack: str = SM86) -> tuple[Part, ...]:
    """All of one rank's memory, by KINDS. multiprocessors: of one GPU.

    Raises CouldNotRun where the model cannot be divided over the ranks.
    """
    found = [
        Part(name, WEIGHTS, exactly(size), "config.json, vLLM 0.26.0's shapes")
        for name, size in weights(shape, server.ranks, multiprocessors).by_class
    ]
    found.append(
        Part(
            "KV pool",
            KV,
            exactly(server.blocks * pool.bytes_per_block),
            f"{server.blocks} blocks x {pool.bytes_per_block:,} B",
        )
    )
    found += _buffers(shape, pool, server, multiprocessors, stack)
    found += other_parts(shape, server, stack)
    return tuple(found)


def other_parts(shape: Shape, server: Server, stack: str = SM86) -> list[Part]:
    """What is neither weights nor cache nor a buffer: activations, graphs, collectives, CUDA, the allocator."""
    found = [*_activations(shape, server, stack), *_graphs(server, stack)]
    found.append(
        Part(
            "NCCL",
            COLLECTIVES,
            NCCL_BYTES if server.ranks > 1 else exactly(0),
            f"{_ESTIMATE}: not measured; the published rig bounds the sum"
            if server.ranks > 1
            else "one GPU needs none",
        )
    )
    found.append(Part("CUDA context", CUDA, CONTEXT_BYTES, f"{_ESTIMATE}: 0.51 GiB in four boots, {_H200}"))
    found.append(
        Part("kernels, libraries", CUDA, KERNEL_BYTES, f"{_ESTIMATE}: 0.25 and 0.36 GiB of non-torch memory, {_H200}")
    )
    slack = Bytes(SLACK_PER_LAYER.low * shape.layers, SLACK_PER_LAYER.high * shape.layers)
    found.append(
        Part(
            "unsplit blocks",
            RESERVE,
            slack,
            f"at most 1 MiB per layer; 0.6 to 0.7 in boots of 8 and 43 layers, {_H200}",
        )
    )
    found.append(Part("fragments", RESERVE, FRAGMENTS, "150 MiB is what vLLM itself keeps back for it"))
    return found


def loading_peak(shape: Shape, server: Server, multiprocessors: int, stack: str = SM86) -> Bytes:
    """What one rank takes at the fullest moment of loading, when there is no cache yet and nothing has run: arithmetic
    from the sources that no boot has confirmed, and the same estimates for what is around it."""
    loaded = weights(shape, server.ranks, multiprocessors)
    tables = rope_bytes(shape, rope_rows(shape, server.context, stack))
    sure = loaded.total + loaded.loading + tables + load_buffer_bytes(shape, server.batched_tokens)
    around = {part.name: part.size for part in other_parts(shape, server, stack)}
    kernels = Bytes(0, around["kernels, libraries"].high)
    rest = (around["CUDA context"], around["NCCL"], around["unsplit blocks"], around["fragments"], kernels)
    return exactly(sure) + total(rest)


def rope_rows(shape: Shape, context: int, stack: str) -> int:
    """Rows of one RoPE table."""
    return shape.positions if stack == STOCK else min(shape.positions, context + ROPE_MARGIN_ROWS)


def rope_bytes(shape: Shape, rows: int) -> int:
    """The fp32 RoPE tables: one for layers that look back over a window only, one for the compressed ones."""
    tables = (WINDOW_ONLY in shape.ratios) + any(ratio != WINDOW_ONLY for ratio in shape.ratios)
    return tables * rows * shape.rope_dim * 4


def load_buffer_bytes(shape: Shape, batched_tokens: int) -> int:
    """Buffers that vLLM's model makes beside its weights: the indexer's choice, and the draft layer's input, which is
    allocated whether there is a draft or not."""
    return batched_tokens * (shape.index_topk * 4 + shape.hyper * shape.hidden * 2)


def attention_workspace_bytes(multiprocessors: int) -> int:
    """Partial results of the backend's split attention (`sm86/backend/attention/native.py`): two blocks per
    multiprocessor, eight heads of 512 fp32 values and two more each, and two counters."""
    slots = 2 * multiprocessors
    return slots * 8 * (512 + 2) * 4 + 2 * slots * 4


def gather_bytes(shape: Shape, server: Server) -> int:
    """vLLM's own shared workspace: the larger of all indexer keys of 40 contexts and the prefill's keys in bf16."""
    compressed = ceil_div(server.context, C4)
    indexer = 40 * server.context // C4 * (shape.index_dim + 4)
    prefill = 4 * (compressed + shape.window + server.batched_tokens) * shape.head_dim * 2
    return max(indexer, prefill) + TOPK_WORKSPACE_BYTES


def metadata_bytes(shape: Shape, pool: Pool, server: Server) -> int:
    """Block tables of every group, index buffers of the 128-fold layers and of the window."""
    tables = sum(ceil_div(server.context, group.tokens) for group in pool.groups) * server.sequences * 4
    width = ceil_div(ceil_div(server.context, C128), 128) * 128 if shape.count(C128) else 0
    rows = server.batched_tokens * (2 * width + 2 * shape.window + 16) * 4
    return tables + rows


def logits_bytes(server: Server, stack: str) -> int:
    """Scores of one chunk of a prefill over all compressed keys, as far as vLLM's bound lets them grow. vLLM's own
    path takes the whole bound while it profiles."""
    bound = server.max_logits_mib * MIB
    rows = server.batched_tokens * ceil_div(server.context, C4) * 4
    return bound if stack == STOCK else min(bound, rows)


def _buffers(shape: Shape, pool: Pool, server: Server, multiprocessors: int, stack: str) -> list[Part]:
    rows = rope_rows(shape, server.context, stack)
    found = [
        Part("RoPE tables", BUFFERS, exactly(rope_bytes(shape, rows)), f"fp32, {rows:,} rows each"),
        Part(
            "model's buffers",
            BUFFERS,
            exactly(load_buffer_bytes(shape, server.batched_tokens)),
            "top-k indices, draft input",
        ),
        Part(
            "block and index tables",
            BUFFERS,
            exactly(metadata_bytes(shape, pool, server)),
            "vLLM 0.26.0's metadata builders",
        ),
    ]
    if stack == STOCK:
        found.append(
            Part(
                "key gather workspace",
                BUFFERS,
                exactly(gather_bytes(shape, server)),
                "vLLM 0.26.0, the larger of its two uses",
            )
        )
    else:
        size = attention_workspace_bytes(multiprocessors) + TOPK_WORKSPACE_BYTES
        found.append(Part("attention, top-k space", BUFFERS, exactly(size), f"{multiprocessors} multiprocessors"))
    return found


def _activations(shape: Shape, server: Server, stack: str) -> list[Part]:
    linear = int((150 + 0.33 * server.batched_tokens) * MIB)
    sampler = 5 * server.sequences * shape.vocabulary * 4
    # the divided widths shrink with the ranks, the streams of the hidden state do not
    least = linear // (4 if server.ranks > 1 else 2)
    return [
        Part(
            "indexer's logits",
            ACTIVATIONS,
            exactly(logits_bytes(server, stack)),
            f"fp32, at most {server.max_logits_mib} MiB",
        ),
        Part(
            "forward pass, sampler",
            ACTIVATIONS,
            Bytes(least, linear + sampler),
            f"{_ESTIMATE}: 0.20 GiB at 256 and 0.27 GiB at 512 batched tokens, {_H200}",
        ),
    ]


def _graphs(server: Server, stack: str) -> list[Part]:
    if not server.capture_sizes:
        return [Part("CUDA graphs", GRAPHS, exactly(0), "none are captured")]
    base = GRAPH_BYTES if stack == SM86 else STOCK_GRAPH_BYTES
    more = GRAPH_BYTES_PER_SIZE * max(0, len(server.capture_sizes) - 3)
    scores = max(server.capture_sizes) * ceil_div(server.context, C4) * 4
    measured = "0.11 GiB (8 layers, 3 sizes), 0.12 GiB (43 layers, 393216 tokens)"
    if stack == STOCK:
        measured = "0.67 GiB (43 layers, 393216 tokens, logits at full width)"
    return [
        Part(
            "CUDA graphs",
            GRAPHS,
            Bytes(base.low + scores, base.high + more + scores),
            f"{_ESTIMATE}: {measured}, {_H200}",
        )
    ]


def start_check(whole: int, used: int, utilization: float, ranks: int) -> Bytes:
    """What is left of the room that vLLM's check at start leaves: it wants utilization x whole free after the context
    and NCCL are there. Below 0: it refuses. whole, used (by others): bytes of one GPU."""
    free = Bytes(whole - used, whole - used) + -(CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else exactly(0)))
    return free + exactly(-ceil(whole * utilization))


def share(number: int, of: int) -> float:
    """A part in percent."""
    return 100 * number / of if of else 0.0


def mib(number: int) -> str:
    """Bytes as whole MiB, with thousands separated."""
    return f"{round(number / MIB):,}"


def gib(number: int) -> str:
    """Bytes as GiB to two decimals."""
    return f"{number / GIB:.2f}"
