"""Real logs of other servers and of the prototype: which checks fail or are not seen, and on which line."""

import pytest

from tests.verify.verify_logs import finding, not_passed, read, states, verified

# what no engine prints itself: the launcher and the plugin do
ENGINE_SILENT = {"manifest", "argv", "git-revision", "vllm-origin", "host-allreduce"}


def expect(name: str, envelope: str, rules: dict[str, tuple[str, list[int]]]):
    report = verified(read(name), envelope)
    assert report.exit_code == 1
    for rule in ENGINE_SILENT & set(states(report)):
        assert finding(report, rule).state == "not seen"
    for rule, (state, lines) in rules.items():
        found = finding(report, rule)
        assert (found.state, [line.line for line in found.evidence]) == (state, lines), (rule, found)
    assert set(rules) | ENGINE_SILENT == set(states(report))


def test_l01_two_gpus_and_4096_tokens_on_0_21():
    expect(
        "l01",
        "sm86-262k",
        {
            "vllm-version": ("fail", [17]),
            "tensor-parallel": ("fail", [17]),
            # told fp8, which that version turns into the format that the spec wants
            "kv-cache-dtype": ("pass", [11, 17, 30]),
            "attention-backend": ("not seen", []),
            "moe-backend": ("pass", [32]),
            "memory-profiler": ("fail", [63, 65]),
            "block-override": ("fail", [7]),
            "context-served": ("fail", [67]),
            "hybrid-kv": ("not seen", [7]),
            "graphs-captured": ("fail", [76]),
            "capture-shape": ("fail", [17]),
            "dispatch": ("not applicable", []),
            "unknown-environment": ("pass", [17]),
            "out-of-memory": ("pass", [125]),
            "single-boot": ("pass", [3]),
            # two refused requests print tracebacks, and the end was asked for: the server was ready
            "ready": ("pass", [125]),
        },
    )


def test_l03_eight_gpus_with_decode_contexts_and_drafts_on_0_20():
    expect(
        "l03",
        "sm86-262k",
        {
            "vllm-version": ("fail", [36]),
            "tensor-parallel": ("fail", [36]),
            "kv-cache-dtype": ("pass", [23, 36, 137]),
            "attention-backend": ("fail", [122]),
            "moe-backend": ("fail", [142]),
            "memory-profiler": ("pass", [354, 355]),
            "block-override": ("fail", [9]),
            "context-served": ("fail", [364]),
            "hybrid-kv": ("not seen", [9]),
            "graphs-captured": ("fail", [413]),
            "capture-shape": ("fail", [36]),
            "dispatch": ("not applicable", []),
            "unknown-environment": ("fail", [10, 11, 12, 13, 14, 15]),
            "out-of-memory": ("pass", [482]),
            "single-boot": ("pass", [5]),
            "ready": ("pass", [482]),
        },
    )


def test_l06_a_start_that_vllm_refused_printed_twice():
    expect(
        "l06",
        "sm86-262k",
        {
            "vllm-version": ("fail", [279]),
            "tensor-parallel": ("not seen", []),
            "kv-cache-dtype": ("not seen", []),
            "attention-backend": ("not seen", []),
            "moe-backend": ("not seen", []),
            "memory-profiler": ("not seen", []),
            "block-override": ("fail", [283]),
            "context-served": ("fail", [379]),
            "hybrid-kv": ("not seen", [283]),
            "graphs-captured": ("not seen", []),
            "capture-shape": ("not seen", []),
            "dispatch": ("not applicable", []),
            "unknown-environment": ("fail", [285, 354]),
            "out-of-memory": ("not seen", []),
            "single-boot": ("fail", [39, 279]),
            "ready": ("fail", [379]),
        },
    )


def test_the_prototypes_boot_with_graphs_lacks_what_the_rig_adds():
    report = verified(read("recorded_graph"), "sm86-80k-4seq")
    assert not_passed(report) == {
        **dict.fromkeys(ENGINE_SILENT, "not seen"),
        "tensor-parallel": "fail",
        "attention-backend": "not seen",
        "memory-profiler": "fail",
        "block-override": "fail",
        "context-served": "fail",
        "hybrid-kv": "not seen",
    }
    assert [line.line for line in finding(report, "graphs-captured").evidence] == [74, 75]
    assert [line.line for line in finding(report, "capture-shape").evidence] == [33, 64]


def test_one_block_too_few_is_named_with_its_lines():
    report = verified(read("recorded_kv1790"), "sm86-393k")
    small = finding(report, "context-served")
    assert small.state == "fail" and "392960" in small.text
    assert [line.line for line in small.evidence] == [124]
    memory = finding(report, "out-of-memory")
    assert memory.state == "fail" and "while profiling memory" in memory.text
    assert [line.line for line in memory.evidence] == [94, 124]
    assert finding(report, "block-override").state == "fail"
    assert [line.line for line in finding(report, "ready").evidence] == [71, 94]


def test_a_recorded_boot_that_was_cut_is_not_called_dead():
    report = verified(read("recorded_kv1791"), "sm86-393k")
    assert finding(report, "ready").state == "not seen"
    assert finding(report, "context-served").state == "pass"


def test_piecewise_graphs_are_another_shape_than_the_spec_wants():
    report = verified(read("recorded_piecewise"), "sm86-80k-4seq")
    assert finding(report, "graphs-captured").state == "fail"
    assert finding(report, "capture-shape").state == "fail"
    assert finding(report, "ready").state == "pass"


def test_the_recorded_cpu_boot_passes_what_the_engine_says():
    report = verified(read("recorded_cpu-smoke"), "cpu-smoke", None)
    found = states(report)
    # the spec may have moved on since the recording, and its tree had changes: those are not the engine's words
    engine = {"vllm-version", "vllm-origin", "tensor-parallel", "kv-cache-dtype", "context-served", "single-boot"}
    assert {rule: found[rule] for rule in engine} == dict.fromkeys(engine, "pass")
    assert found["out-of-memory"] == found["unknown-environment"] == found["ready"] == "pass"
    assert found["git-revision"] == "fail"
    assert report.engine_version == "0.28.0"


@pytest.mark.parametrize("name", ["l01", "l03", "l06", "recorded_deep", "recorded_graph", "recorded_kv1791"])
@pytest.mark.parametrize("envelope", ["sm86-262k", "sm86-64k", "cpu-smoke"])
def test_no_foreign_log_verifies_any_envelope(name, envelope):
    assert not verified(read(name), envelope).passed
