"""A real trace of this package's own backend: every bucket's calls, counted by hand from the architecture.

Recorded by `invoke trace.capture` on 2026-12-01 with vLLM 0.26.0 and torch 2.11.0+cu130: one H200 told to be an SM86, a
random checkpoint of 8 layers (2 SWA, then 3 times CSA and HCA), 4 sequences that decode after prompts of 1,024 tokens.
It proves attribution; its times say nothing about an SM86.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sm86.trace.analysis import FileResult, View, analyse
from sm86.trace.as_json import file_json
from sm86.trace.capture import annotated_steps
from sm86.trace.idle import idle_of
from sm86.trace.kernels import Bucket, short_name

TRACE = Path(__file__).parent / "data" / "sm86_h200_8layers.pt.trace.json.gz"
STEPS, AVERAGED = 20, 19
LAYERS, CSA, HCA, SWA = 8, 3, 3, 2

IN_A_GRAPH = {
    # top-k of the router, then sorting tokens by expert
    Bucket.MOE_ROUTING: 2 * LAYERS,
    # two grouped GEMMs, the activation between them, the sum over a token's experts
    Bucket.MOE_EXPERTS: 4 * LAYERS,
    # of each layer: q_a and kv_a in one, q_b, wo_a, wo_b; the router's gate in two kernels (split K); the shared
    # expert's two GEMMs and activation. Of a compressor: one GEMM of two kernels; CSA has two compressors (its own and
    # the indexer's), and the indexer's q_b (one) and weights (two)
    Bucket.LINEAR: LAYERS * (4 + 2 + 3) + CSA * (2 + 2 + 1 + 2) + HCA * 2,
    # query, scores, top-k, and the top-k as places in the cache
    Bucket.INDEXER: 4 * CSA,
    Bucket.CSA: CSA,
    Bucket.HCA: HCA,
    Bucket.SWA: SWA,
    # a fused pair before each attention and feed-forward part, one to merge at the end, one of the head
    Bucket.MHC: 2 * 2 * LAYERS + 2,
    # states kept, then compressed; the indexer's compressor runs the same two
    Bucket.COMPRESSOR: 2 * (2 * CSA + HCA),
    Bucket.KV_INSERT: LAYERS,
    # of each layer: norm of q and kv, RoPE taken back, a copy before wo_b, the gate to fp32, a fill, the experts'
    # output copied, the shared expert added; of CSA a memset before the top-k; embedding 2, end 2
    Bucket.OTHER: 7 * LAYERS + CSA + 2 + 2,
}
BESIDE_THE_GRAPH = {
    # the output head, split K
    Bucket.LINEAR: 2,
    # metadata: of each page size of compressed keys, of c128 attention, of each window group
    Bucket.COMPRESSOR: 3,
    Bucket.HCA: 1,
    Bucket.SWA: 3,
}


@pytest.fixture(scope="module")
def result() -> FileResult:
    return analyse(TRACE)


def calls(view: View) -> dict[Bucket, float]:
    return {row.bucket: row.calls / view.units for row in view.buckets}


def test_every_graph_is_whole(result: FileResult) -> None:
    counts = result.expected_counts()
    assert (counts["launches"], counts["graphs_with_gpu_events"], counts["nodes_min"], counts["nodes_max"]) == (
        STEPS,
        STEPS,
        sum(IN_A_GRAPH.values()),
        290,
    )
    assert counts["orphan_groups"] == [] and counts["gpu_before_launch"] == 0
    assert (result.dropped, result.repaired, result.truncated) == (0, 0, "")
    assert (counts["device"], counts["rank"], result.world_size) == ("NVIDIA H200", 0, 1)


def test_the_layers_are_those_of_the_checkpoint(result: FileResult) -> None:
    for view in (result.steps, result.graphs):
        assert view is not None and view.layers_agree
        assert view.layers == {"CSA": CSA, "HCA": HCA, "SWA": SWA}
        assert (view.seen, view.units, view.first, view.partial) == (STEPS, AVERAGED, 1, 0)
        kinds = [row.kind for row in view.per_layer if row.layer >= 0]
        assert kinds == ["SWA", "SWA", "CSA", "HCA", "CSA", "HCA", "CSA", "HCA"]


def test_calls_of_every_bucket_inside_a_graph(result: FileResult) -> None:
    assert result.graphs is not None
    assert calls(result.graphs) == IN_A_GRAPH
    assert Bucket.SAMPLING not in IN_A_GRAPH, "tokens are chosen behind the step"


def test_calls_of_every_bucket_of_a_step(result: FileResult) -> None:
    assert result.steps is not None
    found = calls(result.steps)
    beside = {bucket: found[bucket] - IN_A_GRAPH.get(bucket, 0) for bucket in found}
    assert {bucket: count for bucket, count in beside.items() if count and bucket is not Bucket.OTHER} == (
        BESIDE_THE_GRAPH
    )
    # tables, slots and lengths that the host sends before the launch, and copies behind it
    assert beside[Bucket.OTHER] == 58


def test_each_layer_has_its_own_calls(result: FileResult) -> None:
    assert result.graphs is not None
    attention = {"CSA": Bucket.CSA, "HCA": Bucket.HCA, "SWA": Bucket.SWA}
    for row in result.graphs.per_layer:
        if row.layer < 0:
            continue
        per_graph = {bucket: cell[0] // AVERAGED for bucket, cell in row.cells.items()}
        assert per_graph[attention[row.kind]] == 1
        assert per_graph[Bucket.LINEAR] == 9 + {"CSA": 7, "HCA": 2, "SWA": 0}[row.kind]
        assert per_graph.get(Bucket.COMPRESSOR, 0) == {"CSA": 4, "HCA": 2, "SWA": 0}[row.kind]
        assert per_graph.get(Bucket.INDEXER, 0) == (4 if row.kind == "CSA" else 0)


def test_no_kernel_of_a_named_part_hides_in_other(result: FileResult) -> None:
    assert result.graphs is not None
    other = next(row for row in result.graphs.buckets if row.bucket is Bucket.OTHER)
    # ATen's: copies and fills of 16-bit and 32-bit values, additions, the embedding's rows
    own = Counter({short_name(name): count // AVERAGED for name, count, _ in other.names if "at::native" not in name})
    assert own == {
        "_fused_q_kv_rmsnorm_kernel": LAYERS,
        "inverse_rope_kernel": LAYERS,
        "memcpy32_post": LAYERS + 1,
        "memset32": CSA,
        "vllm::rms_norm_kernel": 1,
    }


def test_sampling_stands_outside_the_steps(result: FileResult) -> None:
    sampling = [(name, count) for name, bucket, count, _ in result.outside if bucket is Bucket.SAMPLING]
    assert [count for _, count in sampling] == [STEPS] and "ArgMax" in sampling[0][0]
    assert sum(count for _, _, count, _ in result.outside) == 8 * STEPS


def test_the_steps_are_counted_once_though_each_stream_repeats_their_names(result: FileResult) -> None:
    assert annotated_steps(result.counts.annotations) == STEPS


def test_that_the_host_limits_is_said(result: FileResult) -> None:
    idle = idle_of(result)
    assert idle is not None and idle.host
    assert idle.alone == 67
    assert idle.words().startswith("the GPU idles 69% of a step, 98% of that outside the graphs: the host")
    told = file_json(result)["idle"]
    assert told["host_limits"] is True and told["text"] == idle.words()
