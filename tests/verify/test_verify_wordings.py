"""Each known wording gives its event, whatever the release it comes from; words that only look like it do not."""

import pytest

from sm86.verify import events as ev
from sm86.verify.lines import decode, messages
from sm86.verify.reader import LogReader, read_events
from sm86.verify.wordings import WORDINGS, At
from sm86.verify.wordings.wording import FIRST, LAST

FIELDS = ("line", "text", "source")


def fields(event: ev.Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__dataclass_fields__ if name not in FIELDS}


def events_of(line: str, traffic: bool = False) -> list[tuple[type, dict[str, object]]]:
    found = read_events([f"{line}\n".encode()], traffic)
    return [(type(event), fields(event)) for event in found if not isinstance(event, ev.ErrorRaised)]


INFO, WARNING, ERROR = (
    f"(EngineCore pid=1) {level} 11-30 15:50:56 [a.py:1] " for level in ("INFO", "WARNING", "ERROR")
)
BAR = "|#####     | "
REST = " [00:00<00:00,  6.78it/s]"

SAMPLES = [
    # the launcher and the plugin
    ("[sm86] manifest begin v1", ev.ManifestMark, {"begin": True, "version": 1}),
    ("[sm86] manifest end", ev.ManifestMark, {"begin": False, "version": 0}),
    (
        '[sm86] argv=["serve","a b"]',
        ev.ManifestEntry,
        {"section": "manifest", "key": "argv", "value": ["serve", "a b"]},
    ),
    (
        "(Worker_TP1 pid=2) [sm86] backend attention_backend=X",
        ev.ManifestEntry,
        {"section": "backend", "key": "attention_backend", "value": "X"},
    ),
    (
        "(Worker_TP0 pid=3) SM86 cudagraph hit cg_mode=FULL uniform=true capture_sizes=[1,4] reason=captured",
        ev.DispatchLine,
        {
            "outcome": "hit",
            "uniform": True,
            "said": {
                "cg_mode": "FULL",
                "uniform": "true",
                "capture_sizes": "[1,4]",
                "reason": "captured",
            },
        },
    ),
    (
        INFO + "SM86 cudagraph skip uniform=False",
        ev.DispatchLine,
        {"outcome": "skip", "uniform": False, "said": {"uniform": "False"}},
    ),
    (INFO + "SM86 cudagraph miss", ev.DispatchLine, {"outcome": "miss", "uniform": None, "said": {}}),
    # configuration
    ("sm86: GPU 3 is busy", ev.LauncherRefused, {"what": "GPU 3 is busy"}),
    (INFO + " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.0", ev.VersionBanner, {"version": "0.26.0"}),
    (INFO + "Using max model len 262144", ev.ContextChosen, {"tokens": 262144}),
    (
        INFO
        + "Auto-fit max_model_len: reduced from 1048576 to 3912 to fit in available GPU memory (1.58 GiB available "
        "for KV cache)",
        ev.ContextReduced,
        {"asked": 1048576, "tokens": 3912},
    ),
    (
        INFO + "Auto-fit max_model_len: full model context length 4096 fits in available GPU memory",
        ev.ContextReduced,
        {"asked": 4096, "tokens": 4096},
    ),
    (
        ERROR
        + "  Value error, User-specified max_model_len (2097152) is greater than the derived max_model_len (max_pos",
        ev.ContextRefused,
        {"asked": 2097152},
    ),
    (INFO + "Using fp8 data type to store kv cache. It reduces", ev.KvCacheDtype, {"dtype": "fp8"}),
    (INFO + "Using DeepSeek's fp8_ds_mla KV cache format. To use", ev.KvCacheDtype, {"dtype": "fp8_ds_mla"}),
    (INFO + "Using AttentionBackendEnum.B12X_MLA_SPARSE backend.", ev.AttentionBackend, {"name": "B12X_MLA_SPARSE"}),
    (INFO + "Using FLASH_ATTN backend.", ev.AttentionBackend, {"name": "FLASH_ATTN"}),
    (
        INFO + "Using FLASHMLA_SPARSE attention backend out of potential backends: ['FLASHMLA_SPARSE'].",
        ev.AttentionBackend,
        {"name": "FLASHMLA_SPARSE"},
    ),
    (INFO + "Using 'MARLIN' WNA16 MoE backend.", ev.MoeBackend, {"name": "MARLIN"}),
    (INFO + "Using 'B12X' NvFp4 MoE backend out of potential backends: ['B12X'].", ev.MoeBackend, {"name": "B12X"}),
    (INFO + "Using TRITON Unquantized MoE backend out of potential", ev.MoeBackend, {"name": "TRITON"}),
    (INFO + "Using Marlin backend for WNA16 MoE (group_size=128, num_bits=4)", ev.MoeBackend, {"name": "Marlin"}),
    (
        INFO + "world_size=8 rank=6 local_rank=6 distributed_init_method=tcp://127.0.0.1:1 backend=nccl",
        ev.WorkerStarted,
        {"world_size": 8, "rank": 6},
    ),
    (INFO + "vLLM is using nccl==2.28.9", ev.NcclVersion, {"version": "2.28.9"}),
    (WARNING + "Unknown vLLM environment variable detected: VLLM_X", ev.UnknownEnvironment, {"name": "VLLM_X"}),
    ("ValueError: Unknown vLLM environment variable detected: VLLM_X", ev.UnknownEnvironment, {"name": "VLLM_X"}),
    (
        WARNING
        + "CUDAGraphMode.FULL is not supported with X backend (support: AttentionCGSupport.UNIFORM_BATCH); setting "
        "cudagraph_mode=FULL_DECODE_ONLY",
        ev.GraphModeChanged,
        {"mode": "FULL_DECODE_ONLY"},
    ),
    (
        INFO + "Cudagraph mode FULL is not compatible with compilation mode 0.Overriding to NONE.",
        ev.GraphModeChanged,
        {"mode": "NONE"},
    ),
    (
        WARNING
        + "KV connector C requires PIECEWISE CUDA graph mode due to layerwise async operations that cannot be captured "
        "in CUDA graphs. Overriding cudagraph_mode from FULL to PIECEWISE.",
        ev.GraphModeChanged,
        {"mode": "PIECEWISE"},
    ),
    (WARNING + "Truncating max_cudagraph_capture_size to 2", ev.GraphSizesChanged, {}),
    (
        INFO + "DSA indexer decode path: use_flattening=False (next_n=1, use_fp4_indexer_cache=False)",
        ev.DecodeQueryLength,
        {"tokens": 1},
    ),
    # loading and memory, across releases
    (INFO + "Starting to load model /models/x...", ev.LoadStarted, {}),
    (
        "(Worker_TP0 pid=1) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:25<01:17, 25.97s/it]",
        ev.WeightsProgress,
        {"done": 1, "total": 4, "percent": 25},
    ),
    (
        "Loading safetensors using Fastsafetensor loader: 100% Completed | 11/11 [00:40<00:00,  4.64s/it]",
        ev.WeightsProgress,
        {"done": 11, "total": 11, "percent": 100},
    ),
    (INFO + "Loading weights took 86.13 seconds", ev.WeightsLoaded, {"seconds": 86.13}),
    (
        INFO + "Model loading took 73.25 GiB memory and 90.032408 seconds",
        ev.ModelLoaded,
        {"gib": 73.25, "seconds": 90.032408},
    ),
    (INFO + "Model loading took 73.25 GiB and 90.032408 seconds", ev.ModelLoaded, {"gib": 73.25, "seconds": 90.032408}),
    (INFO + "Available KV cache memory: 0.3 GiB", ev.AvailableKv, {"gib": 0.3}),
    (
        INFO + "Overriding num_gpu_blocks=5834 with num_gpu_blocks_override=1790",
        ev.KvOverride,
        {"applied_from": 5834, "to": 1790},
    ),
    (INFO + "GPU KV cache size: 17,359,567 tokens", ev.KvCacheSize, {"tokens": 17359567}),
    (INFO + "HPU KV cache size: 4,096 tokens", ev.KvCacheSize, {"tokens": 4096}),
    (
        INFO + "Maximum concurrency for 16,384 tokens per request: 1059.54x",
        ev.MaxConcurrency,
        {"tokens": 16384, "times": 1059.54},
    ),
    (
        ERROR
        + "ValueError: To serve at least one request with the model's max seq len (393216), (1.73 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (1.72 GiB). Based on the available memory, the "
        "estimated maximum model length is 392960. Try increasing",
        ev.KvTooSmall,
        {"tokens": 393216, "needed_gib": 1.73, "available_gib": 1.72, "possible_tokens": 392960},
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (4096), (1.0 GiB KV",
        ev.KvTooSmall,
        {"tokens": 4096, "needed_gib": None, "available_gib": None, "possible_tokens": None},
    ),
    (INFO + "CUDA graph memory profiling is enabled (default since", ev.MemoryProfilerNotice, {"enabled": True}),
    (
        WARNING
        + "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it, OOM",
        ev.MemoryProfilerNotice,
        {"enabled": False},
    ),
    # graphs
    (
        INFO + "Profiling CUDA graph memory: PIECEWISE=4 (largest=8), FULL=3 (largest=4)",
        ev.GraphProfile,
        {"graphs": {"PIECEWISE": 4, "FULL": 3}},
    ),
    (INFO + "Estimated CUDA graph memory: 0.00 GiB total", ev.GraphEstimate, {"gib": 0.0}),
    (
        f"Capturing CUDA graphs (decode, FULL):  50%{BAR}1/2{REST}",
        ev.GraphProgress,
        {"family": "decode, FULL", "done": 1, "total": 2, "percent": 50},
    ),
    (
        f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%{BAR}7/7{REST}",
        ev.GraphProgress,
        {"family": "mixed prefill-decode, PIECEWISE", "done": 7, "total": 7, "percent": 100},
    ),
    (
        f"Capturing CUDA graphs (PIECEWISE): 100%{BAR}7/7{REST}",
        ev.GraphProgress,
        {"family": "PIECEWISE", "done": 7, "total": 7, "percent": 100},
    ),
    (
        f"Capturing prefill CUDA graphs (FULL): 100%{BAR}7/7{REST}",
        ev.GraphProgress,
        {"family": "prefill, FULL", "done": 7, "total": 7, "percent": 100},
    ),
    (
        f"Capturing CUDA graph shapes: 100%{BAR}35/35{REST}",
        ev.GraphProgress,
        {"family": "", "done": 35, "total": 35, "percent": 100},
    ),
    (
        INFO + "Graph capturing finished in 44 secs, took 2.23 GiB",
        ev.GraphCaptureFinished,
        {"seconds": 44.0, "gib": 2.23},
    ),
    (
        INFO + "CUDA graph pool memory: 0.18 GiB (actual), 2.54 GiB (estimated), difference: 2.35 GiB (1280.9%).",
        ev.GraphPool,
        {"actual_gib": 0.18, "estimated_gib": 2.54},
    ),
    # life
    (INFO + "init engine (profile, create kv cache, warmup model) took 9.55 s", ev.EngineInitTook, {"seconds": 9.55}),
    (
        INFO + "init engine (profile, create kv cache, warmup model) took 20.79 s (compilation: 4.37 s)",
        ev.EngineInitTook,
        {"seconds": 20.79},
    ),
    (INFO + "Starting vLLM server on http://0.0.0.0:8000", ev.ServerStarting, {"address": "http://0.0.0.0:8000"}),
    ("INFO:     Application startup complete.", ev.StartupComplete, {}),
    ("(APIServer pid=1) INFO:     Shutting down", ev.ShutdownStarted, {"by_signal": False}),
    (INFO + "[shutdown] API server: shutdown triggered", ev.ShutdownStarted, {"by_signal": True}),
    (INFO + "[shutdown] EngineCore: trigger received signal=SIGTERM", ev.ShutdownStarted, {"by_signal": True}),
    (INFO + "Shutdown initiated (timeout=0)", ev.ShutdownStarted, {"by_signal": True}),
    (ERROR + "Traceback (most recent call last):", ev.Traceback, {}),
    (ERROR + "EngineCore failed to start.", ev.EngineDead, {"cause": "start"}),
    (ERROR + "EngineCore encountered a fatal error.", ev.EngineDead, {"cause": "engine"}),
    (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ev.EngineDead,
        {"cause": "start"},
    ),
    (
        ERROR + "Worker proc VllmWorker-3 died unexpectedly (exit code: 1), shutting down executor.",
        ev.EngineDead,
        {"cause": "worker"},
    ),
    ("RuntimeError: Process APIServer_0 (PID: 12) died with exit code 1", ev.EngineDead, {"cause": "worker"}),
    (ERROR + "Application startup failed. Exiting.", ev.EngineDead, {"cause": "server"}),
    (
        INFO + "No available shared memory broadcast block found in 60 seconds. This typically",
        ev.CollectiveStall,
        {},
    ),
]


@pytest.mark.parametrize(
    ("line", "kind", "expected"), SAMPLES, ids=[f"{kind.__name__}-{n}" for n, (_, kind, _) in enumerate(SAMPLES)]
)
def test_a_wording_gives_its_event(line, kind, expected):
    assert [values for found, values in events_of(line) if found is kind] == [expected]


def test_every_wording_has_a_sample():
    lines = [line for line, *_ in [*SAMPLES, *OUT_OF_MEMORY, *OTHERS]]
    found = [message for line in lines for message in messages(decode(line.encode()), None)]
    unread = [
        words.pattern.pattern
        for words in WORDINGS
        if not any(words.needle in m.text and words.read(At(1, m.text, None)) for m in found)
    ]
    assert unread == []


def test_every_needle_is_in_what_its_pattern_matches():
    lines = [line for line, *_ in [*SAMPLES, *OUT_OF_MEMORY, *OTHERS]]
    for message in (message for line in lines for message in messages(decode(line.encode()), None)):
        for words in WORDINGS:
            if words.read(At(1, message.text, None)) is not None:
                assert words.needle in message.text


def test_the_one_line_of_the_kv_cache_gives_both_events():
    for size in ("GPU KV cache size", "HBM + host KV cache size"):
        line = INFO + f"{size}: 46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22.75x"
        assert events_of(line) == [
            (ev.KvCacheSize, {"tokens": 46592}),
            (ev.MaxConcurrency, {"tokens": 2048, "times": 22.75}),
        ]


OTHERS = [
    (INFO + "GPU KV cache size: 46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22.75x",),
    (WARNING + "Hybrid KV cache manager is disabled for this hybrid model, This means",),
    (WARNING + "Turning off hybrid kv cache manager because `--kv-transfer-config` selects",),
    (WARNING + "There is a latency regression when using chunked local attention with the hybrid KV cache manager. D",),
    (WARNING + "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent",),
    (INFO + "Cudagraph is disabled under eager mode",),
    (ERROR + "WorkerProc failed to start.",),
    ("torch._inductor.exc.InductorException: x",),
    (INFO + "non-default args: {'max_model_len': 8192}",),
    (INFO + "Initializing a V1 LLM engine (v0.26.0) with config: model='m', seed=0",),
    ("RuntimeError: [enforce fail at alloc.cpp:1] not enough memory: you tried to allocate 9 bytes.",),
    (ERROR + "WorkerProc hit an exception.",),
    ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",),
    (WARNING + "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",),
    ('(APIServer pid=1) INFO:     127.0.0.1:47850 - "GET /health HTTP/1.1" 200 OK',),
    (
        INFO + "Engine 000: Avg prompt throughput: 391.8 tokens/s, Avg generation throughput: 101.3 tokens/s, "
        "Running: 1 reqs, Waiting: 2 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%",
    ),
]

OUT_OF_MEMORY = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", "gpu"),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu"),
    (ERROR + "RuntimeError: CUDA error: out of memory", "gpu"),
    ("RuntimeError: CUDA driver error: out of memory", "gpu"),
    ("cudaErrorMemoryAllocation", "gpu"),
    ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "gpu"),
    ("host:12:34 [0] misc/x.cc:1 NCCL WARN Cuda failure 2 'out of memory'", "gpu"),
    ("Last error: Cuda failure 'out of memory'", "gpu"),
    (ERROR + "Worker failed with error 'CUDA out of memory. Tried to allocate', please check", "gpu"),
    (ERROR + "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization", "gpu"),
    (ERROR + "CUDA out of memory occurred when warming up sampler with 4 dummy requests.", "gpu"),
    ("ValueError: No available memory for the cache blocks. Try increasing", "kv"),
    ("ValueError: To serve at least one request with the model's max seq len (4096), (1 GiB KV", "kv"),
    (
        "ValueError: Free memory on device cuda:0 (22.76/24.0 GiB) on startup is less than desired GPU memory "
        "utilization",
        "busy",
    ),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried", "host"),
    ("OSError: [Errno 12] Cannot allocate memory", "host"),
    ("MemoryError", "host"),
    ("kernel: Out of memory: Killed process 123 (python3)", "host"),
    ("Memory cgroup out of memory: Killed process 123 (VLLM::Worker_TP0)", "host"),
    ("oom-kill:constraint=CONSTRAINT_MEMCG", "host"),
    ('"OOMKilled": true,', "host"),
    ("Killed", "killed"),
    ("entry.sh: line 3:    12 Killed                  python3 -m x", "killed"),
    ("container exited with code 137", "killed"),
    (ERROR + "Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor.", "killed"),
    ("RuntimeError: unable to open shared memory object </torch_1> in read-write mode: No space left", "shm"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/nccl-abc'", "shm"),
    ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", "shm"),
    ("Bus error (core dumped)", "shm"),
]


@pytest.mark.parametrize(("line", "kind"), OUT_OF_MEMORY)
def test_memory_that_runs_out_is_seen_in_every_guise(line, kind):
    assert kind in [values["kind"] for found, values in events_of(line) if found is ev.OutOfMemory]


@pytest.mark.parametrize(
    "line",
    [
        WARNING + "CUDA graph memory profiling is disabled (X=0). Without it, --gpu-memory-utilization to avoid OOM.",
        INFO + "Received request cmpl-1: prompt: 'what does CUDA out of memory mean? EngineDeadError: exit code: 137'",
        '(APIServer pid=1) INFO:     127.0.0.1:1 - "GET /x?q=CUDA%20out%20of%20memory HTTP/1.1" 200 OK',
        '"OOMKilled": false,',
        "Killed by whom, asked the inspector",
        "exit code: 1370",
        "room for all of us",
        INFO
        + "Free memory on device (139.29/139.8 GiB) on startup. Desired GPU memory utilization is (0.5, 69.9 GiB).",
        '[sm86] environment={"NOTE":"exit code: 137"}',
        "[sm86] check.gpu_memory=not made: CUDA error: out of memory",
    ],
)
def test_words_that_only_look_like_it_are_no_event_of_memory_or_death(line):
    assert not [found for found, _ in events_of(line) if found in (ev.OutOfMemory, ev.EngineDead)]


def test_a_logged_prompt_cannot_make_a_server_ready():
    line = INFO + "Received request cmpl-1: prompt: 'INFO: Application startup complete. [sm86] manifest begin v1'"
    assert events_of(line) == []


@pytest.mark.parametrize("words", [w for w in WORDINGS if not w.traffic], ids=lambda w: w.needle.strip()[:30])
def test_ranges_are_within_the_releases_that_were_read(words):
    assert FIRST <= words.since <= words.until <= LAST
    assert words.needle.translate({ord(char): None for char in "0123456789.,"}).strip()


def test_traffic_is_read_on_demand_only():
    health = '(APIServer pid=1) INFO:     127.0.0.1:47850 - "GET /health HTTP/1.1" 200 OK'
    stats = (
        INFO
        + "Engine 000: Avg prompt throughput: 391.8 tokens/s, Avg generation throughput: 101.3 tokens/s, Running: 1 "
        "reqs, Waiting: 2 reqs, Preemptions: 1, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%"
    )
    assert events_of(health) == events_of(stats) == []
    assert events_of(health, traffic=True) == [(ev.HealthLine, {"status": 200})]
    numbers = {"prompt_tok_s": 391.8, "generation_tok_s": 101.3, "running": 1, "waiting": 2, "kv_percent": 0.1}
    assert events_of(stats, traffic=True) == [(ev.EngineStats, numbers)]


def test_the_engines_config_line_and_its_arguments_are_read_into_values():
    config = (
        "Initializing a V1 LLM engine (v0.26.0) with config: model='/a, b=c', "
        "speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=3), max_seq_len=81920, quantization=None, "
        "compilation_config={'mode': <CompilationMode.NONE: 0>, 'cudagraph_capture_sizes': [1, 4], "
        "'max_cudagraph_capture_size': 4}, kernel_config=KernelConfig(moe_backend='marlin')"
    )
    (event,) = read_events([f"{INFO}{config}\n".encode()])
    assert isinstance(event, ev.EngineInitialised)
    assert event.version == "0.26.0"
    assert event.config["model"] == "'/a, b=c'"
    assert event.config["speculative_config"] == "SpeculativeConfig(method='mtp', num_spec_tokens=3)"
    assert event.config["max_seq_len"] == "81920"
    assert event.compilation["cudagraph_capture_sizes"] == "[1, 4]"
    assert event.config["kernel_config"] == "KernelConfig(moe_backend='marlin')"


@pytest.mark.parametrize(
    "line",
    [
        "Overriding num_gpu_blocks=2695 with num_gpu_blocks_override=163",
        "[sm86] kv_cache_dtype=fp8",
        "Using max model len 8192",
        "Unknown vLLM environment variable detected: VLLM_ATT",
        "non-default args: {'max_model_len': 8192",
    ],
)
def test_a_value_that_may_be_cut_at_the_end_of_the_log_is_no_event(line):
    reader = LogReader()
    assert reader.feed(line.encode()) == []
    assert reader.close() == []
    assert len(list(read_events([line.encode() + b"\n"]))) == 1
