"""Weights by tensor class: what a W4A16 AutoRound checkpoint stores, and what then lies on each GPU. Pure.

Sources: names and widths as vLLM 0.26.0's `models/deepseek_v4/` builds them (ColumnParallel and RowParallel linears are
divided, ReplicatedLinear and `disable_tp` ones are not); four-bit layout of `quantization/auto_gptq.py` and Marlin's
repacking, which moves bits and keeps their number. Held to the headers that the checkpoint maker writes and to the
"Model loading took" lines of real boots by the tests.

Marlin drops a linear's zero points and order of inputs. The routed experts keep a placeholder for zero points that
nothing reads: vLLM allocates it before loading and never frees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sm86.errors import CouldNotRun
from sm86.plan.shape import C4, C128, GROUP_SIZE, Shape
from sm86.plan.units import MIB, Bytes, ceil_div

EXPERTS = "routed experts (int4)"
PLACEHOLDERS = "experts' unread zero points"
SHARED = "shared experts (int4)"
PROJECTIONS = "attention projections (int4)"
OUTPUT = "output groups wo_a (bf16)"
COMPRESSORS = "KV compressors (bf16)"
INDEXER = "indexer (int4, bf16)"
GATES = "gates and hash tables"
HYPER = "hyper-connections (fp32)"
VOCABULARY = "embedding and head (bf16)"
SMALL = "norms, sinks, Marlin locks"

CLASSES = (
    EXPERTS,
    OUTPUT,
    COMPRESSORS,
    PROJECTIONS,
    VOCABULARY,
    INDEXER,
    HYPER,
    GATES,
    SHARED,
    PLACEHOLDERS,
    SMALL,
)
"""In the order they are shown."""

FOUR_BIT = "int4"
_ITEM = {"bf16": 2, "fp32": 4, "int32": 4, "int64": 8, "fp16": 2}

_ALLOCATION = 512
"""PyTorch's caching allocator rounds every tensor up to a multiple of this."""

_VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before dividing it."""

SLACK_PER_LAYER = Bytes(0, MIB)
"""What the allocator adds per layer on top of its rounding, by not splitting a block whose rest is below 1 MiB.
Measured: 0.6 to 0.7 MiB per layer in boots of 8 and 43 layers (H200, tensor parallel 1); an upper bound is 1 MiB."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One matrix or vector of the checkpoint, `times` of them.

    name: below its layer (or whole); kind: FOUR_BIT or the stored type; rows, columns: the matrix as it multiplies
    (output, input), as stored where it is not quantized; columns 0: a vector; split: "rows" or "columns" are divided
    over the ranks, None: replicated; served: the type on the GPU where it is another; extra: unquantized bytes per rank
    that the engine adds.
    """

    name: str
    kind: str
    rows: int
    columns: int
    belongs: str
    split: str | None = None
    times: int = 1
    served: str = ""

    @property
    def stored_bytes(self) -> int:
        """Bytes of one in the checkpoint."""
        return sum(_bytes_of(kind, shape) for kind, shape in self.parts().values())

    def parts(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """What the checkpoint stores: name -> type, shape. A four-bit linear is three tensors."""
        if self.kind != FOUR_BIT:
            return {self.name: (self.kind, (self.rows, self.columns) if self.columns else (self.rows,))}
        groups = self.columns // GROUP_SIZE
        return {
            f"{self.name}.qweight": ("int32", (self.columns // 8, self.rows)),
            f"{self.name}.qzeros": ("int32", (groups, self.rows // 8)),
            f"{self.name}.scales": ("fp16", (groups, self.rows)),
        }

    def served_bytes(self, ranks: int) -> int:
        """Bytes of one on each of `ranks` GPUs."""
        rows, columns = self._local(ranks)
        if self.kind == FOUR_BIT:
            return rows * columns // 2 + columns // GROUP_SIZE * rows * 2
        return rows * max(columns, 1) * _ITEM[self.served or self.kind]

    def placeholder_bytes(self, ranks: int) -> int:
        """Bytes of the unread zero points of one routed expert's matrix: bf16 [groups, outputs / 8]."""
        rows, columns = self._local(ranks)
        return columns // GROUP_SIZE * (rows // 8) * 2

    def _local(self, ranks: int) -> tuple[int, int]:
        rows = self.rows // ranks if self.split == "rows" else self.rows
        columns = self.columns // ranks if self.split == "columns" else self.columns
        return rows, columns


def _bytes_of(kind: str, shape: tuple[int, ...]) -> int:
    size = _ITEM[kind]
    for number in shape:
        size *= number
    return size


def top_tensors(shape: Shape) -> Iterator[Tensor]:
    """Tensors outside the layers."""
    hidden, wide = shape.hidden, shape.hyper * shape.hidden
    yield Tensor("embed.weight", "bf16", shape.vocabulary, hidden, VOCABULARY, "rows")
    yield Tensor("head.weight", "bf16", shape.vocabulary, hidden, VOCABULARY, "rows")
    yield Tensor("norm.weight", "bf16", hidden, 0, SMALL)
    yield Tensor("hc_head_fn", "fp32", shape.hyper, wide, HYPER)
    yield Tensor("hc_head_base", "fp32", shape.hyper, 0, HYPER)
    yield Tensor("hc_head_scale", "fp32", 1, 0, HYPER)


def layer_tensors(shape: Shape, layer: int) -> Iterator[Tensor]:
    """Tensors of one layer, named below it."""
    hidden, mixes = shape.hidden, shape.hyper * (shape.hyper + 2)
    for part in ("attn", "ffn"):
        yield Tensor(f"{part}_norm.weight", "bf16", hidden, 0, SMALL)
        yield Tensor(f"hc_{part}_fn", "fp32", mixes, shape.hyper * hidden, HYPER)
        yield Tensor(f"hc_{part}_base", "fp32", mixes, 0, HYPER)
        yield Tensor(f"hc_{part}_scale", "fp32", 3, 0, HYPER)
    yield from _attention(shape, shape.ratios[layer])
    yield from _feed_forward(shape, layer)


def _attention(shape: Shape, ratio: int) -> Iterator[Tensor]:
    hidden, inner = shape.hidden, shape.heads * shape.head_dim
    out = shape.output_groups * shape.output_rank
    yield Tensor("attn.wq_a", FOUR_BIT, shape.query_rank, hidden, PROJECTIONS)
    yield Tensor("attn.wkv", FOUR_BIT, shape.head_dim, hidden, PROJECTIONS)
    yield Tensor("attn.wq_b", FOUR_BIT, inner, shape.query_rank, PROJECTIONS, "rows")
    yield Tensor("attn.wo_a.weight", "bf16", out, inner // shape.output_groups, OUTPUT, "rows")
    yield Tensor("attn.wo_b", FOUR_BIT, hidden, out, PROJECTIONS, "columns")
    yield Tensor("attn.q_norm.weight", "bf16", shape.query_rank, 0, SMALL)
    yield Tensor("attn.kv_norm.weight", "bf16", shape.head_dim, 0, SMALL)
    yield Tensor("attn.attn_sink", "fp32", shape.heads, 0, SMALL, "rows")
    if ratio in (C4, C128):
        yield from _compressor(shape, "attn.compressor.", ratio, shape.head_dim, COMPRESSORS)
    if ratio == C4:
        yield from _compressor(shape, "attn.indexer.compressor.", ratio, shape.index_dim, INDEXER)
        yield Tensor("attn.indexer.wq_b", FOUR_BIT, shape.index_heads * shape.index_dim, shape.query_rank, INDEXER)
        yield Tensor("attn.indexer.weights_proj.weight", "bf16", shape.index_heads, hidden, INDEXER)


def _compressor(shape: Shape, at: str, ratio: int, dims: int, belongs: str) -> Iterator[Tensor]:
    width = dims * (2 if ratio == C4 else 1)
    yield Tensor(f"{at}ape", "fp32", ratio, width, belongs)
    yield Tensor(f"{at}wkv.weight", "bf16", width, shape.hidden, belongs)
    yield Tensor(f"{at}wgate.weight", "bf16", width, shape.hidden, belongs)
    yield Tensor(f"{at}norm.weight", "bf16", dims, 0, belongs)


def _feed_forward(shape: Shape, layer: int) -> Iterator[Tensor]:
    hidden, width = shape.hidden, shape.expert_width
    yield Tensor("ffn.gate.weight", "bf16", shape.experts, hidden, GATES)
    if layer < shape.hash_layers:
        yield Tensor("ffn.gate.tid2eid", "int64", shape.vocabulary, shape.experts_per_token, GATES, served="int32")
    else:
        yield Tensor("ffn.gate.bias", "fp32", shape.experts, 0, GATES)
    for name in ("w1", "w3"):
        yield Tensor(f"ffn.experts.*.{name}", FOUR_BIT, width, hidden, EXPERTS, "rows", shape.experts)
    yield Tensor("ffn.experts.*.w2", FOUR_BIT, hidden, width, EXPERTS, "columns", shape.experts)
    shared = width * shape.shared_experts
    for name in ("w1", "w3"):
        yield Tensor(f"ffn.shared_experts.{name}", FOUR_BIT, shared, hidden, SHARED, "rows")
    yield Tensor("ffn.shared_experts.w2", FOUR_BIT, hidden, shared, SHARED, "columns")


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes per GPU by class, in CLASSES' order, and of them what every rank holds whole. loading: what loading takes
    for a while on top: the order of inputs of all layers, which is dropped only when a layer is repacked, and a second
    copy of the experts that are being repacked."""

    by_class: tuple[tuple[str, int], ...]
    replicated: int
    loading: int

    @property
    def total(self) -> int:
        return sum(number for _, number in self.by_class)


def checkpoint_bytes(shape: Shape) -> int:
    """Bytes of the served tensors in the checkpoint's files; a draft layer's, which are not served, are left out."""
    return sum(tensor.stored_bytes * tensor.times for _, tensor in _all(shape))


def draft_bytes(shape: Shape) -> int:
    """About what a draft (MTP) layer adds to the checkpoint: one more layer that looks back over a window only, and its
    two projections into it in bf16."""
    layer = (t for t in layer_tensors(shape, shape.layers - 1) if t.belongs not in (COMPRESSORS, INDEXER))
    own = sum(tensor.stored_bytes * tensor.times for tensor in layer)
    return shape.draft_layers * (own + 2 * shape.hidden * shape.hidden * 2)


def _all(shape: Shape) -> Iterator[tuple[int, Tensor]]:
    for tensor in top_tensors(shape):
        yield -1, tensor
    for layer in range(shape.layers):
        for tensor in layer_tensors(shape, layer):
            yield layer, tensor


def require_ranks(shape: Shape, ranks: int) -> None:
    """Raise CouldNotRun where vLLM cannot divide this model over `ranks` GPUs without padding."""
    possible = [number for number in range(1, 129) if divides(shape, number)]
    if ranks not in possible:
        raise CouldNotRun(
            f"tensor parallel {ranks} cannot divide {shape.heads} heads in {shape.output_groups} output groups and "
            f"experts {shape.expert_width} wide",
            f"use tensor parallel {', '.join(str(number) for number in possible)}",
        )


def divides(shape: Shape, ranks: int) -> bool:
    """Whether every divided width stays whole, and experts a multiple of the quantization group."""
    divided = (shape.heads, shape.output_groups, padded_vocabulary(shape), shape.experts)
    return all(width % ranks == 0 for width in divided) and shape.expert_width % (ranks * GROUP_SIZE) == 0


def padded_vocabulary(shape: Shape) -> int:
    """Rows of the embedding once vLLM has padded them."""
    return ceil_div(shape.vocabulary, _VOCABULARY_PADDING) * _VOCABULARY_PADDING


@cache
def weights(shape: Shape, ranks: int, multiprocessors: int) -> Weights:
    """Bytes of the weights on each GPU once they are loaded and repacked.

    multiprocessors: of one GPU; Marlin keeps a lock for each. Raises CouldNotRun for an impossible division.
    """
    require_ranks(shape, ranks)
    found = dict.fromkeys(CLASSES, 0)
    replicated = 0
    kinds: dict[tuple[int, bool], int] = {}
    for layer in range(shape.layers):
        kind = (shape.ratios[layer], layer < shape.hash_layers)
        kinds[kind] = kinds.get(kind, 0) + 1
    samples = {(shape.ratios[layer], layer < shape.hash_layers): layer for layer in range(shape.layers)}
    everything = [(tensor, 1) for tensor in top_tensors(shape)]
    for kind, count in kinds.items():
        everything += [(tensor, count) for tensor in layer_tensors(shape, samples[kind])]
    locks = 0
    for tensor, count in everything:
        if tensor.belongs == VOCABULARY:
            size = padded_vocabulary(shape) // ranks * tensor.columns * 2
        else:
            size = _rounded(tensor.served_bytes(ranks) * tensor.times)
        found[tensor.belongs] += size * count
        if tensor.belongs == EXPERTS:
            found[PLACEHOLDERS] += _rounded(tensor.placeholder_bytes(ranks) * tensor.times) * count
        elif tensor.kind == FOUR_BIT:
            locks += _rounded(multiprocessors * 4) * count
        if tensor.split is None:
            replicated += size * count
    # one lock per multiprocessor for each dense linear, four for the experts of a layer; and the first layer's sum
    # over its four streams, kept beside the matrix
    found[SMALL] += locks + shape.layers * _rounded(multiprocessors * 16)
    found[HYPER] += _rounded(shape.hyper * (shape.hyper + 2) * shape.hidden * 4)
    return Weights(tuple(found.items()), replicated, _loading_bytes(shape, ranks, found[EXPERTS]))


def _loading_bytes(shape: Shape, ranks: int, experts: int) -> int:
    """Before the first layer is repacked every layer of experts holds two int32 orders for each of its two matrices;
    while it is, its four-bit weights and scales are there twice (vLLM 0.26.0, `auto_gptq.py`, `int_wna16.py`)."""
    orders = 2 * 4 * shape.experts * (shape.hidden + shape.expert_width // ranks)
    return shape.layers * orders + experts // shape.layers


def _rounded(number: int) -> int:
    return ceil_div(number, _ALLOCATION) * _ALLOCATION
