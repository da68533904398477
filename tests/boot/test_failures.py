# ruff: noqa: E501 (log lines are quoted whole)
"""Every kind of failure: the log it leaves, the state its process is in, and that the right kind is named."""

from pathlib import Path

import pytest

from sm86.boot import deadline, phases
from sm86.boot.deadline import Expired
from sm86.boot.failures import UNKNOWN, classify, make_scanner
from sm86.boot.kinds import KINDS, Case
from sm86.boot.phases import ALL, BootPhases
from sm86.boot.state import CREATED, EXITED, MISSING, RESTARTING, RUNNING, EngineState
from sm86.spec import load_envelope
from sm86.verify.reader import LogReader
from tests.boot import excerpts as x

LOGS = Path(__file__).parent / "logs"
DIED = EngineState(EXITED, 1)
UP = EngineState(RUNNING)


def judge(log, state=DIED, expired=None, envelope="sm86-262k", chunk=4096, health="", memory=False):
    """The verdict on a boot with this log, fed in chunks."""
    data = log if isinstance(log, bytes) else log.encode()
    boot, reader, scanner = BootPhases(ALL), LogReader(), make_scanner()
    boot.enter(phases.START, 0.0)
    for start in range(0, len(data), chunk):
        for event in reader.feed(data[start : start + chunk]):
            boot.observe(event, float(start))
        scanner.feed(data[start : start + chunk])
    for event in reader.close():
        boot.observe(event, float(len(data)))
    scanner.close()
    boot.failed(float(len(data)))
    return classify(Case(load_envelope(envelope), boot, state, scanner, expired, health, memory))


KILLED = EngineState(EXITED, 137)

CASES = [
    # kind, log, state, words that must be in a shown line
    ("container not started", "", EngineState(CREATED, error="could not select device driver"), ""),
    ("stopped from outside", x.LOADING + "(APIServer pid=1) INFO 11-30 15:51:45 [launcher.py:100] [shutdown] API server: "
     "shutdown triggered\n", EngineState(EXITED, 0), ""),
    ("unknown argument", "usage: vllm [-h] [-v]\nvllm: error: unrecognized arguments: --bogus 1\n", EngineState(EXITED, 2), "--bogus"),
    ("unknown argument", "usage: vllm serve [model_tag] [options]\nvllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' "
     "(choose from 'auto', 'bfloat16')\n", EngineState(EXITED, 2), "invalid choice"),
    ("refused by the launcher", "sm86: there is no model at /models/DeepSeek-V4\nmend: download it\n", EngineState(EXITED, 2), "no model"),
    ("wrong vLLM or broken import", x.api_error("ModuleNotFoundError: No module named 'vllm'"), DIED, "No module named"),
    ("wrong vLLM or broken import", x.api_error(
        "ImportError: /opt/venv/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"),
     DIED, "undefined symbol"),
    ("wrong vLLM or broken import", x.api_error(
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"), DIED, "libcudart"),
    ("driver and libraries differ", x.api_error(
        "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
        "Failed to initialize NVML: Driver/library version mismatch"), DIED, "mismatch"),
    ("driver not usable (803)", x.api_error(
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination"),
     DIED, "Error 803"),
    ("forward compatibility (804)", x.api_error(
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 804: forward compatibility was attempted on non supported HW"),
     DIED, "Error 804"),
    ("driver too old", x.api_error(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver"),
     DIED, "too old"),
    ("GPUs lost by the container", x.api_error("pynvml.NVMLError_Unknown: Unknown Error"), DIED, "Unknown"),
    ("GPU off the bus", x.LOADING + x.worker_error("torch.AcceleratorError: CUDA error: unspecified launch failure"), DIED, "launch"),
    ("no GPU", x.api_error("RuntimeError: Failed to infer device type, please set the environment variable "
                           "`VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue."), DIED, "infer"),
    ("no GPU", x.api_error("RuntimeError: No CUDA GPUs are available"), DIED, "No CUDA"),
    ("no GPU", x.api_error("  Value error, World size (8) is larger than the number of available GPUs (7) in this node. If this is "
                           "intentional and you are using:"), DIED, "World size"),
    ("kernels of another GPU", x.PROFILING + x.core_error(
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"), DIED, "no kernel image"),
    ("model missing", x.api_error("ValueError: Invalid repository ID or local directory specified: '/models/x'."), DIED, "Invalid"),
    ("model missing", x.LOADING + x.worker_error("RuntimeError: Cannot find any model weights with `/models/x`"), DIED, "weights"),
    ("model damaged", x.LOADING + x.worker_error(
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"), DIED, "metadata"),
    ("wrong model", x.api_error("  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported "
                                "architectures: dict_keys(['AfmoeForCausalLM'])"), DIED, "FooForCausalLM"),
    ("wrong model", x.api_error("  Value error, Quantization method specified in the model config (awq) does not match the "
                                "quantization method specified in the `quantization` argument (gptq)."), DIED, "awq"),
    ("GPU memory taken", x.worker_error(
        "ValueError: Free memory on device cuda:3 (22.76/24.0 GiB) on startup is less than desired GPU memory utilization (0.95, "
        "22.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."), DIED, "22.76"),
    ("KV pool too small", x.PROFILING + x.core_error(
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine"),
     DIED, "cache blocks"),
    ("capture OOM", x.CAPTURING + x.worker_oom("compile_or_warm_up_model", "capture_model"), DIED, "Tried to allocate"),
    ("KV pool OOM", x.PROFILING + x.worker_oom("initialize_from_config", "initialize_kv_cache"), DIED, "Tried to allocate"),
    ("profile OOM", x.PROFILING + x.worker_oom("determine_available_memory", "profile_run"), DIED, "Tried to allocate"),
    ("weights OOM", x.LOADING + x.worker_oom("load_model"), DIED, "Tried to allocate"),
    ("serving OOM", x.CAPTURED + x.worker_oom("execute_model"), DIED, "Tried to allocate"),
    ("shared memory too small", x.NCCL_NAMED + "rig:204:204 [3] misc/shmutils.cc:72 NCCL WARN Error: failed to extend "
     "/dev/shm/nccl-Wg7X2a to 9637892 bytes\nrig:204:204 [3] NCCL WARN Error while creating shared memory segment "
     "/dev/shm/nccl-Wg7X2a (size 9637888), error: No space left on device (28)\n" + x.worker_error(
         "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"), DIED, "/dev/shm/nccl"),
    ("host memory taken", x.LOADING + x.core_error(
        "ValueError: Available memory on node 0 (11.2/12.96 GiB) on startup is less than desired CPU memory utilization (0.98, 12.7 GiB)."),
     DIED, "Available memory"),
    ("host OOM", x.LOADING, EngineState(EXITED, 137, oom_killed=True), ""),
    ("host OOM", x.LOADING, KILLED, ""),
    ("host OOM", x.LOADING + "(EngineCore pid=118) ERROR 11-30 15:52:40 [multiproc_executor.py:285] Worker proc VllmWorker-3 died "
     "unexpectedly (exit code: -9), shutting down executor.\n", DIED, "exit code: -9"),
    ("NCCL error", x.NCCL_NAMED + x.worker_error(
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"), DIED, "NCCL error"),
    ("NCCL error", x.NCCL_NAMED + x.worker_error(
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, internal error - please report this issue "
        "to the NCCL developers, NCCL version 2.28.9"), DIED, "DistBackendError"),
    ("port taken", x.api_error("OSError: [Errno 98] Address already in use"), DIED, "Errno 98"),
    ("disk full", x.PROFILING + x.core_error("OSError: [Errno 28] No space left on device: '/cache/triton/x.cubin'"), DIED, "/cache"),
    ("no permission", x.PROFILING + x.core_error("PermissionError: [Errno 13] Permission denied: '/cache/torch_compile'"), DIED, "/cache"),
    ("no permission", x.PROFILING + x.core_error("OSError: [Errno 30] Read-only file system: '/root/.cache'"), DIED, "Read-only"),
    ("kernel compilation failed", x.PROFILING + x.core_error(
        "RuntimeError: Ninja build failed. Ninja output:", "ninja: build stopped: subcommand failed."), DIED, "ninja"),
    ("engine ready timeout", x.LOADING + x.api_error(
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight loading for large "
        "models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S)."), DIED, "600s"),
    ("restart loop", x.LOADING, EngineState(RESTARTING, 1, restart_count=3, restart_cap=3), ""),
    ("worker died", x.LOADING + "(EngineCore pid=118) ERROR 11-30 15:52:40 [multiproc_executor.py:285] Worker proc VllmWorker-3 died "
     "unexpectedly (exit code: -11), shutting down executor.\n" + x.CORE_DIED, DIED, "exit code: -11"),
    ("killed by a signal", x.LOADING, EngineState(EXITED, 139), ""),
    ("engine error", x.PROFILING + x.core_error("AssertionError: block table is not sorted"), DIED, "block table"),
    ("ended early", x.LOADING, EngineState(EXITED, 0), ""),
    ("removed", x.LOADING, EngineState(MISSING), ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "log", "state", "shown"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_kinds_of_failure(kind, log, state, shown):
    failure = judge(log, state)
    assert failure.kind == kind
    assert failure.what and failure.mend
    assert "{" not in failure.what + failure.mend
    assert any(shown in text for _, text in failure.lines) or not shown
    lines = log.split("\n")
    for number, text in failure.lines:
        assert text.strip() in lines[number - 1], "the line is quoted with its own number"


GAVE_UP = [
    ("NCCL init stall", x.NCCL_NAMED, deadline.NCCL_STALL, 180),
    ("NCCL init stall", x.START + "(EngineCore pid=118) INFO 11-30 15:53:20 [shm_broadcast.py:698] No available shared memory broadcast "
     "block found in 60 seconds. This typically happens when some processes are hanging\n", deadline.SILENCE, 300),
    ("silent hang", x.PROFILING, deadline.SILENCE, 1200),
    ("gave up", x.LOADING, deadline.LIMIT, 3600),
    ("bad health", x.SERVING, deadline.UNREADY, 60),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "log", "why", "seconds"), GAVE_UP)
def test_kinds_of_giving_up(kind, log, why, seconds):
    failure = judge(log, UP, Expired(why, float(seconds)), health="HTTP 503")
    assert failure.kind == kind
    assert str(seconds) in failure.what or "503" in failure.what
    assert failure.lines, "the last lines are shown where no line names the cause"


def test_every_kind_of_the_table_has_a_case():
    tested = {case[0] for case in CASES} | {case[0] for case in GAVE_UP}
    assert {kind.name for kind in KINDS} == tested


def test_a_cause_in_the_log_comes_before_giving_up_on_its_consequences():
    failure = judge(x.CAPTURING + x.worker_oom("capture_model"), UP, Expired(deadline.SILENCE, 900.0))
    assert failure.kind == "capture OOM"


def test_a_restart_loop_names_the_cause_that_is_in_the_log():
    state = EngineState(RESTARTING, 1, restart_count=3, restart_cap=3)
    assert judge(x.CAPTURING + x.worker_oom("capture_model"), state).kind == "capture OOM"


def test_an_oom_without_a_traceback_is_placed_by_the_phase():
    found = [judge(begun + x.OOM_LINE).kind for begun in (x.LOADING, x.PROFILING, x.CAPTURING, x.CAPTURED)]
    assert found == ["weights OOM", "profile OOM", "capture OOM", "serving OOM"]


def test_a_traceback_that_is_over_does_not_place_what_comes_later():
    handled = "(Worker_TP3 pid=204) " + "\n(Worker_TP3 pid=204) ".join(x._trace("load_model")) + "\n"
    later = "(Worker_TP3 pid=204) Traceback (most recent call last):\n" + x.OOM_LINE
    assert judge(x.CAPTURING + handled + later).kind == "capture OOM"


def test_an_oom_is_placed_by_the_phase_of_its_line_even_when_other_ranks_went_on():
    rest = x.CAPTURED.removeprefix(x.LOADING)
    assert judge(x.LOADING + x.OOM_LINE + rest).kind == "weights OOM"


def test_an_estimate_of_nothing_does_not_hide_an_oom_in_the_capture():
    estimate = "(Worker_TP3 pid=204) INFO 11-30 15:51:31 [gpu_model_runner.py:6737] Estimated CUDA graph memory: 0.00 GiB total\n"
    log = x.PROFILING + estimate + x.CAPTURING.removeprefix(x.PROFILING) + x.worker_oom("capture_model")
    assert judge(log).kind == "capture OOM"


def test_the_real_log_of_a_pool_one_block_too_small():
    failure = judge((LOGS / "kv_too_small.log").read_bytes(), chunk=333)
    assert failure.kind == "KV pool too small"
    assert failure.lines[0][0] == 94


REAL = [
    ("noweights", "model missing", "Cannot find any model weights"),
    ("wrong_model", "wrong model", "FooForCausalLM"),
    ("damaged", "model damaged", "SafetensorError"),
    ("port_taken", "port taken", "Errno 98"),
    ("kv_small", "KV pool too small", "max seq len (2048)"),
    ("killed_worker", "worker died", "WorkerProc initialization failed"),
    ("killed_enginecore", "worker died", "Engine core initialization failed"),
]


@pytest.mark.parametrize(("name", "kind", "shown"), REAL)
def test_real_failures_of_the_cpu_engine(name, kind, shown):
    log = (LOGS / f"{name}.log").read_bytes()
    failure = judge(log, envelope="cpu-smoke", chunk=999)
    assert failure.kind == kind
    assert shown in failure.lines[0][1]
    assert shown in log.split(b"\n")[failure.lines[0][0] - 1].decode()


def test_a_worker_that_died_without_a_word_while_memory_ran_out():
    log = (LOGS / "killed_worker.log").read_bytes()
    assert judge(log, memory=True).kind == "host OOM"
    # an error of its own says more than what the kernel did meanwhile
    assert judge(x.PROFILING + x.core_error("AssertionError: block table"), memory=True).kind == "engine error"


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_chunk_borders_change_nothing(chunk):
    log = x.CAPTURING + x.worker_oom("compile_or_warm_up_model", "capture_model")
    assert judge(log, chunk=chunk) == judge(log)


def test_the_launchers_own_words_are_the_verdict():
    log = "sm86: GPU-1 is held by envelope sm86-64k\nmend: invoke down --envelope sm86-64k\n"
    failure = judge(log, EngineState(EXITED, 2))
    assert failure.what == "GPU-1 is held by envelope sm86-64k"
    assert failure.mend == "invoke down --envelope sm86-64k"
    assert failure.could_not_run


def test_information_and_warnings_are_no_causes():
    calm = (
        "(APIServer pid=1) INFO 11-30 15:50:54 [x.py:1] retrying: [Errno 98] Address already in use\n"
        "(APIServer pid=1) WARNING 11-30 15:50:54 [x.py:1] CUDA out of memory was caught, retrying\n"
    )
    assert judge(x.LOADING + calm, EngineState(EXITED, 0)).kind == "ended early"


def test_the_same_words_of_eight_ranks_are_shown_once():
    log = x.LOADING
    for rank in range(8):
        log += f"(Worker_TP{rank} pid={200 + rank}) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.\n"
    assert len(judge(log).lines) == 1


def test_a_log_without_end_or_sense_is_bounded():
    noise = b"\xff\x00garbage Error: " * 50_000 + b"\n" + b"torch.OutOfMemoryError: CUDA out of memory\n" * 20_000
    failure = judge(x.LOADING.encode() + noise, chunk=1 << 16)
    assert failure.kind == "weights OOM"
    assert sum(len(text) for _, text in failure.lines) < 5000


def test_nothing_known_at_all_is_unknown_with_the_last_lines():
    failure = judge("strange words\n" * 3, EngineState(RUNNING), None)
    assert failure.kind in (UNKNOWN, "ended early")
    assert failure.lines[-1][1] == "strange words"
