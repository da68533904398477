"""Which rungs a ladder has, in which order, and what each setting of the comm matrix would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.ladder import matrix
from sm86.ladder import rungs as r
from sm86.spec import load_envelope

ONE = Path(__file__).parent / "data" / "cpu-one.toml"


def keys(*words, **more) -> list[str]:
    return [rung.key for rung in r.rungs(*words, **more)]


def test_the_sequence_ladder_is_the_published_curve_in_its_order() -> None:
    assert keys(r.SEQUENCE) == ["sm86-262k", "sm86-176k-2seq", "sm86-114k-3seq", "sm86-80k-4seq"]
    assert [rung.envelope.serve.sequences for rung in r.rungs(r.SEQUENCE)] == [1, 2, 3, 4]


def test_the_context_ladder_goes_from_the_frontier_into_the_experimental() -> None:
    assert keys(r.CONTEXT) == ["sm86-262k", "sm86-393k", "sm86-524k"]


def test_the_comm_matrix_has_every_row_of_the_roadmap_and_says_what_each_does() -> None:
    found = r.rungs(r.COMM)
    assert [rung.key for rung in found] == [
        "sm86-262k",
        "as-it-is",
        "tree-simple",
        "ring-simple",
        "tree-ll128",
        "flashinfer-all-reduce",
        "all-reduce-fused-with-rms-norm",
    ]
    assert found[0].gate and not any(rung.gate for rung in found[1:])
    assert {rung.envelope.name for rung in found[1:]} == {matrix.SERVER}
    by_key = {rung.key: rung for rung in found}
    assert dict(by_key["tree-ll128"].overrides) == {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"}
    for key in ("tree-simple", "ring-simple", "tree-ll128"):
        assert by_key[key].boots and all(one.is_effective and one.why for one in by_key[key].effects)
    for key in ("flashinfer-all-reduce", "all-reduce-fused-with-rms-norm"):
        assert not by_key[key].boots and all(one.state == "inert" and one.why for one in by_key[key].effects)


def test_an_inert_row_is_started_when_asked() -> None:
    assert all(rung.boots for rung in r.rungs(r.COMM, with_inert=True))


def test_flashinfer_is_effective_where_vllm_has_a_table() -> None:
    settings = matrix.COMM_MATRIX[3][1]
    assert all(one.is_effective for one in matrix.effects(load_envelope(matrix.SERVER), settings, (9, 0)))


def test_rounds_interleave_the_settings_and_repeat_no_inert_row() -> None:
    found = keys(r.COMM, rounds=2, gate=False)
    assert found[:4] == ["as-it-is", "tree-simple", "ring-simple", "tree-ll128"]
    assert found[-4:] == ["as-it-is-round-2", "tree-simple-round-2", "ring-simple-round-2", "tree-ll128-round-2"]
    assert len(found) == len(set(found)) == 10


def test_on_the_cpu_every_row_is_inert() -> None:
    found = r.rungs(r.COMM, "cpu-smoke")
    assert [rung.key for rung in found if rung.boots] == ["as-it-is"]
    assert not any(rung.gate for rung in found)


def test_own_envelopes_in_the_order_given() -> None:
    assert keys(r.SEQUENCE, f"{ONE},cpu-smoke") == ["cpu-one", "cpu-smoke"]
    assert keys(r.CONTEXT, "sm86-64k, sm86-262k") == ["sm86-64k", "sm86-262k"]


def test_overrides_reach_every_rung_with_their_effect() -> None:
    for rung in r.rungs(r.SEQUENCE, overrides=(("CUDAGRAPH_DISPATCH_DEBUG", "1"),)):
        assert [one.name for one in rung.effects] == ["CUDAGRAPH_DISPATCH_DEBUG"] and rung.effects[0].is_effective


@pytest.mark.parametrize(
    ("words", "more", "says"),
    [
        (("up",), {}, "no ladder 'up'"),
        ((r.SEQUENCE, ""), {}, "names no envelope"),
        ((r.SEQUENCE, "sm86-262k,,sm86-64k"), {}, "names no envelope"),
        ((r.SEQUENCE, "sm86-262"), {}, "no envelope 'sm86-262'"),
        ((r.SEQUENCE, "nowhere.toml"), {}, "no such file"),
        ((r.SEQUENCE, "sm86-64k,sm86-64k"), {}, "sm86-64k twice"),
        ((r.SEQUENCE, "sm86-64k,cpu-smoke"), {}, "mixes engines"),
        ((r.COMM, "sm86-64k,sm86-262k"), {}, "one server"),
        ((r.COMM,), {"rounds": 0}, "--rounds is 0"),
        ((r.COMM,), {"overrides": (("NCCL_ALGO", "Ring"),)}, "the matrix itself varies"),
        ((r.SEQUENCE,), {"overrides": (("NCCL_ALGO", "NVLS"),)}, "leaves AllReduce no algorithm"),
        ((r.SEQUENCE,), {"overrides": (("NCCL_ALG", "Ring"),)}, "no override 'NCCL_ALG'"),
    ],
)
def test_what_is_no_ladder_is_refused(words, more, says) -> None:
    with pytest.raises(CouldNotRun) as fault:
        r.rungs(*words, **more)
    assert says in fault.value.what and fault.value.mend
