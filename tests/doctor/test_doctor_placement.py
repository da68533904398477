"""Placement: which GPUs, in which order, and the split, with a reason; nothing promised where nothing can be gained."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from sm86.doctor.facts import Gpu, PeerCopy, Probe, Rig, Topology
from sm86.doctor.groups import SYSTEM, level
from sm86.doctor.placement import FOR_SOCKET, FOR_SWITCH, NOTHING, OPEN, place
from sm86.doctor.topo_text import from_topo_text
from tests.doctor.rigs import GOOD, REAL, claimed, first, gpus, with_links

QUADS = ((0, 1, 2, 3), (4, 5, 6, 7))


def made(sockets: list[int], **facts) -> Rig:  # type: ignore[no-untyped-def]
    """A rig whose GPU i stands at socket sockets[i], each at its own bridge."""
    square = tuple(
        tuple("X" if one == other else "NODE" if here == there else "SYS" for other, there in enumerate(sockets))
        for one, here in enumerate(sockets)
    )
    return Rig(
        gpus=tuple(Gpu(at, uuid=f"GPU-{at:04d}", numa=socket, **facts) for at, socket in enumerate(sockets)),
        topology=Topology(links=square),
    )


def test_two_sockets_of_four_are_split_between_them() -> None:
    found = place(with_links("p04"), 8)
    assert found is not None
    assert (found.tensor_parallel, found.pipeline_parallel, found.groups) == (4, 2, QUADS)
    assert found.gain == FOR_SOCKET
    assert "crosses the link between the sockets" in found.reason
    assert "published number" in found.notes[0] and "--pipeline-parallel-size 2" in found.notes[0]


def test_gpus_that_alternate_between_sockets_are_put_in_order() -> None:
    rig = made([0, 1, 0, 1, 0, 1, 0, 1])
    found = place(rig, 8)
    assert found is not None
    assert found.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert found.order == (0, 2, 4, 6, 1, 3, 5, 7)
    uuids = ",".join(f"GPU-{at:04d}" for at in found.order)
    assert found.setting == f"SM86_GPUS={uuids}"
    assert all("nothing needs to be set" not in note and "UUIDs" not in note for note in found.notes)
    nameless = place(replace(rig, gpus=tuple(replace(gpu, uuid=None) for gpu in rig.gpus or ())), 8)
    assert nameless is not None and nameless.setting is None and "UUIDs are not known" in nameless.notes[-1]


def test_six_and_two_cannot_be_helped_and_it_is_said() -> None:
    found = place(with_links("p06"), 8)
    assert found is not None
    assert (found.tensor_parallel, found.pipeline_parallel, found.gain) == (8, 1, NOTHING)
    assert "6 + 2" in found.reason and "Nothing is gained by the order" in found.reason


def test_one_host_bridge_has_nothing_to_gain() -> None:
    found = place(GOOD, 8)
    assert found is not None
    assert (found.tensor_parallel, found.gain) == (8, NOTHING)
    assert "Nothing can be gained" in found.reason
    assert "nothing needs to be set" in found.notes[-1]
    assert found.setting is not None and found.setting.count("GPU-") == 8


@pytest.mark.parametrize(
    ("word", "gain", "split", "words"),
    [
        ("OK", FOR_SWITCH, 4, "for each switch"),
        ("CNS", NOTHING, 8, "meet in host memory like all others"),
        (None, FOR_SWITCH, 4, "for each switch"),
    ],
)
def test_switches_count_only_with_peer_access(word: str | None, gain: str, split: int, words: str) -> None:
    rig = with_links("p03", replace(GOOD, probe=None))
    rig = claimed(rig, word) if word else replace(rig, topology=replace(rig.topology, peers=None))
    found = place(rig, 8)
    assert found is not None
    assert (found.gain, found.tensor_parallel) == (gain, split)
    assert words in found.reason
    assert any("hinges on peer access" in note for note in found.notes) == (word is None)


def test_what_was_tried_goes_before_what_is_claimed() -> None:
    rig = claimed(with_links("p03"))
    wrong = Probe(copies=(PeerCopy(0, 1, True, "wrong", "peer", wrong=9),))
    found = place(replace(rig, probe=wrong), 8)
    assert found is not None and found.gain == NOTHING


def test_nvlink_islands_are_kept_together() -> None:
    found = place(from_topo_text(REAL["p09"]), 8)
    assert found is not None
    assert (found.groups, found.gain) == (QUADS, FOR_SWITCH)
    assert "NVLink island" in found.reason


def test_switches_within_a_socket_are_named_where_a_group_is_larger() -> None:
    found = place(with_links("p01"), 8)
    assert found is not None and found.gain == FOR_SOCKET
    assert any("the switches hold 2, 2, 2, 2" in note for note in found.notes)


@pytest.mark.parametrize("sockets", [[0] * 2 + [1] * 8, [0, 1, 1, 0, 1, 1, 1, 1, 1, 1], [0] * 9 + [1]])
def test_of_ten_gpus_eight_of_one_socket_are_taken(sockets: list[int]) -> None:
    rig = made(sockets)
    found = place(rig, 8)
    assert found is not None
    assert not any(level(rig, *pair) == SYSTEM for pair in combinations(found.order, 2))
    assert {reason for _, reason in found.left_out} == {"not needed"}
    assert len(found.left_out) == 2
    assert found.setting is not None and found.setting.count("GPU-") == 8


def test_of_five_and_five_four_each_are_taken_and_split() -> None:
    found = place(made([0] * 5 + [1] * 5), 8)
    assert found is not None
    assert [len(group) for group in found.groups] == [4, 4]
    assert found.gain == FOR_SOCKET


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problem": "GPU is lost"}, "GPU is lost"),
        ({"capability": (7, 5)}, "compute capability 7.5"),
        ({"memory_total": 8 << 30}, "less memory than the others"),
    ],
)
def test_gpus_that_cannot_serve_are_left_out(change: dict, reason: str) -> None:
    rig = made([0] * 9, capability=(8, 6), memory_total=24 << 30)
    found = place(gpus(lambda gpu: change, [2], rig), 8)
    assert found is not None
    assert found.left_out == ((2, reason),)
    assert found.order == (0, 1, 3, 4, 5, 6, 7, 8)


def test_too_few_gpus_have_no_placement() -> None:
    assert place(first(7), 8) is None
    assert place(Rig(), 8) is None
    assert place(Rig(gpus=()), 8) is None


def test_links_that_are_not_known_promise_nothing() -> None:
    found = place(replace(GOOD, topology=Topology()), 8)
    assert found is not None
    assert (found.gain, found.tensor_parallel) == (OPEN, 8)
    assert "not all known" in found.reason


def test_without_uuids_there_is_no_setting() -> None:
    found = place(from_topo_text(REAL["p04"]), 8)
    assert found is not None and found.setting is None and found.uuids is None


@pytest.mark.parametrize(("count", "ranks"), [(1, 1), (2, 2), (4, 4), (6, 6), (16, 8), (16, 16), (40, 8)])
def test_other_counts(count: int, ranks: int) -> None:
    found = place(made([at * 2 // count for at in range(count)]), ranks)
    assert found is not None
    assert sorted(found.order) == sorted(set(found.order)) and len(found.order) == ranks
    assert found.tensor_parallel * found.pipeline_parallel == ranks
