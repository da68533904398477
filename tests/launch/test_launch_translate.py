"""What each override becomes on each engine, and whether it is called effective or inert."""

from __future__ import annotations

import json

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import arguments, kv_check, overrides, translate
from sm86.launch.translate import EFFECTIVE, INERT, Setting
from sm86.spec import load_envelope
from sm86.spec.argv import serve_argv

RIG = serve_argv(load_envelope("sm86-80k-4seq"))
CPU = serve_argv(load_envelope("cpu-smoke"))
CUDA_SETTING = Setting("cuda", (8, 6), plugin=True)
MTP = '{"method":"mtp","num_speculative_tokens":1}'


def apply(argv, setting, *settings, environment=None):  # type: ignore[no-untyped-def]
    given = overrides.collect(environment or {}, [tuple(text.split("=", 1)) for text in settings])
    return translate.apply(argv, environment or {}, given, setting)


def state(argv, setting, *settings):  # type: ignore[no-untyped-def]
    _, _, states, _ = apply(argv, setting, *settings)
    return states[settings[-1].split("=", 1)[0]]


@pytest.mark.parametrize(
    ("settings", "rig", "cpu"),
    [
        (["NCCL_ALGO=Ring"], EFFECTIVE, INERT),
        (["NCCL_PROTO=LL128"], EFFECTIVE, INERT),
        (["NCCL_MAX_NCHANNELS=2"], EFFECTIVE, INERT),
        (["NCCL_NTHREADS=128"], EFFECTIVE, INERT),
        (["NCCL_P2P_DISABLE=1"], EFFECTIVE, INERT),
        (["NCCL_P2P_LEVEL=SYS"], EFFECTIVE, INERT),
        (["NCCL_DEBUG=INFO"], EFFECTIVE, INERT),
        (["SM86_PROFILE_STEPS=50"], EFFECTIVE, EFFECTIVE),
        (["SPECULATIVE_CONFIG=none"], EFFECTIVE, EFFECTIVE),
        ([f"SPECULATIVE_CONFIG={MTP}"], EFFECTIVE, EFFECTIVE),
        (["FUSE_ALLREDUCE_RMS=1"], INERT, INERT),
        (["FUSE_ALLREDUCE_RMS=0"], INERT, INERT),
        (["VLLM_ALLREDUCE_USE_FLASHINFER=1"], INERT, INERT),
        (["VLLM_ALLREDUCE_USE_FLASHINFER=0"], EFFECTIVE, INERT),
        (["VLLM_ALLREDUCE_USE_FLASHINFER=1", "VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm"], INERT, INERT),
        (["CUDAGRAPH_DISPATCH_DEBUG=1"], EFFECTIVE, INERT),
        (["CUDAGRAPH_DISPATCH_DEBUG=0"], EFFECTIVE, INERT),
        (["SPEC_CUDAGRAPH_DEBUG=4"], INERT, INERT),
        ([f"SPECULATIVE_CONFIG={MTP}", "SPEC_CUDAGRAPH_DEBUG=4"], EFFECTIVE, INERT),
        (["SM86_GPUS=all"], EFFECTIVE, INERT),
        (["SM86_MAX_NUM_BATCHED_TOKENS=256"], EFFECTIVE, EFFECTIVE),
        (["SM86_ASYNC_SCHEDULING=1"], EFFECTIVE, INERT),
        (["SM86_NUM_GPU_BLOCKS=2048"], EFFECTIVE, EFFECTIVE),
    ],
)
def test_effective_or_inert(settings: list[str], rig: str, cpu: str) -> None:
    on_rig, on_cpu = state(RIG, CUDA_SETTING, *settings), state(CPU, Setting("cpu"), *settings)
    assert (on_rig.state, on_cpu.state) == (rig, cpu)
    assert on_rig.why and on_cpu.why


@pytest.mark.parametrize(
    "settings", [["CUDAGRAPH_DISPATCH_DEBUG=1"], [f"SPECULATIVE_CONFIG={MTP}", "SPEC_CUDAGRAPH_DEBUG=4"]]
)
def test_the_debug_lines_need_the_plugin(settings: list[str]) -> None:
    without = state(RIG, Setting("cuda", (8, 6), plugin=False), *settings)
    assert without.state == INERT
    assert translate.NO_PLUGIN in without.why


def test_the_profiler_is_made_ready_without_what_makes_traces_large() -> None:
    setting = Setting("cuda", (8, 6), plugin=True, trace_dir="/somewhere")
    argv, environment, _, changes = apply(RIG, setting, "SM86_PROFILE_STEPS=50")
    config = arguments.json_of(argv, "--profiler-config")
    assert (config["profiler"], config["torch_profiler_dir"], config["max_iterations"]) == ("torch", "/somewhere", 50)
    assert config["torch_profiler_with_stack"] is config["torch_profiler_dump_cuda_time_total"] is False
    assert config["delay_iterations"] > 0 and config["ignore_frontend"] is True
    assert [change.argument for change in changes] == ["--profiler-config"]
    assert environment["SM86_PROFILE_STEPS"] == "50"


def test_dispatch_debug_adds_vllms_own_table_once() -> None:
    argv, _, _, changes = apply(RIG, CUDA_SETTING, "CUDAGRAPH_DISPATCH_DEBUG=1")
    assert argv == (*RIG, "--cudagraph-metrics")
    assert changes[0].entry() == {
        "argument": "--cudagraph-metrics",
        "was": "",
        "now": "--cudagraph-metrics",
        "by": "CUDAGRAPH_DISPATCH_DEBUG",
    }
    again, _, _, changes = apply(argv, CUDA_SETTING, "CUDAGRAPH_DISPATCH_DEBUG=1")
    assert again == argv and not changes


OWN = "--disable-custom-all-reduce"
TWO = arguments.with_value(RIG, "--tensor-parallel-size", "2")


def test_without_peer_access_vllms_own_all_reduce_of_two_gpus_is_off_too() -> None:
    """NCCL_P2P_DISABLE speaks to NCCL alone, and vLLM asks the driver."""
    argv, environment, states, changes = apply(TWO, CUDA_SETTING, "NCCL_P2P_DISABLE=1")
    assert argv == (*TWO, OWN) and environment["NCCL_P2P_DISABLE"] == "1"
    assert [change.entry() for change in changes] == [
        {"argument": OWN, "was": "", "now": OWN, "by": "NCCL_P2P_DISABLE"},
    ]
    assert f"{OWN} is added" in states["NCCL_P2P_DISABLE"].why
    again, _, states, changes = apply(argv, CUDA_SETTING, "NCCL_P2P_DISABLE=1")
    assert again == argv and not changes and f"{OWN} was given" in states["NCCL_P2P_DISABLE"].why


@pytest.mark.parametrize("own", ["--no-disable-custom-all-reduce", "--disable-custom-all-reduce=false"])
def test_what_was_asked_of_vllms_own_all_reduce_stays_and_is_told(own: str) -> None:
    argv, _, states, changes = apply((*TWO, own), CUDA_SETTING, "NCCL_P2P_DISABLE=1")
    assert argv == (*TWO, own) and not changes
    assert "--no-disable-custom-all-reduce was given" in states["NCCL_P2P_DISABLE"].why
    assert "peer access all the same" in states["NCCL_P2P_DISABLE"].why


@pytest.mark.parametrize(
    ("argv", "setting", "value"),
    [
        (RIG, CUDA_SETTING, "1"),
        (TWO, CUDA_SETTING, "0"),
        (arguments.with_value(RIG, "--tensor-parallel-size", "1"), CUDA_SETTING, "1"),
        (CPU, Setting("cpu"), "1"),
    ],
    ids=["eight GPUs", "peer access", "one GPU", "CPU"],
)
def test_elsewhere_vllms_own_all_reduce_is_left_to_it(argv, setting, value: str) -> None:
    changed, _, states, changes = apply(argv, setting, f"NCCL_P2P_DISABLE={value}")
    assert changed == tuple(argv) and not changes and "all-reduce of two" not in states["NCCL_P2P_DISABLE"].why


def test_one_gpu_has_no_collective() -> None:
    one = arguments.with_value(RIG, "--tensor-parallel-size", "1")
    for setting in ("NCCL_ALGO=Ring", "FUSE_ALLREDUCE_RMS=1", "VLLM_ALLREDUCE_USE_FLASHINFER=1"):
        assert state(one, CUDA_SETTING, setting) == translate.State(setting.split("=")[1], INERT, translate.ONE_RANK)


def test_flashinfer_is_effective_where_vllm_has_a_table_for_it() -> None:
    forced = Setting("cuda", (9, 0))
    assert state(RIG, forced, "VLLM_ALLREDUCE_USE_FLASHINFER=1").state == EFFECTIVE
    asked = ["VLLM_ALLREDUCE_USE_FLASHINFER=1", "VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm"]
    assert state(RIG, forced, *asked).state == EFFECTIVE
    assert state(RIG, forced, asked[1]).state == INERT


@pytest.mark.parametrize(
    ("given", "set_to"),
    [
        ("Tree", "AllReduce:Tree"),
        ("Ring", "AllReduce:Ring"),
        ("^Tree", "AllReduce:^Tree"),
        ("allreduce:tree;allgather:ring", "AllReduce:Tree;AllGather:Ring"),
        ("Ring,CollNetDirect", "AllReduce:Ring,CollNetDirect"),
    ],
)
def test_a_bare_algorithm_is_meant_for_the_all_reduce(given: str, set_to: str) -> None:
    _, environment, states, _ = apply(RIG, CUDA_SETTING, f"NCCL_ALGO={given}")
    assert environment["NCCL_ALGO"] == set_to
    assert states["NCCL_ALGO"].value == given


@pytest.mark.parametrize("text", ["NVLS", "CollNetDirect,CollNetChain", "allgather:tree", "allreduce:^ring,tree"])
def test_an_algorithm_that_leaves_a_collective_none_is_refused(text: str) -> None:
    with pytest.raises(CouldNotRun, match="no algorithm"):
        apply(RIG, CUDA_SETTING, f"NCCL_ALGO={text}")


def test_a_protocol_list_must_leave_one() -> None:
    with pytest.raises(CouldNotRun, match="no protocol"):
        apply(RIG, CUDA_SETTING, "NCCL_PROTO=^LL,LL128,Simple")


def test_ll128_is_taken_with_a_word_of_warning() -> None:
    assert "not validated" in state(RIG, CUDA_SETTING, "NCCL_PROTO=LL128").why
    assert "not validated" not in state(RIG, CUDA_SETTING, "NCCL_PROTO=^LL128").why


def test_fuse_goes_into_the_pass_config_and_keeps_the_rest() -> None:
    argv, environment, _, changes = apply(RIG, CUDA_SETTING, "FUSE_ALLREDUCE_RMS=1")
    before, after = (arguments.json_of(a, "--compilation-config") for a in (RIG, argv))
    assert after == {**before, "pass_config": {"fuse_allreduce_rms": True}}
    assert [change.override for change in changes] == ["FUSE_ALLREDUCE_RMS"]
    assert environment == {"FUSE_ALLREDUCE_RMS": "1"}
    assert len(argv) == len(RIG)


def test_fuse_leaves_the_cpu_engines_arguments_alone() -> None:
    argv, _, _, changes = apply(CPU, Setting("cpu"), "FUSE_ALLREDUCE_RMS=1", "SM86_ASYNC_SCHEDULING=1")
    assert argv == CPU and not changes


def test_drafting_scales_the_graph_sizes() -> None:
    config = '{"method":"mtp","num_speculative_tokens":2}'
    argv, _, states, changes = apply(RIG, CUDA_SETTING, f"SPECULATIVE_CONFIG={config}")
    facts = arguments.facts_of(argv)
    assert facts.speculative == json.loads(config)
    assert (facts.graphs.sizes, facts.graphs.largest) == ((3, 12), 12)
    assert "probe" in states["SPECULATIVE_CONFIG"].why
    assert {change.argument for change in changes} == {"--speculative-config", "--compilation-config"}


def test_numbers_replace_the_specs_in_place() -> None:
    argv, _, _, _ = apply(
        RIG,
        CUDA_SETTING,
        "SM86_MAX_NUM_BATCHED_TOKENS=256",
        "SM86_ASYNC_SCHEDULING=1",
        "SM86_NUM_GPU_BLOCKS=1700",
    )
    changed = {(a, b) for a, b in zip(RIG, argv, strict=True) if a != b}
    assert changed == {("512", "256"), ("--no-async-scheduling", "--async-scheduling"), ("1632", "1700")}


def test_fewer_tokens_than_sequences_are_refused() -> None:
    with pytest.raises(CouldNotRun, match="each of 4 sequences"):
        apply(RIG, CUDA_SETTING, "SM86_MAX_NUM_BATCHED_TOKENS=3")


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (["SM86_ASYNC_SCHEDULING=1"], 1813),
        (["SM86_MAX_NUM_BATCHED_TOKENS=1024"], 1813),
        (["SM86_NUM_GPU_BLOCKS=1600"], 1605),
    ],
)
def test_an_override_that_the_pinned_blocks_do_not_seat_is_refused_with_the_count(settings, needed) -> None:  # type: ignore[no-untyped-def]
    argv, _, _, changes = apply(RIG, CUDA_SETTING, *settings)
    with pytest.raises(CouldNotRun) as refusal:
        kv_check.require_blocks(arguments.facts_of(argv), [change.override for change in changes])
    assert f"need {needed} " in refusal.value.what
    assert settings[0].split("=")[0] in refusal.value.what
    rounded = -(-needed // 32) * 32
    assert f"SM86_NUM_GPU_BLOCKS={rounded}" in refusal.value.mend


def test_enough_blocks_pass_and_the_roadmaps_own_pair_too() -> None:
    for settings in (
        ["SM86_ASYNC_SCHEDULING=1", "SM86_NUM_GPU_BLOCKS=1824"],
        ["SM86_ASYNC_SCHEDULING=1", "SM86_MAX_NUM_BATCHED_TOKENS=256"],
    ):
        argv, _, _, _ = apply(RIG, CUDA_SETTING, *settings)
        kv_check.require_blocks(arguments.facts_of(argv), [])


def test_drafting_needs_more_blocks() -> None:
    base = arguments.facts_of(RIG)
    argv, _, _, _ = apply(RIG, CUDA_SETTING, 'SPECULATIVE_CONFIG={"method":"mtp","num_speculative_tokens":4}')
    least, before = kv_check.needed(arguments.facts_of(argv)), kv_check.needed(base)
    assert least is not None and before is not None and least > before


@pytest.mark.parametrize("flag", ["--max-num-batched-tokens", "--max-model-len", "--max-num-seqs"])
def test_nothing_is_judged_where_vllm_decides(flag: str) -> None:
    at = RIG.index(flag)
    argv = RIG[:at] + RIG[at + 2 :]
    assert kv_check.needed(arguments.facts_of(argv)) is None
    kv_check.require_blocks(arguments.facts_of(argv), [])


def test_absent_async_scheduling_counts_as_on() -> None:
    argv = tuple(part for part in RIG if part != "--no-async-scheduling")
    assert kv_check.scheduled_tokens(arguments.facts_of(argv)) == 1024
