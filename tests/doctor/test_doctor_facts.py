"""Facts come back from JSON as they went, and a file that cannot be facts is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.doctor.as_json import report_to_json
from sm86.doctor.facts import Disk, Gpu, GpuProcess, HostBandwidth, Pcie, PeerCopy, Probe, Rig, Topology
from sm86.doctor.facts_json import from_json, from_text, to_json
from sm86.doctor.judge import judge
from sm86.doctor.redact import redacted
from sm86.doctor.topo_text import from_topo_text
from sm86.doctor.want import Want
from sm86.doctor.words import version_numbers
from sm86.errors import CouldNotRun
from tests.doctor.rigs import FOLDER

RIG = Rig(
    gpus=(
        Gpu(0, uuid="GPU-1", capability=(8, 6), memory_total=24 << 30, processes=(GpuProcess(3, owner="host"),)),
        Gpu(1, pcie=Pcie(generation=1, max_width=16), power=21.5),
    ),
    topology=Topology(links=(("X", "PHB"), ("PHB", "X")), source="NVML"),
    disks=(Disk("weights", "/models", True, "ext4"),),
    probe=Probe(by="CUDA driver API", copies=(PeerCopy(0, 1, True, "right"),), host=(HostBandwidth(20.5, 2, 64, 3),)),
    missed=("the kernel's log: no permission",),
)


def edited(change) -> dict:
    value = json.loads(json.dumps(to_json(RIG)))
    change(value)
    return value


@pytest.mark.parametrize("rig", [RIG, Rig(), Rig(gpus=())], ids=["some facts", "none", "no GPU"])
def test_what_is_written_is_read(rig: Rig) -> None:
    assert from_text(json.dumps(to_json(rig))) == rig


def test_unknown_and_empty_stay_apart() -> None:
    assert from_text(json.dumps(to_json(Rig()))).gpus is None
    assert from_text(json.dumps(to_json(Rig(gpus=())))).gpus == ()


@pytest.mark.parametrize("word", ["N/A", "[N/A]", "[Not Supported]", " not supported ", "[Unknown Error]", "ERR!"])
def test_nvidias_words_for_no_value_are_none(word: str) -> None:
    value = edited(lambda value: value["facts"]["gpus"][0].update(power=word, memory_total=word))
    assert from_json(value).gpus == (replace(RIG.gpus[0], power=None, memory_total=None), RIG.gpus[1])


def test_missing_keys_are_not_known_and_further_ones_are_passed_over() -> None:
    value = {"schema": "sm86.rig", "version": 1, "facts": {"gpus": [{"index": 0, "of_tomorrow": [1]}], "new": {}}}
    assert from_json({**value, "findings": []}) == Rig(gpus=(Gpu(0),))


def test_numbers_of_writers_that_know_floats_only() -> None:
    value = edited(lambda value: value["facts"]["gpus"][0].update(memory_total=float(24 << 30), power=float("nan")))
    assert from_json(value) == RIG


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.update(schema="sm86.verify"), "schema 'sm86.verify'"),
        (lambda value: value.pop("schema"), "without a schema"),
        (lambda value: value.update(version=2), "version 2"),
        (lambda value: value.update(version=True), "version True"),
        (lambda value: value.pop("facts"), "wrong kind"),
        (lambda value: value["facts"].update(gpus="eight"), "wrong kind"),
        (lambda value: value["facts"]["gpus"][0].update(memory_total="24 GiB"), "memory_total"),
        (lambda value: value["facts"]["gpus"][0].update(memory_free=-1), "-1 bytes"),
        (lambda value: value["facts"]["gpus"][0].update(capability=[8, 6, 0]), "capability"),
        (lambda value: value["facts"]["gpus"][1].update(index=0), "numbered 0, 0"),
        (lambda value: value["facts"]["topology"].update(links=[["X"], ["PHB", "X"]]), "no square"),
        (lambda value: value["facts"]["topology"].update(links=[["X"]]), "2 GPUs and a topology of 1"),
        (lambda value: value["facts"].update(gpus=None), "0 GPUs and a topology of 2"),
        (lambda value: value["facts"]["topology"].update(links=[["X", "FAR"], ["PHB", "X"]]), "a link 'FAR'"),
        (lambda value: value["facts"]["gpus"][0].update(uuid="GPU-1\nA=1"), "the UUID"),
    ],
)
def test_what_cannot_be_facts_is_refused(change, words: str) -> None:
    with pytest.raises(CouldNotRun) as told:
        from_json(edited(change), "rig.json")
    assert words in told.value.what
    assert told.value.what.startswith("rig.json")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff\xfe\x00", "[]", "null", '"GPU"', "1"])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(CouldNotRun):
        from_text(text, "rig.json")


def leaves(value, path=()):
    """Every place in a JSON value."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from leaves(child, (*path, key))


WHOLE = json.loads((FOLDER / "rigs/8x3090_bad.json").read_text())
PLACES = [path for path in leaves(WHOLE) if path and path[0] == "facts"]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["N/A", "[Not Supported]", "", [], {}, [[]], [None], "GPU-", "0-", "580.", "\x00", "99999999999"]),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=3))
def test_facts_that_somebody_edited_are_judged_or_refused(changes) -> None:
    value = json.loads(json.dumps(WHOLE))
    for path, odd in changes:
        place = value
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = odd
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change took that place away
    try:
        rig = from_json(value)
    except CouldNotRun as told:
        assert told.mend
        return
    json.dumps(report_to_json(rig, judge(rig, Want())))
    shown = redacted(rig, ("zeppelin",))
    judge(shown, Want())


def test_versions_and_nodes_of_thousands_of_digits_are_none() -> None:
    assert version_numbers("580.126.09") == (580, 126, 9)
    assert version_numbers("580." + "9" * 5000) == version_numbers("580.\u00b2") == ()
    nodes = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\tX\tPIX\t" + "9" * 5000 + "\nGPU1\tPIX\tX\t1\n"
    assert [gpu.numa for gpu in from_topo_text(nodes, "t").gpus or ()] == [None, 1]
