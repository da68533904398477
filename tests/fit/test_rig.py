"""A rig from a profile and from doctor's facts."""

from __future__ import annotations

import json

import pytest

from sm86.doctor.facts import Gpu, GpuProcess, Rig
from sm86.doctor.facts_json import from_text, to_json
from sm86.errors import CouldNotRun
from sm86.fit.rig import CUDA_RESERVE, of_facts, of_profile
from sm86.plan.units import GIB, MIB
from sm86.spec.load_rig import load_rig, shipped_rigs
from tests.fit.fit_rigs import PROFILES, RIG

TOTAL = 24_576 * MIB


def gpu(index: int, **more) -> Gpu:
    known = {"name": "NVIDIA GeForce RTX 3090", "memory_total": TOTAL, "capability": (8, 6)}
    return Gpu(index, **(known | more))


def facts(*gpus: Gpu, **more) -> Rig:
    return Rig(gpus=gpus, **more)


def test_profiles_ship_and_are_whole():
    assert {"8x3090", "4xa6000", "8x3080-20g", "10x3090", "10xa5000"} <= set(PROFILES)
    for profile in shipped_rigs():
        rig = of_profile(profile)
        assert rig.count == profile.count and rig.tightest(1).free > 0
        assert profile.capability == (8, 6) and profile.source
        assert bool(rig.notes) is profile.usable_estimated


def test_the_validated_rig_has_what_pytorch_prints():
    assert round(RIG.tightest(8).total / GIB, 2) == 23.69


def test_facts_of_the_validated_rig_plan_like_its_profile():
    rig = of_facts(facts(*(gpu(n, memory_free=TOTAL - CUDA_RESERVE) for n in range(8))), shipped_rigs())
    assert [room.total for room in rig.gpus] == [room.total for room in RIG.gpus]
    assert all(room.used == 0 for room in rig.gpus) and rig.multiprocessors == 82 and rig.notes == ()


def test_facts_survive_their_own_json():
    text = json.dumps(to_json(facts(gpu(0, memory_free=20 * GIB), mark="composed")))
    rig = of_facts(from_text(text), shipped_rigs())
    assert rig.mark == "composed" and rig.tightest(1).free == 20 * GIB


def test_memory_that_others_hold_is_taken_off_and_named():
    rig = of_facts(facts(gpu(0, memory_free=22 * GIB), gpu(1, memory_free=TOTAL)), shipped_rigs())
    assert rig.gpus[0].free == 22 * GIB and rig.gpus[1].used == 0
    assert any("GPU 0: others hold 1730 MiB" in note for note in rig.notes)
    assert rig.tightest(2).label == "GPU 0" and rig.tightest(1).label == "GPU 1"


def test_processes_stand_in_where_nobody_says_what_is_free():
    held = (GpuProcess(1, 3 * GIB), GpuProcess(2, None))
    rig = of_facts(facts(gpu(0, processes=held)), shipped_rigs())
    assert rig.gpus[0].used == 3 * GIB


def test_the_same_name_with_another_size_is_another_card():
    ten = gpu(0, name="NVIDIA GeForce RTX 3080", memory_total=10_240 * MIB)
    ecc = gpu(1, name="NVIDIA RTX A6000", memory_total=46_068 * MIB)
    rig = of_facts(facts(ten, ecc), shipped_rigs())
    assert rig.gpus[0].total == 10_240 * MIB - CUDA_RESERVE and rig.gpus[1].total == 46_068 * MIB - CUDA_RESERVE
    assert sum("is an estimate" in note for note in rig.notes) == 2
    assert any("several kinds" in note for note in rig.notes)


def test_a_gpu_whose_memory_is_not_known_is_left_out_with_the_reason():
    rig = of_facts(facts(gpu(0), gpu(1, memory_total=None, problem="lost from the bus")), shipped_rigs())
    assert rig.count == 1 and "GPU 1 is left out: lost from the bus" in rig.notes


@pytest.mark.parametrize(
    ("made", "word"),
    [(Rig(), "does not say"), (Rig(gpus=()), "has no GPU"), (Rig(gpus=(Gpu(0),)), "knows the memory of none")],
)
def test_facts_without_a_gpu_are_refused(made: Rig, word: str):
    with pytest.raises(CouldNotRun, match=word):
        of_facts(made, shipped_rigs(), "facts.json")


def test_too_few_gpus():
    with pytest.raises(CouldNotRun, match="has 8 GPU"):
        RIG.tightest(9)


GOOD = """name = "mine"
title = "mine"
gpu = "NVIDIA GeForce RTX 3090"
count = 2
memory_mib = 24576
usable_mib = 24258
multiprocessors = 82
capability = "8.6"
source = "measured"
"""


def test_a_profile_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + "used_mib = 500\n")
    rig = of_profile(load_rig(path))
    assert rig.count == 2 and rig.tightest(2).used == 500 * MIB


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("count = 2", "count = 0", "count"),
        ("count = 2", 'count = "2"', "count"),
        ("usable_mib = 24258", "usable_mib = 25000", "above memory_mib"),
        ("usable_mib = 24258", "usable_mib = 24258\nused_mib = 24258", "used_mib"),
        ('capability = "8.6"', 'capability = "eight"', "capability"),
        ('capability = "8.6"', "capability = 8.6", "capability"),
        ("count = 2", "", "count"),
        ("count = 2", "count = 2\nnvlink = true", "nvlink"),
        ('name = "mine"', 'name = "mine', "TOML"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(tmp_path, old, new, word):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(CouldNotRun, match=word):
        load_rig(path)


def test_what_the_driver_keeps_is_the_published_rigs():
    """23.69 GiB of 24576 MiB on a 3090, and the same assumed of a GPU that no profile knows."""
    rtx3090 = PROFILES["8x3090"]
    assert rtx3090.memory_mib - rtx3090.usable_mib == CUDA_RESERVE // MIB == 318
    assert round(rtx3090.usable_mib / 1024, 2) == 23.69
    unknown = of_facts(facts(gpu(0, name="Another GPU")), shipped_rigs())
    assert unknown.gpus[0].total == TOTAL - 318 * MIB and "is an estimate" in unknown.notes[0]
