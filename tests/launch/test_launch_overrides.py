"""The words of each override: what is taken, what is refused, and with which mend."""

from __future__ import annotations

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import nccl_lists, overrides
from sm86.launch.translate import _RULES
from sm86.render import variables


def test_every_override_has_a_rule_and_an_example_that_it_takes() -> None:
    assert set(_RULES) == set(overrides.BY_NAME)
    for override in overrides.OVERRIDES:
        assert overrides.read(override.name, override.example, "--set").text == override.example


def test_the_roadmaps_names_are_all_there() -> None:
    roadmap = {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "SPECULATIVE_CONFIG",
        "FUSE_ALLREDUCE_RMS",
        "VLLM_ALLREDUCE_USE_FLASHINFER",
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
        "CUDAGRAPH_DISPATCH_DEBUG",
        "SPEC_CUDAGRAPH_DEBUG",
    }
    assert roadmap <= set(overrides.BY_NAME)


def test_rendered_services_pass_on_what_the_launcher_takes_and_nothing_it_would_refuse() -> None:
    rendered = {variable.name for variable in variables.PER_RUN}
    assert set(overrides.BY_NAME) <= rendered <= set(overrides.PASS_THROUGH_NAMES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NCCL_ALGO", "Tree"),
        ("NCCL_ALGO", "ring,tree"),
        ("NCCL_ALGO", "allreduce:tree;allgather:ring"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_PROTO", "LL,Simple;allreduce:^LL"),
        ("SPECULATIVE_CONFIG", "none"),
        ("SPECULATIVE_CONFIG", '{"method":"mtp","num_speculative_tokens":1}'),
        ("SM86_GPUS", "GPU-8f1c2a34-0000-1111-2222-333344445555, GPU-9f1c"),
        ("SPEC_CUDAGRAPH_DEBUG", "0"),
        ("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "mnnvl"),
    ],
)
def test_taken(name: str, text: str) -> None:
    assert overrides.read(name, text, "--set").source == "--set"


INTEGERS = ("SM86_MAX_NUM_BATCHED_TOKENS", "SM86_NUM_GPU_BLOCKS", "SPEC_CUDAGRAPH_DEBUG")
FLAGS = (
    "FUSE_ALLREDUCE_RMS",
    "VLLM_ALLREDUCE_USE_FLASHINFER",
    "CUDAGRAPH_DISPATCH_DEBUG",
    "SM86_ASYNC_SCHEDULING",
)


@pytest.mark.parametrize("name", INTEGERS + FLAGS)
@pytest.mark.parametrize("text", ["two", "2.0", "", "  ", "-1", "+1", "1_0", "0x10", "1 ", "٣", "1e2", "99999999999"])
def test_malformed_numbers_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(CouldNotRun) as refusal:
        overrides.read(name, text, "--set")
    assert name in refusal.value.what
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("NCCL_ALGO", "Tre", "did you mean tree?"),
        ("NCCL_ALGO", "tree;ring", "names no collective"),
        ("NCCL_ALGO", "alreduce:tree", "did you mean allreduce?"),
        ("NCCL_ALGO", "", "blank"),
        ("NCCL_ALGO", "Ring\r", "no name that NCCL"),
        ("NCCL_PROTO", "LL129", "did you mean ll128?"),
        ("SPECULATIVE_CONFIG", "None", "neither the word none nor JSON"),
        ("SPECULATIVE_CONFIG", "[1]", "no object"),
        ("SPECULATIVE_CONFIG", '{"method":"mtp"}', "num_speculative_tokens"),
        ("SPECULATIVE_CONFIG", '{"method":"mtp","num_speculative_tokens":true}', "num_speculative_tokens"),
        ("SPECULATIVE_CONFIG", '{"num_speculative_tokens":2}', "method is missing"),
        ("SM86_GPUS", "0,1", "no GPU UUID"),
        ("SM86_GPUS", "GPU-aaaa,GPU-aaaa", "twice"),
        ("SM86_GPUS", "GPU-aaaa,", "no GPU UUID"),
        ("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "TRTLLM", "none of auto, trtllm, mnnvl"),
        ("SM86_NUM_GPU_BLOCKS", "0", "not from 1 to"),
    ],
)
def test_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(CouldNotRun) as refusal:
        overrides.read(name, text, "environment")
    assert words in refusal.value.what
    assert "\r" not in refusal.value.what


def test_an_unknown_override_is_refused_with_the_nearest() -> None:
    with pytest.raises(CouldNotRun) as refusal:
        overrides.read("SM86_NUM_GPU_BLOCK", "1", "--set")
    assert refusal.value.mend == "did you mean SM86_NUM_GPU_BLOCKS?"
    with pytest.raises(CouldNotRun, match="FOO") as refusal:
        overrides.read("FOO", "1", "--set")
    assert "NCCL_ALGO" in refusal.value.mend


def test_a_shared_prefix_alone_makes_no_name_near() -> None:
    assert overrides.nearest("VLLM_FOO", {"VLLM_PORT": 1, "VLLM_HOST_IP": 1}, "they are").startswith("they are")


def test_set_wins_over_the_environment_and_empty_counts_as_absent() -> None:
    environment = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "", "PATH": "/bin", "SM86_ASYNC_SCHEDULING": "1"}
    given = overrides.collect(environment, [("NCCL_ALGO", "Tree")])
    assert {name: (item.text, item.source) for name, item in given.items()} == {
        "NCCL_ALGO": ("Tree", "--set"),
        "SM86_ASYNC_SCHEDULING": ("1", "environment"),
    }


def test_a_blank_from_the_environment_is_a_mistake() -> None:
    with pytest.raises(CouldNotRun, match="blank"):
        overrides.collect({"SM86_NUM_GPU_BLOCKS": "  "}, [])


@pytest.mark.parametrize("text", ["NCCL_ALGO", "=Ring", ""])
def test_a_setting_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(CouldNotRun, match="NAME=VALUE"):
        overrides.parse_setting(text)


def test_a_value_may_hold_equals_signs() -> None:
    assert overrides.parse_setting("SPECULATIVE_CONFIG=a=b") == ("SPECULATIVE_CONFIG", "a=b")


@pytest.mark.parametrize(
    ("text", "collective", "left"),
    [
        ("tree", "AllGather", ("Tree",)),
        ("^ring", "AllReduce", ("Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")),
        ("ring;allreduce:tree", "AllReduce", ("Tree",)),
        ("ring;allreduce:tree", "Broadcast", ("Ring",)),
        ("allreduce:tree", "Reduce", nccl_lists.ALGORITHMS),
    ],
)
def test_what_an_nccl_list_leaves_for_a_collective(text: str, collective: str, left: tuple[str, ...]) -> None:
    choices = nccl_lists.parse(text, nccl_lists.ALGORITHMS)
    assert nccl_lists.allowed_for(collective, choices, nccl_lists.ALGORITHMS) == left
