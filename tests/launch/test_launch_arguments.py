"""vLLM's argument list as vLLM reads it."""

from __future__ import annotations

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import arguments, spec_match
from sm86.spec import load_all, load_envelope
from sm86.spec.argv import serve_argv

EIGHTY = load_envelope("sm86-80k-4seq")


@pytest.mark.parametrize("envelope", load_all(), ids=lambda e: e.name)
def test_every_shipped_envelope_is_allowed_and_read_back(envelope) -> None:  # type: ignore[no-untyped-def]
    argv = serve_argv(envelope, "/m", port=8123)
    arguments.require_allowed(argv)
    facts, serve = arguments.facts_of(argv), envelope.serve
    assert (facts.model, facts.host, facts.port) == ("/m", "0.0.0.0", 8123)
    assert facts.tensor_parallel == facts.ranks == serve.tensor_parallel
    assert (facts.max_model_len, facts.max_num_seqs) == (serve.context, serve.sequences)
    assert facts.max_num_batched_tokens == serve.max_num_batched_tokens
    assert facts.async_scheduling is serve.async_scheduling
    assert facts.num_gpu_blocks_override == serve.num_gpu_blocks_override
    assert facts.gpu_memory_utilization == serve.gpu_memory_utilization
    assert facts.graphs.mode == envelope.graphs.mode
    assert (facts.graphs.sizes or ()) == envelope.graphs.capture_sizes
    assert facts.speculative is None
    if envelope.uses_gpu:
        assert facts.hybrid_kv is True and facts.moe_backend == "marlin"


@pytest.mark.parametrize(
    "argv",
    [
        ["--max-num-seqs", "4"],
        ["--max-num-seqs=4"],
        ["--max_num_seqs", "4"],
        ["--max_num_seqs=4"],
        ["--max-num-seqs", "9", "--max-num-seqs", "4"],
        ["--trust-remote-code", "--max-num-seqs", "4", "--dtype", "auto"],
    ],
)
def test_every_way_to_write_a_flag(argv: list[str]) -> None:
    assert arguments.facts_of(["serve", "m", *argv]).max_num_seqs == 4


@pytest.mark.parametrize(
    ("argv", "ranks"),
    [(["-tp", "4"], 4), (["-tp=4", "-pp", "2"], 8), (["-dp", "2", "-tp", "2"], 4), ([], 1)],
)
def test_ranks(argv: list[str], ranks: int) -> None:
    assert arguments.facts_of(["serve", "m", *argv]).ranks == ranks


@pytest.mark.parametrize(
    ("text", "count"),
    [("262144", 262144), ("256K", 262144), ("1k", 1000), ("2.5k", 2500), ("auto", None), ("-1", None)],
)
def test_counts_as_vllm_writes_them(text: str, count: int | None) -> None:
    assert arguments.facts_of(["serve", "m", "--max-model-len", text]).max_model_len == count


@pytest.mark.parametrize(
    ("argv", "mode", "sizes"),
    [
        (["-cc", '{"cudagraph_mode":"full","cudagraph_capture_sizes":[1,2]}'], "FULL", (1, 2)),
        (["-cc.cudagraph_mode=PIECEWISE"], "PIECEWISE", None),
        (["--compilation-config.cudagraph_mode", "FULL", "--cudagraph-capture-sizes", "1", "8"], "FULL", (1, 8)),
        (["--compilation_config", "{}", "--enforce-eager"], "NONE", None),
        ([], None, None),
    ],
)
def test_graphs(argv: list[str], mode: str | None, sizes: tuple[int, ...] | None) -> None:
    graphs = arguments.facts_of(["serve", "m", *argv]).graphs
    assert (graphs.mode, graphs.sizes) == (mode, sizes)


def test_backends_from_their_json_flags() -> None:
    facts = arguments.facts_of(
        ["serve", "m", "-ac.backend", "FLASH_ATTN", "--kernel-config", '{"moe_backend":"triton"}']
    )
    assert (facts.attention_backend, facts.moe_backend) == ("FLASH_ATTN", "triton")


@pytest.mark.parametrize("value", ["{", "[1]", "7", ""])
def test_a_json_flag_must_hold_an_object(value: str) -> None:
    with pytest.raises(CouldNotRun, match="no JSON object"):
        arguments.facts_of(["serve", "m", "--compilation-config", value])


@pytest.mark.parametrize(
    "argv",
    [
        ["--decode-context-parallel-size", "2"],
        ["-dcp", "2"],
        ["-dcp=2"],
        ["--decode_context_parallel_size=2"],
        ["--disable-hybrid-kv-cache-manager"],
        ["--disable-hybrid"],
        ["--speculative-config", "{}"],
        ["-sc", "{}"],
        ["-sc.method=mtp"],
        ["--speculative-config.method", "mtp"],
        ["--speculative_config.num_speculative_tokens=1"],
        ["--spec-method", "mtp"],
        ["--spec-tokens=1"],
        ["--spec-model", "x"],
        ["--hf-overrides", "{}"],
        ["--config", "more.yaml"],
        ["--api-key", "s3cr3t"],
        ["--api_key=s3cr3t"],
        ["--api-k", "s3cr3t"],
        ["--hf-token", "s3cr3t"],
        ["--max-model", "7"],
        ["--no-async"],
        ["--compilation", "{}"],
    ],
)
def test_refused_arguments_are_named_and_never_their_value(argv: list[str]) -> None:
    with pytest.raises(CouldNotRun) as refusal:
        arguments.require_allowed(["serve", "m", *argv])
    assert argv[0].split("=")[0] in refusal.value.what
    assert "s3cr3t" not in refusal.value.what + refusal.value.mend


@pytest.mark.parametrize(
    "argv",
    [
        ["--no-disable-hybrid-kv-cache-manager"],
        ["--served-model-name", "--config"],
        ["--api-server-count", "2"],
        ["--config-format", "hf"],
        ["--reasoning-parser", "deepseek_v4"],
    ],
)
def test_what_only_looks_like_a_refused_argument_is_taken(argv: list[str]) -> None:
    arguments.require_allowed(["serve", "m", *argv])


def test_replacing_takes_out_every_other_form() -> None:
    argv = ["serve", "m", "-tp", "4", "--seed", "1", "--tensor_parallel_size=2", "--enforce-eager"]
    assert arguments.with_value(argv, "--tensor-parallel-size", "8") == (
        "serve",
        "m",
        "--tensor-parallel-size",
        "8",
        "--seed",
        "1",
        "--enforce-eager",
    )
    assert arguments.with_switch(argv, "--enforce-eager", False)[-1] == "--no-enforce-eager"
    assert arguments.with_value(["serve", "m"], "--seed", "1") == ("serve", "m", "--seed", "1")


def test_the_specs_own_arguments_match_wherever_they_listen() -> None:
    argv = serve_argv(EIGHTY, "/elsewhere/Ablit-W4A16-direct", "127.0.0.1", 9000)
    assert spec_match.differences(argv, EIGHTY) == []
    assert spec_match.differences((*argv[:2], *argv[8:], *argv[2:8]), EIGHTY) == []


def test_other_arguments_are_named_with_both_values() -> None:
    argv = arguments.with_value(serve_argv(EIGHTY), "--max-model-len", "4096")
    argv = (*(part for part in argv if part != "--enable-prompt-tokens-details"), "--seed", "7")
    assert spec_match.differences(argv, EIGHTY) == [
        {"argument": "--max-model-len", "spec": "81920", "given": "4096"},
        {"argument": "--enable-prompt-tokens-details", "spec": "given", "given": ""},
        {"argument": "--seed", "spec": "", "given": "7"},
    ]


def test_a_second_flag_of_a_kind_is_a_difference() -> None:
    argv = (*serve_argv(EIGHTY), "--max-model-len", "81920")
    assert spec_match.differences(argv, EIGHTY)[0]["given"] == "81920 81920"
