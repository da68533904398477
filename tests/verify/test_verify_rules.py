"""Every rule in every state it can have, and the rules' names against the shipped envelopes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.errors import CouldNotRun
from sm86.manifest import format_entry, format_manifest
from sm86.spec import load_all
from sm86.spec.argv import QUIET, QUIET_PATHS
from sm86.verify.findings import Evidence, shown, without_secrets
from sm86.verify.rules import RULES
from sm86.verify.verify import verify_log
from tests.verify.test_verify_mutations import MUTATIONS
from tests.verify.verify_logs import (
    GOOD,
    REVISION,
    claims,
    finding,
    good,
    load_envelope,
    replaced,
    states,
    until,
    verified,
    without,
)

ENGINE_ONLY = good().split("[sm86] manifest end\n")[1]
MANIFEST_ONLY = "\n".join(format_manifest(claims(load_envelope(GOOD)))) + "\n"
DISPATCH_ON = {"value": "1", "state": "effective", "why": "the plugin logs"}
PLUGIN = "(Worker_TP0 pid=4301) INFO 12-01 17:07:00 [graphs.py:10]"


def everything_off():
    """An envelope that leaves to vLLM whatever can be left to it, judged by all rules."""
    return replace(
        load_envelope("cpu-smoke"),
        rules=tuple(RULES),
        serve=replace(load_envelope("cpu-smoke").serve, hybrid_kv_cache=False),
    )


def of(log: str, rule: str) -> str:
    return finding(verified(log), rule).state


NOT_SEEN = {
    "manifest": ENGINE_ONLY,
    "argv": without(good(), "non-default args: "),
    "git-revision": ENGINE_ONLY,
    "vllm-origin": ENGINE_ONLY,
    "vllm-version": MANIFEST_ONLY,
    "tensor-parallel": MANIFEST_ONLY,
    "kv-cache-dtype": MANIFEST_ONLY,
    "attention-backend": MANIFEST_ONLY,
    "moe-backend": MANIFEST_ONLY,
    "host-allreduce": MANIFEST_ONLY,
    "memory-profiler": MANIFEST_ONLY,
    "block-override": MANIFEST_ONLY,
    "context-served": MANIFEST_ONLY,
    "hybrid-kv": MANIFEST_ONLY,
    "graphs-captured": MANIFEST_ONLY,
    "capture-shape": MANIFEST_ONLY,
    "dispatch": good(override__CUDAGRAPH_DISPATCH_DEBUG=DISPATCH_ON),
    "unknown-environment": MANIFEST_ONLY,
    "out-of-memory": MANIFEST_ONLY,
    "single-boot": good().split("with config: ")[1],
    "ready": MANIFEST_ONLY,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_passes_the_good_log(rule):
    log = good()
    if rule == "dispatch":
        log = good(override__CUDAGRAPH_DISPATCH_DEBUG=DISPATCH_ON) + f"{PLUGIN} SM86 cudagraph hit uniform=true\n"
    found = finding(verified(log), rule)
    assert (found.state, found.mend) == ("pass", "")
    assert found.evidence


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_change_that_it_fails(rule):
    assert any(expected.get(rule) == "fail" for _, expected in MUTATIONS.values())


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_without_its_lines_is_not_seen(rule):
    """The manifest alone never passes a rule about the engine."""
    assert of(NOT_SEEN[rule], rule) == "not seen"


def test_rules_about_what_the_spec_leaves_to_vllm_do_not_apply():
    report = verify_log(everything_off(), [ENGINE_ONLY.replace("num_gpu_blocks_override=1632", "").encode()])
    assert {rule for rule, state in states(report).items() if state == "not applicable"} == {
        "attention-backend",
        "moe-backend",
        "host-allreduce",
        "memory-profiler",
        "block-override",
        "hybrid-kv",
        "graphs-captured",
        "dispatch",
    }


def test_a_log_to_which_no_rule_applies_is_not_verified():
    envelope = replace(load_envelope(GOOD), rules=("dispatch",))
    assert not verify_log(envelope, [good().encode()]).passed


def test_every_rule_that_an_envelope_names_exists_and_every_rule_is_named():
    named = {rule for envelope in load_all() for rule in envelope.rules}
    assert named == set(RULES)


def test_an_unknown_rule_is_refused():
    envelope = replace(load_envelope(GOOD), rules=("ready", "readiness"))
    with pytest.raises(CouldNotRun, match="readiness"):
        verify_log(envelope, [good().encode()])


# --- overrides of a run ----------------------------------------------------------------------------------------------


def test_a_named_override_of_the_pool_is_what_the_workers_must_show():
    argv = [{"1632": "1700"}.get(item, item) for item in claims(load_envelope(GOOD))["argv"]]
    override = {"value": "1700", "state": "effective", "why": "passed as --num-gpu-blocks-override"}
    log = good(override__SM86_NUM_GPU_BLOCKS=override, argv=argv, num_gpu_blocks_override=1700)
    log = replaced(log, "with num_gpu_blocks_override=1632", "with num_gpu_blocks_override=1700")
    log = replaced(log, "'num_gpu_blocks_override': 1632", "'num_gpu_blocks_override': 1700")
    assert verified(log).passed
    unnamed = good(argv=argv, num_gpu_blocks_override=1700)
    assert of(unnamed, "argv") == of(unnamed, "block-override") == "fail"


def test_a_named_override_of_the_batch_must_show_in_the_servers_arguments():
    argv = [{"512": "1024"}.get(item, item) for item in claims(load_envelope(GOOD))["argv"]]
    override = {"value": "1024", "state": "effective", "why": "passed"}
    log = good(override__SM86_MAX_NUM_BATCHED_TOKENS=override, argv=argv, max_num_batched_tokens=1024)
    assert of(log, "argv") == "fail"
    assert of(replaced(log, "'max_num_batched_tokens': 512", "'max_num_batched_tokens': 1024"), "argv") == "pass"


def test_drafts_as_a_probe_are_named_but_are_not_the_expected_shape():
    argv = [*claims(load_envelope(GOOD))["argv"], "--speculative-config", '{"method":"mtp","num_speculative_tokens":1}']
    config = '{"method":"mtp","num_speculative_tokens":1}'
    override = {"value": config, "state": "effective", "why": "a probe"}
    log = good(
        override__SPECULATIVE_CONFIG=override,
        argv=argv,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )
    log = replaced(
        log, "speculative_config=None", "speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=1)"
    )
    assert of(log, "argv") == "pass"
    shape = finding(verified(log), "capture-shape")
    assert shape.state == "fail" and "override SPECULATIVE_CONFIG" in shape.text


def test_a_profiler_made_ready_is_named_and_nothing_else_is():
    argv = [*claims(load_envelope(GOOD))["argv"], "--profiler-config", '{"profiler":"torch","max_iterations":50}']
    override = {"value": "50", "state": "effective", "why": "passed"}
    assert of(good(override__SM86_PROFILE_STEPS=override, argv=argv), "argv") == "pass"
    assert of(good(argv=argv), "argv") == "fail", "a profiler that no override names"


@pytest.mark.parametrize(("value", "state"), [("1", "pass"), ("0", "fail"), (None, "fail")])
def test_vllms_own_all_reduce_is_off_only_where_peer_access_is(value, state):
    argv = [*claims(load_envelope(GOOD))["argv"], "--disable-custom-all-reduce"]
    override = {"value": value, "state": "effective", "why": "read"}
    named = {} if value is None else {"override__NCCL_P2P_DISABLE": override}
    assert of(good(argv=argv, **named), "argv") == state
    if value is not None:
        assert of(good(**named), "argv") == "pass", "a server of more than two GPUs is started without it"


def test_what_the_launcher_adds_for_a_quiet_log_is_no_difference():
    """A log of before, whose launcher added nothing, is judged as it was."""
    argv = claims(load_envelope(GOOD))["argv"]
    assert verified(good(argv=[*argv, QUIET, QUIET_PATHS], argv_added=[QUIET, QUIET_PATHS])).passed
    assert verified(good(argv=argv)).passed
    assert of(good(argv=[*argv, QUIET, QUIET_PATHS, "--uds", "x"]), "argv") == "fail"


def test_an_override_that_says_none_changes_nothing():
    override = {"value": "none", "state": "effective", "why": "no drafting"}
    assert verified(good(override__SPECULATIVE_CONFIG=override)).passed
    argv = [*claims(load_envelope(GOOD))["argv"], "--speculative-config", "{}"]
    assert of(good(override__SPECULATIVE_CONFIG=override, argv=argv), "argv") == "fail"


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (["hit uniform=true"], "pass"),
        (["eager uniform=false", "hit uniform=true", "skip uniform=false"], "pass"),
        (["hit uniform=true", "skip uniform=true"], "fail"),
        (["hit uniform=true", "miss num_tokens=3"], "fail"),
        (["eager uniform=true"], "fail"),
        (["hit cg_mode=FULL uniform=true"], "pass"),
        (["hit cg_mode=FULL uniform=true", "hit cg_mode=PIECEWISE uniform=true"], "fail"),
        (["eager uniform=false"], "not seen"),
        (
            ["hit uniform=true"] * 5000 + ["miss uniform=true"] + ["hit uniform=true"] * 5000,
            "fail",
        ),
    ],
    ids=[
        "hit",
        "prefill is eager",
        "skip",
        "a miss of unknown kind",
        "eager decode",
        "full",
        "piecewise",
        "prefill only",
        "one of many",
    ],
)
def test_dispatch_reads_what_the_plugin_says_of_decode_batches(lines, state):
    log = good(override__CUDAGRAPH_DISPATCH_DEBUG=DISPATCH_ON)
    log += "".join(f"{PLUGIN} SM86 cudagraph {line}\n" for line in lines)
    assert of(log, "dispatch") == state


@pytest.mark.parametrize("word", ["num_spec_tokens=1", "uniform_decode_query_len=2", "capture_sizes=[1,2]"])
def test_a_dispatch_line_of_another_shape_fails_the_shape(word):
    log = good(override__CUDAGRAPH_DISPATCH_DEBUG=DISPATCH_ON)
    assert (
        of(log + f"{PLUGIN} SM86 cudagraph hit cg_mode=FULL uniform=true capture_sizes=[1,4]\n", "capture-shape")
        == "pass"
    )
    assert of(log + f"{PLUGIN} SM86 cudagraph hit cg_mode=FULL uniform=true {word}\n", "capture-shape") == "fail"


def test_a_plugin_with_parts_left_out_for_a_test_is_a_finding():
    log = good() + '(Worker_TP0 pid=4301) [sm86] backend left_out_for_a_test=["clamp"]\n'
    assert of(log, "attention-backend") == "fail"


def test_ranks_that_shared_a_gpu_are_a_finding():
    log = good() + "(Worker_TP0 pid=4301) [sm86] backend gpu_shared_for_a_test=true\n"
    assert of(good(), "tensor-parallel") == "pass" and of(log, "tensor-parallel") == "fail"


def test_dispatch_diagnostics_that_are_off_do_not_apply():
    off = {"value": "0", "state": "effective", "why": "off"}
    assert of(good(override__CUDAGRAPH_DISPATCH_DEBUG=off), "dispatch") == "not applicable"


# --- the three words against each other ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("tensor_parallel", 4, "tensor-parallel"),
        ("attention_backend", "FLASHMLA_SPARSE", "attention-backend"),
        ("moe_backend", "triton", "moe-backend"),
        ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1", "memory-profiler"),
        ("max_model_len", 262144, "context-served"),
        ("hybrid_kv", False, "hybrid-kv"),
        ("cudagraph_mode", "PIECEWISE", "capture-shape"),
        ("cudagraph_capture_sizes", [1, 2, 4], "capture-shape"),
        ("speculative_config", {"method": "mtp", "num_speculative_tokens": 1}, "capture-shape"),
    ],
)
def test_a_claim_that_the_engine_contradicts_is_a_failure(key, value, rule):
    report = verified(good(**{key: value}))
    assert {one for one, state in states(report).items() if state == "fail"} == {rule}


OVERRIDES = ("SPECULATIVE_CONFIG", "SM86_NUM_GPU_BLOCKS", "SM86_ASYNC_SCHEDULING", "CUDAGRAPH_DISPATCH_DEBUG")
STRANGE = [
    "",
    "none",
    [],
    {},
    ["x", 1],
    {"value": None},
    {"value": [1], "state": 3},
    0,
    -1,
    True,
    1e9,
    "x" * 3000,
    "[",
    '{"',
]


CLAIMS = [*claims(load_envelope(GOOD)), *(f"override.{name}" for name in OVERRIDES), "python", "override.X"]


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(CLAIMS), st.sampled_from(STRANGE))
def test_a_claim_of_any_kind_is_judged_and_never_a_fault(key, value):
    log = good(**{key.replace(".", "__"): value})
    log += f"(Worker_TP0 pid=4301) {format_entry('attention_backend', value, 'backend')}\n"
    report = verified(log)
    assert set(states(report).values()) <= {"pass", "fail", "not seen", "not applicable"}
    assert finding(report, "attention-backend").state == "fail"


def test_a_log_without_a_manifest_is_judged_by_what_the_engine_says():
    report = verified(ENGINE_ONLY)
    missing = {rule for rule, state in states(report).items() if state == "not seen"}
    assert missing == {"manifest", "argv", "git-revision", "vllm-origin"}
    assert "fail" not in states(report).values()


def test_what_the_server_was_asked_for_is_no_word_of_its_attention_backend():
    log = without(good(), "[sm86] backend attention_backend")
    found = finding(verified(log), "attention-backend")
    assert found.state == "not seen" and found.mend and found.evidence
    assert "the server was asked for it; the manifest claims it" in found.text


@pytest.mark.parametrize("revision", [REVISION, REVISION[:7], REVISION.upper(), f" {REVISION}\n"])
def test_the_expected_revision_may_be_short(revision):
    assert finding(verified(good(), git_rev=revision), "git-revision").state == "pass"


@pytest.mark.parametrize("revision", ["deadbeef", REVISION[:6], "main", ""])
def test_another_expected_revision_fails(revision):
    assert finding(verified(good(), git_rev=revision), "git-revision").state == "fail"


@pytest.mark.parametrize(
    ("origin", "python", "state"),
    [
        ("/opt/venv/lib/python3.12/site-packages/vllm/envs.py", "/opt/venv/bin/python3", "pass"),
        ("/usr/local/lib/python3.12/dist-packages/vllm/envs.py", "/usr/bin/python3.12", "pass"),
        ("/root/.local/lib/python3.12/site-packages/vllm/envs.py", "/opt/venv/bin/python3", "fail"),
        ("/workspace/vllm/envs.py", "3.12.12", "fail"),
        ("vllm/envs.py", "3.12.12", "fail"),
        ("none", "3.12.12", "fail"),
    ],
)
def test_vllm_comes_from_the_launchers_own_packages(origin, python, state):
    assert of(good(vllm__envs_origin=origin, python=python), "vllm-origin") == state


@pytest.mark.parametrize(
    ("cut", "phase"),
    [
        ("Loading safetensors checkpoint shards:  40%", "while loading weights"),
        ("Available KV cache memory", "while profiling memory"),
        ("Capturing CUDA graphs", "while capturing graphs"),
        ("Application startup complete", "while serving"),
    ],
)
def test_memory_that_ran_out_is_named_with_its_phase(cut, phase):
    log = until(good(), cut) + "(Worker_TP2 pid=4303) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"
    found = finding(verified(log), "out-of-memory")
    assert found.state == "fail"
    assert found.text == f"GPU memory ran out {phase}"


def test_the_telling_message_goes_before_its_echo():
    log = until(good(), "Capturing CUDA graphs") + "exit code: 137\nRuntimeError: CUDA error: out of memory\n"
    assert finding(verified(log), "out-of-memory").text.startswith("GPU memory ran out")


def test_an_estimate_of_nothing_explains_the_silence_about_it():
    log = replaced(without(good(), "memory profiling is disabled"), "graph memory: 0.58 GiB", "graph memory: 0.00 GiB")
    found = finding(verified(log), "memory-profiler")
    assert found.state == "not seen" and "0 GiB" in found.text


def test_the_runner_that_names_only_modes_is_understood():
    log = replaced(good(), "Capturing CUDA graphs (decode, FULL)", "Capturing CUDA graphs (FULL)")
    assert of(log, "graphs-captured") == "pass"


def test_graphs_of_a_draft_may_have_sizes_of_their_own():
    bar = "(Worker_TP0 pid=4301) Capturing prefill CUDA graphs (FULL): 100%|##########| 5/5 [00:01<00:00,  4.2it/s]\n"
    assert of(good() + bar, "graphs-captured") == "pass"


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_a_long_line_is_shown_where_it_matters():
    line = finding(verified(good()), "capture-shape").evidence[0]
    assert "'cudagraph_mode': <CUDAGraphMode.FULL_DECODE_ONLY" in line.text
    assert len(line.text) < 260


@pytest.mark.parametrize(
    "text",
    [
        "non-default args: {'api_key': ['sk-verysecret1'], 'port': 8000}",
        "VLLM_API_KEY=sk-verysecret1 was set",
        'environment={"HF_TOKEN":"hf_verysecret1verysecret1"}',
        "--api-key sk-verysecret1",
        "password: 'verysecret1'",
    ],
)
def test_secrets_are_not_shown(text):
    assert "verysecret1" not in without_secrets(text)


@pytest.mark.parametrize(
    "text", ["max_num_batched_tokens=512", "tokenizer='/models/x'", "tokenizer_mode=deepseek_v4", "api_key=None, x=1"]
)
def test_what_only_sounds_like_a_secret_is_shown(text):
    assert without_secrets(text) == text


def test_evidence_has_no_control_characters():
    log = replaced(good(), "Application startup complete.", "Application startup complete.\x07\x08\x9b31m")
    (line,) = finding(verified(log), "ready").evidence
    assert isinstance(line, Evidence) and line.text.isprintable()
    assert shown.__doc__
