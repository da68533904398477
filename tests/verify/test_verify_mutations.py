"""The composed good log passes every rule; each honest change to it is caught by exactly the rules it should be."""

import pytest

from sm86.spec.argv import serve_argv
from tests.verify.verify_logs import (
    GOOD,
    REVISION,
    good,
    load_envelope,
    not_passed,
    replaced,
    states,
    until,
    verified,
    without,
)


def changed_argv(old: str, new: str) -> list[str]:
    argv = list(serve_argv(load_envelope(GOOD)))
    assert old in argv
    return [new if item == old else item for item in argv]


def one_worker_less(text: str, word: str) -> str:
    at = text.index(word)
    start = text.rindex("\n", 0, at) + 1
    return text[:start] + text[text.index("\n", at) + 1 :]


PLUGIN = "(Worker_TP0 pid=4301) INFO 12-01 17:07:00 [graphs.py:10]"
PYTHON_ERROR = "(Worker_TP2 pid=4303) ERROR 12-01 17:05:55 [multiproc_executor.py:1007] "
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 MiB. GPU 2 has a total capacity of "
    "23.57 GiB of which 11.06 MiB is free."
)

ASKED_ON = {"value": "1", "state": "effective", "why": "asked for"}
ASKED_OFF = {"value": "0", "state": "effective", "why": "asked for"}


def by_nccl(reason: str, **changes: object) -> str:
    text = replaced(good(**changes), "collectives choice=host", "collectives choice=nccl")
    return replaced(text, "collectives reason=faster than NCCL at 8192, 32768 bytes", f"collectives reason={reason}")


MUTATIONS = {
    "the host all-reduce was asked for and is not there": (
        lambda: by_nccl("set-up failed: no library", override__SM86_HOST_ALLREDUCE=ASKED_ON),
        {"host-allreduce": "fail"},
    ),
    "the host all-reduce was switched off and is there": (
        lambda: good(override__SM86_HOST_ALLREDUCE=ASKED_OFF),
        {"host-allreduce": "fail"},
    ),
    "the host all-reduce summed wrongly": (
        lambda: by_nccl("the value check failed: two-shot, 8192 bytes"),
        {"host-allreduce": "fail"},
    ),
    "an all-reduce of another name": (
        lambda: replaced(good(), "collectives choice=host", "collectives choice=gloo"),
        {"host-allreduce": "fail"},
    ),
    "a rank that did not come to an all-reduce": (
        lambda: good() + "(Worker_TP0 pid=4301) [sm86] collectives failed=host all-reduce stopped: rank 3 has ended\n",
        {"host-allreduce": "fail"},
    ),
    "the choice of the all-reduce is cut out": (
        lambda: without(good(), "collectives choice="),
        {"host-allreduce": "not seen"},
    ),
    "another envelope's manifest": (lambda: good(envelope="sm86-262k"), {"manifest": "fail"}),
    "an older spec": (lambda: good(envelope_digest="0000000000000000"), {"manifest": "fail"}),
    "a manifest of another format": (
        lambda: replaced(good(), "manifest begin v1", "manifest begin v2"),
        {"manifest": "fail"},
    ),
    "a manifest without the engine": (lambda: good(engine=None), {"manifest": "fail"}),
    "another batch size in argv": (lambda: good(argv=changed_argv("512", "2048")), {"argv": "fail"}),
    "a flag more in argv": (
        lambda: good(argv=[*serve_argv(load_envelope(GOOD)), "--enforce-eager"]),
        {"argv": "fail"},
    ),
    "another environment": (
        lambda: good(environment={**dict(load_envelope(GOOD).environment), "VLLM_USE_FLASHINFER_SAMPLER": "1"}),
        {"argv": "fail"},
    ),
    "the server has other arguments than the launcher says": (
        lambda: replaced(good(), "'max_num_seqs': 4", "'max_num_seqs': 8"),
        {"argv": "fail"},
    ),
    "the launcher says its arguments are not the spec's": (
        lambda: good(
            argv=list(serve_argv(load_envelope(GOOD))),
            argv_matches_spec=[{"argument": "--x", "spec": "", "given": "1"}],
            **{"override__FUSE_ALLREDUCE_RMS": None},
        ),
        {"argv": "fail"},
    ),
    "another revision": (lambda: good(git_rev="f" * 40), {"git-revision": "fail"}),
    "an unknown revision": (lambda: good(git_rev="unknown"), {"git-revision": "fail"}),
    "a changed tree": (lambda: good(git_dirty=True), {"git-revision": "fail"}),
    "nobody knows whether the tree was changed": (lambda: good(git_dirty="unknown"), {"git-revision": "not seen"}),
    "vllm from a source tree": (
        lambda: good(vllm__envs_origin="/workspace/vllm/vllm/envs.py"),
        {"vllm-origin": "fail"},
    ),
    "another engine version": (
        lambda: replaced(good(), "V1 LLM engine (v0.26.0)", "V1 LLM engine (v0.25.1)"),
        {"vllm-version": "fail"},
    ),
    "the manifest claims another engine version": (lambda: good(vllm_version="0.28.0"), {"vllm-version": "fail"}),
    "half the GPUs": (
        lambda: replaced(
            replaced(good(), "tensor_parallel_size=8", "tensor_parallel_size=4"),
            "world_size=8 rank",
            "world_size=4 rank",
        ),
        {"tensor-parallel": "fail"},
    ),
    "decode contexts in parallel": (
        lambda: replaced(good(), "decode_context_parallel_size=1", "decode_context_parallel_size=8"),
        {"tensor-parallel": "fail"},
    ),
    "a worker that never reported": (
        lambda: without(good(), "world_size=8 rank=5 local_rank=5"),
        {"tensor-parallel": "not seen"},
    ),
    "another KV cache dtype": (
        lambda: replaced(good(), "kv_cache_dtype=fp8_ds_mla, device", "kv_cache_dtype=bfloat16, device").replace(
            "Using fp8_ds_mla data type", "Using bfloat16 data type"
        ),
        {"kv-cache-dtype": "fail"},
    ),
    "the manifest claims another KV cache dtype": (lambda: good(kv_cache_dtype="fp8"), {"kv-cache-dtype": "fail"}),
    "one worker on another attention backend": (
        lambda: replaced(
            good(),
            "(Worker_TP5 pid=4306) [sm86] backend attention_backend=FLASHINFER_MLA_SPARSE_DSV4",
            "(Worker_TP5 pid=4306) [sm86] backend attention_backend=FLASHMLA_SPARSE",
        ),
        {"attention-backend": "fail"},
    ),
    "another expert backend": (
        lambda: replaced(good(), "Using 'MARLIN' WNA16 MoE backend", "Using 'TRITON' WNA16 MoE backend"),
        {"moe-backend": "fail"},
    ),
    "the experts' line is lost": (lambda: without(good(), "WNA16 MoE backend"), {"moe-backend": "not seen"}),
    "one worker estimates graph memory": (
        lambda: replaced(
            good(), "CUDA graph memory profiling is disabled", "CUDA graph memory profiling is enabled", 1
        ),
        {"memory-profiler": "fail"},
    ),
    "no worker says whether it estimates": (
        lambda: without(good(), "CUDA graph memory profiling is disabled"),
        {"memory-profiler": "not seen"},
    ),
    "one worker with another pool": (
        lambda: replaced(good(), "with num_gpu_blocks_override=1632", "with num_gpu_blocks_override=1600", 1),
        {"block-override": "fail"},
    ),
    "seven workers with the pool": (
        lambda: one_worker_less(good(), "with num_gpu_blocks_override=1632"),
        {"block-override": "fail"},
    ),
    "no worker with the pool": (
        lambda: without(good(), "with num_gpu_blocks_override=1632"),
        {"block-override": "not seen"},
    ),
    "the manifest claims another pool": (lambda: good(num_gpu_blocks_override=1280), {"block-override": "fail"}),
    "the engine fitted the context to its memory": (
        lambda: replaced(
            replaced(
                good(),
                "INFO 12-01 17:05:38 [kv_cache_utils.py:2177] GPU KV cache size",
                "INFO 12-01 17:05:38 [kv_cache_utils.py:1986] Auto-fit max_model_len: reduced from 81920 to 3912 to "
                "fit in available GPU memory (1.58 GiB available for KV cache)\n"
                "(EngineCore pid=4150) INFO 12-01 17:05:38 [kv_cache_utils.py:2177] GPU KV cache size",
            ),
            "Maximum concurrency for 81,920 tokens",
            "Maximum concurrency for 3,912 tokens",
        ),
        {"context-served": "fail"},
    ),
    "another context in the config": (
        lambda: replaced(good(), "max_seq_len=81920", "max_seq_len=65536"),
        {"context-served": "fail"},
    ),
    "the KV cache line is lost": (
        lambda: without(good(), "Maximum concurrency for"),
        {"context-served": "not seen"},
    ),
    "hybrid KV was turned off": (
        lambda: replaced(good(), "'disable_hybrid_kv_cache_manager': False", "'disable_hybrid_kv_cache_manager': True"),
        {"hybrid-kv": "fail"},
    ),
    "the engine turned hybrid KV off": (
        lambda: replaced(
            good(),
            "(EngineCore pid=4150) INFO 12-01 17:05:38 [kv_cache_utils.py:2177]",
            "(EngineCore pid=4150) WARNING 12-01 17:05:38 [kv_cache_utils.py:1445] Hybrid KV cache manager is "
            "disabled for this hybrid model, This means we do not enable any optimizations for saving KV cache memory "
            "(e.g., dropping the KV cache outside the sliding window). The compute of layers like sliding window is "
            "still saved.\n"
            "(EngineCore pid=4150) INFO 12-01 17:05:38 [kv_cache_utils.py:2177]",
        ),
        {"hybrid-kv": "fail"},
    ),
    "capture stopped half way": (
        lambda: without(good(), "| 2/2 ["),
        {"graphs-captured": "fail"},
    ),
    "a bar of another family that stopped": (
        lambda: replaced(
            good(),
            "(Worker_TP0 pid=4301) Capturing CUDA graphs (decode, FULL):   0%",
            "(Worker_TP0 pid=4301) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|█████     | 1/2 "
            "[00:01<00:01,  1.52s/it]\n(Worker_TP0 pid=4301) Capturing CUDA graphs (decode, FULL):   0%",
        ),
        {"graphs-captured": "fail"},
    ),
    "one size of two": (
        lambda: replaced(replaced(good(), "| 2/2 [", "| 1/1 ["), "| 1/2 [", "| 0/1 ["),
        {"graphs-captured": "fail"},
    ),
    "no bar at all": (
        lambda: without(good(), "Capturing CUDA graphs (decode, FULL)"),
        {"graphs-captured": "not seen"},
    ),
    "the line that capturing finished is lost": (
        lambda: without(good(), "Graph capturing finished"),
        {"graphs-captured": "not seen"},
    ),
    "drafts": (
        lambda: replaced(
            good(),
            "speculative_config=None",
            "speculative_config=SpeculativeConfig(method='mtp', model='/models/x', num_spec_tokens=1)",
        ),
        {"capture-shape": "fail"},
    ),
    "other capture sizes": (
        lambda: replaced(
            good(),
            "'cudagraph_num_of_warmups': 1, 'cudagraph_capture_sizes': [1, 4]",
            "'cudagraph_num_of_warmups': 1, 'cudagraph_capture_sizes': [1, 2]",
        ),
        {"capture-shape": "fail"},
    ),
    "another graph mode": (
        lambda: replaced(
            good(),
            "<CUDAGraphMode.FULL_DECODE_ONLY: (2, 0)>, 'cudagraph_num_of_warmups': 1",
            "<CUDAGraphMode.PIECEWISE: 1>, 'cudagraph_num_of_warmups': 1",
        ),
        {"capture-shape": "fail"},
    ),
    "vLLM took the graph mode back": (
        lambda: replaced(
            good(),
            "(Worker_TP0 pid=4301) INFO 12-01 17:05:52 [gpu_model_runner.py:6798]",
            "(Worker_TP0 pid=4301) WARNING 12-01 17:05:52 [compilation.py:1397] CUDAGraphMode.FULL_DECODE_ONLY is not "
            "supported with FLASHINFER_MLA_SPARSE_DSV4 backend (support: AttentionCGSupport.NEVER); setting "
            "cudagraph_mode=NONE because attention is not compiled piecewise\n"
            "(Worker_TP0 pid=4301) INFO 12-01 17:05:52 [gpu_model_runner.py:6798]",
        ),
        {"capture-shape": "fail"},
    ),
    "the indexer decodes two tokens": (
        lambda: replaced(good(), "next_n=1", "next_n=2"),
        {"capture-shape": "fail"},
    ),
    "the plugin captured another shape": (
        lambda: good() + "(Worker_TP0 pid=4301) [sm86] backend uniform_decode_query_len=2\n",
        {"capture-shape": "fail"},
    ),
    "dispatch diagnostics that show a miss": (
        lambda: (
            good(override__CUDAGRAPH_DISPATCH_DEBUG={"value": "1", "state": "effective", "why": "the plugin logs"})
            + f"{PLUGIN} SM86 cudagraph hit num_tokens=4 uniform=true\n"
            + f"{PLUGIN} SM86 cudagraph miss num_tokens=3 uniform=true\n"
        ),
        {"dispatch": "fail"},
    ),
    "dispatch diagnostics that show nothing": (
        lambda: good(override__CUDAGRAPH_DISPATCH_DEBUG={"value": "1", "state": "effective", "why": "the plugin logs"}),
        {"dispatch": "not seen"},
    ),
    "a variable that vLLM does not know": (
        lambda: replaced(
            good(),
            "(APIServer pid=4001) INFO 12-01 17:00:02 [model.py:623]",
            "(APIServer pid=4001) WARNING 12-01 17:00:02 [envs.py:2096] Unknown vLLM environment variable detected: "
            "VLLM_ATTENTION_BACKEND\n(APIServer pid=4001) INFO 12-01 17:00:02 [model.py:623]",
        ),
        {"unknown-environment": "fail"},
    ),
    "a worker's memory ran out, and the engine went on": (
        lambda: good() + f"{PYTHON_ERROR}{OOM}\n",
        {"out-of-memory": "fail"},
    ),
    "a second start with the same outcome": (lambda: good() + good(), {"single-boot": "fail"}),
    "the engine died while serving": (
        lambda: (
            good()
            + "(EngineCore pid=4150) ERROR 12-01 17:09:00 [multiproc_executor.py:285] Worker proc VllmWorker-3 died "
            "unexpectedly (exit code: -11), shutting down executor.\n"
            + "(APIServer pid=4001) ERROR 12-01 17:09:00 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: "
            "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
        ),
        {"ready": "fail"},
    ),
    "not yet ready": (
        lambda: until(good(), "Waiting for application startup"),
        {"out-of-memory": "not seen", "ready": "not seen"},
    ),
}


def test_the_good_log_passes_every_rule():
    report = verified(good())
    assert not_passed(report) == {}
    assert states(report)["dispatch"] == "not applicable"
    assert (report.exit_code, report.boots) == (0, 1)


def test_the_good_log_passes_without_an_expected_revision_and_with_its_first_digits():
    assert verified(good(), git_rev=None).passed
    assert verified(good(), git_rev=REVISION[:9]).passed


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_is_caught_by_exactly_its_rules(name):
    make, expected = MUTATIONS[name]
    report = verified(make())
    assert not_passed(report) == expected
    assert report.exit_code == 1
    for finding in report.findings:
        if finding.state in ("fail", "not seen"):
            assert finding.mend and finding.text
        if finding.state == "fail":
            assert finding.evidence, finding
