# ruff: noqa: E501 (log lines are quoted whole)
"""What a failing boot looks like, kind by kind: the wording of vLLM 0.26.0, PyTorch, NCCL, the CUDA runtime and Docker.

START, LOADING, PROFILING and CAPTURING are how far the boot got; the rest is what it ended with.
"""

_API = "(APIServer pid=1) "
_CORE = "(EngineCore pid=118) "
_TP3 = "(Worker_TP3 pid=204) "


def _lines(prefix: str, *texts: str) -> str:
    return "".join(f"{prefix}{text}\n" for text in texts)


def _error(prefix: str, place: str, *texts: str) -> str:
    return _lines(f"{prefix}ERROR 11-30 15:52:40 [{place}] ", *texts)


START = _lines(
    _API,
    "INFO 11-30 15:50:54 [api_utils.py:345]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.0",
    "INFO 11-30 15:50:54 [model.py:623] Resolved architecture: DeepseekV4ForCausalLM",
    "WARNING 11-30 15:50:54 [system_utils.py:299] Found ulimit of 20000 and failed to automatically increase with error "
    "current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`",
) + _lines(
    _TP3,
    "INFO 11-30 15:51:19 [parallel_state.py:1615] world_size=8 rank=3 local_rank=3 "
    "distributed_init_method=tcp://127.0.0.1:56531 backend=nccl",
)
NCCL_NAMED = START + _lines(_TP3, "INFO 11-30 15:51:20 [pynccl.py:113] vLLM is using nccl==2.28.9")
LOADING = (
    NCCL_NAMED
    + _lines(_TP3, "INFO 11-30 15:51:20 [gpu_model_runner.py:5250] Starting to load model /models/DeepSeek-V4-Flash")
    + _lines(_TP3, "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:02<00:02,  2.89s/it]")
)
PROFILING = (
    LOADING
    + _lines(_TP3, "INFO 11-30 15:51:25 [default_loader.py:430] Loading weights took 3.34 seconds")
    + _lines(
        _TP3, "INFO 11-30 15:51:26 [gpu_model_runner.py:5347] Model loading took 17.91 GiB memory and 4.22 seconds"
    )
)
CAPTURING = (
    PROFILING
    + _lines(_TP3, "INFO 11-30 15:51:32 [gpu_worker.py:560] Available KV cache memory: 3.41 GiB")
    + _lines(
        _CORE,
        "INFO 11-30 15:51:32 [kv_cache_utils.py:2115] Overriding num_gpu_blocks=1377 with num_gpu_blocks_override=1280",
    )
    + _TP3
    + "Capturing CUDA graphs (decode, FULL):   0%|          | 0/5 [00:00<?, ?it/s]\r"
    + "Capturing CUDA graphs (decode, FULL):  40%|████      | 2/5 [00:00<00:00,  6.78it/s]\n"
)
CAPTURED = CAPTURING + _lines(
    _TP3, "INFO 11-30 15:51:34 [gpu_model_runner.py:6844] Graph capturing finished in 1 secs, took 0.13 GiB"
)
SERVING = CAPTURED + _lines(
    _API,
    "INFO 11-30 15:51:37 [api_server.py:677] Starting vLLM server on http://0.0.0.0:8000",
    "INFO:     Application startup complete.",
)

CORE_DIED = _error(
    _API,
    "core_client.py:655",
    "Traceback (most recent call last):",
    '  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/utils.py", line 1272, in wait_for_engine_startup',
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
)
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 3 has a total capacity of 23.56 GiB "
    "of which 85.19 MiB is free. Including non-PyTorch memory, this process has 23.46 GiB memory in use."
)


OOM_LINE = _lines(_TP3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.")


def _trace(*frames: str) -> tuple[str, ...]:
    files = "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py"
    return ("Traceback (most recent call last):", *(f'  File "{files}", line 746, in {frame}' for frame in frames))


def worker_oom(*frames: str) -> str:
    """A worker that ran out of GPU memory below these functions, and the engine that says so as well."""
    return (
        _error(
            _TP3,
            "multiproc_executor.py:1007",
            "WorkerProc hit an exception.",
            *_trace("worker_busy_loop", *frames),
            _OOM,
        )
        + _error(
            _CORE,
            "core.py:1330",
            "EngineCore failed to start.",
            *_trace("_initialize_kv_caches", "collective_rpc"),
            "RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate 224.00 MiB.', please check the "
            "stack trace above for the root cause",
        )
        + CORE_DIED
    )


def core_error(*texts: str) -> str:
    """The engine's process failed with these last lines."""
    told = ("EngineCore failed to start.", *_trace("run_engine_core", "__init__"), *texts)
    return _error(_CORE, "core.py:1330", *told) + CORE_DIED


def worker_error(*texts: str) -> str:
    """A worker failed with these last lines before it was ready."""
    told = ("WorkerProc failed to start.", *_trace("__init__", "init_device"), *texts)
    ready = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
    return _error(_TP3, "multiproc_executor.py:901", *told) + core_error(ready)


def api_error(*texts: str) -> str:
    """The API server's process failed with these last lines."""
    return _lines(_API, *_trace("main", "run_server"), *texts)
