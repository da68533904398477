"""Which layer each kernel of a step belongs to, and of which kind that layer is. Pure.

DeepSeek-V4 puts mHC kernels before every attention and every feed-forward sublayer, so runs of them cut
a step's kernels, in the order of their starts, into sublayers: embedding | attention 0 | MoE 0 |
attention 1 | ... | head. Streams that run beside the main one join it before the next cut, so the cuts
hold for all streams. A sublayer with an attention or KV-insert kernel is attention; with indexer
kernels it is CSA, with a compressor but no indexer HCA, with neither SWA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sm86.trace.kernels import Bucket, Kind

OUTSIDE = -1
CSA, HCA, SWA = "CSA", "HCA", "SWA"
_ATTENTION_OF = {CSA: Bucket.CSA, HCA: Bucket.HCA, SWA: Bucket.SWA}
_KIND_IS_BUCKET = {kind: Bucket(int(kind)) for kind in Kind if kind not in (Kind.ATTENTION, Kind.ACTIVATION)}


@dataclass(frozen=True, slots=True)
class Placement:
    """For each kernel its bucket and its layer (OUTSIDE: before, behind or without layers); each layer's kind.

    sublayers: for each kernel the number of mHC runs up to it.
    """

    buckets: tuple[Bucket, ...]
    layers: tuple[int, ...]
    kinds: tuple[str, ...]
    sublayers: tuple[int, ...] = ()

    def counts(self) -> dict[str, int]:
        """Layers found per kind, e.g. {"CSA": 21, "HCA": 20, "SWA": 2}; empty when none could be told."""
        return dict(sorted(Counter(self.kinds).items()))


def place(kinds: Sequence[Kind], streams: Sequence[int]) -> Placement:
    """Buckets and layers of one step's (or graph's) kernels.

    kinds, streams: one per kernel, in the order of their starts; equal lengths.
    """
    sublayer_of = _sublayers(kinds)
    layer_of_sublayer, layer_kinds = _layers(kinds, sublayer_of)
    layers = tuple(layer_of_sublayer[sublayer] for sublayer in sublayer_of)
    buckets: list[Bucket] = []
    last_gemm: dict[int, Bucket] = {}
    for index, kind in enumerate(kinds):
        if kind is Kind.ATTENTION:
            layer = layers[index]
            bucket = Bucket.ATTENTION if layer == OUTSIDE else _ATTENTION_OF[layer_kinds[layer]]
        elif kind is Kind.ACTIVATION:
            # the same activation kernel serves shared and routed experts: it goes with the GEMM before it
            bucket = last_gemm.get(streams[index], Bucket.MOE_EXPERTS)
        else:
            bucket = _KIND_IS_BUCKET[kind]
            if kind in (Kind.LINEAR, Kind.MOE_EXPERTS):
                last_gemm[streams[index]] = bucket
        buckets.append(bucket)
    return Placement(tuple(buckets), layers, layer_kinds, tuple(sublayer_of))


def _sublayers(kinds: Sequence[Kind]) -> list[int]:
    """Number of the sublayer of each kernel: 0 before the first run of mHC kernels, then one more per run.

    The mHC kernels count to the sublayer that they open.
    """
    current, inside = 0, False
    out: list[int] = []
    for kind in kinds:
        if kind is Kind.MHC:
            if not inside:
                current += 1
            inside = True
        else:
            inside = False
        out.append(current)
    return out


def _attention_flags(kinds: Sequence[Kind], sublayer_of: Sequence[int]) -> list[bool]:
    flags = [False] * ((sublayer_of[-1] if sublayer_of else 0) + 1)
    for kind, sublayer in zip(kinds, sublayer_of, strict=True):
        # what stands before the first mHC kernel is metadata of the whole step, never a layer
        if sublayer and kind in (Kind.ATTENTION, Kind.KV_INSERT):
            flags[sublayer] = True
    return flags


def _layers(kinds: Sequence[Kind], sublayer_of: Sequence[int]) -> tuple[list[int], tuple[str, ...]]:
    attention = _attention_flags(kinds, sublayer_of)
    indexer, compressor, moe = ([False] * len(attention) for _ in range(3))
    for kind, sublayer in zip(kinds, sublayer_of, strict=True):
        if kind is Kind.INDEXER:
            indexer[sublayer] = True
        elif kind is Kind.COMPRESSOR:
            compressor[sublayer] = True
        elif kind in (Kind.MOE_EXPERTS, Kind.MOE_ROUTING):
            moe[sublayer] = True
    layer_of: list[int] = []
    found: list[str] = []
    for sublayer, is_attention in enumerate(attention):
        if is_attention:
            found.append(CSA if indexer[sublayer] else HCA if compressor[sublayer] else SWA)
        belongs = is_attention or (moe[sublayer] and sublayer > 0 and found)
        layer_of.append(len(found) - 1 if belongs else OUTSIDE)
    return layer_of, tuple(found)
