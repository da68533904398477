"""The settings, their names for `.env`, and the order in which they are measured."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from sm86.comm import matrix
from sm86.comm.matrix import BASELINE, chosen, settings
from sm86.comm.plan import Plan, plan_of
from sm86.comm.step import CALLS_PER_STEP, PREFILL_BYTES, calls_for, size_words
from sm86.errors import CouldNotRun
from sm86.launch import overrides


def plan(repeats: int = 3) -> Plan:
    return Plan(8, "cuda", (8192, 32768), 87, settings(), repeats)


def test_every_algorithm_with_every_protocol_is_there_once() -> None:
    pairs = Counter((s.algo, s.proto) for s in settings() if s.algo)
    assert pairs == Counter({(a, p): 1 for a in ("Ring", "Tree") for p in ("Simple", "LL", "LL128")})
    assert settings()[0].name == BASELINE
    assert len({s.name for s in settings()}) == len(settings())


@pytest.mark.parametrize("setting", settings(), ids=lambda s: s.name)
def test_what_is_recommended_is_taken_by_env_and_override(setting) -> None:
    for name, value in setting.overrides:
        overrides.read(name, value, "--override")


@pytest.mark.parametrize("setting", [s for s in settings() if s.path == matrix.NCCL], ids=lambda s: s.name)
def test_the_ranks_get_what_the_server_would_get(setting) -> None:
    assert setting.environment == setting.overrides


def test_each_repeat_measures_every_setting_and_starts_elsewhere() -> None:
    order = list(plan().order())
    assert len(order) == plan().runs == 3 * len(settings())
    for repeat in range(3):
        names = [s.name for r, s in order if r == repeat]
        assert sorted(names) == sorted(s.name for s in settings())
    firsts = [next(s.name for r, s in order if r == repeat) for repeat in range(3)]
    assert len(set(firsts)) == 3
    assert [repeat for repeat, _ in order] == sorted(repeat for repeat, _ in order), "a repeat is finished first"


def test_a_plan_survives_its_json() -> None:
    assert plan_of(json.loads(json.dumps(plan().to_json()))) == plan()


@pytest.mark.parametrize("broken", [{}, {"settings": 3}, {"settings": [{}]}, {**plan().to_json(), "unknown": 1}])
def test_a_plan_that_is_not_understood_is_refused(broken) -> None:
    with pytest.raises(CouldNotRun, match="does not understand"):
        plan_of(broken)


def test_patterns_keep_the_baseline() -> None:
    assert [s.name for s in chosen(settings(), ["nccl-tree-*"])] == [
        BASELINE,
        "nccl-tree-simple",
        "nccl-tree-ll",
        "nccl-tree-ll128",
    ]
    with pytest.raises(CouldNotRun, match="no setting fits"):
        chosen(settings(), ["nccl-trea-*"])


def test_a_graph_holds_a_step_where_its_buffers_fit() -> None:
    assert calls_for(8192) == CALLS_PER_STEP == 87
    assert calls_for(PREFILL_BYTES) == 8
    assert calls_for(16 * 1024 * 1024) == 4
    assert calls_for(8192, 2) == 2
    assert [size_words(s) for s in (2048, 131072, PREFILL_BYTES, 48)] == ["2 KiB", "128 KiB", "4 MiB", "48 B"]
