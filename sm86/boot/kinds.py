"""The kinds of failure that a boot can end in: the words that show each, what else must hold, and a mend. Pure.

The order of the table is the order of judgement: causes before consequences. A worker that died because its GPU
was full is "capture OOM"; that it died is what remains to be said when no cause is in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sm86.boot import deadline, phases
from sm86.boot.deadline import Expired
from sm86.boot.phases import BootPhases
from sm86.boot.scan import Line, Scanner
from sm86.boot.state import CREATED, EXITED, MISSING, EngineState
from sm86.spec import Envelope

RANK_WAITS = "rank waits"
STOPPED = "stopped"
MEND = "mend"
ENGINE_ERROR = "engine error"

_CONSEQUENCES = re.compile(
    r"Engine core initialization failed"
    r"|See (?:root cause|stack trace) \(?above|See stack trace for root cause"
    r"|EngineDeadError|WorkerProc initialization failed"
)
"""Errors that only say that another process has failed."""
"""Notices that the scanner keeps beside the table's words: they are not errors."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known when a boot has failed. expired: the bound that was passed, None when the server died;
    memory_ran_out: the kernel ended some process of this machine for want of memory meanwhile."""

    envelope: Envelope
    phases: BootPhases
    state: EngineState
    scanner: Scanner
    expired: Expired | None = None
    health: str = ""
    memory_ran_out: bool = False

    def stage_of(self, line: Line) -> str:
        """Where the engine was when it wrote the line: by its traceback, else by the phase that ran."""
        return STAGE_OF_FRAME.get(line.frame) or self.phases.at_line(line.number)


Sees = Callable[[Case, tuple[Line, ...]], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure.

    words: patterns of which one line at least must match; none where the log need not say it. sees: what else must
    hold. stage: where the engine must have been when it wrote the line. could_not_run: nothing was started that could
    be judged. `what` and `mend` may use {phase}, {code}, {signal}, {restarts}, {cap}, {seconds}, {found} (the first
    line), {detail} (the engine's words), {health} and {name}.
    """

    name: str
    what: str
    mend: str
    words: tuple[str, ...] = ()
    sees: Sees = field(default=lambda case, lines: True)
    stage: tuple[str, ...] = ()
    could_not_run: bool = False


KV_ALLOCATION = "kv allocation"

STAGE_OF_FRAME = {
    "init_device": phases.START,
    "load_model": phases.LOAD,
    "determine_available_memory": phases.PROFILE,
    "profile_run": phases.PROFILE,
    "profile_cudagraph_memory": phases.PROFILE,
    "initialize_kv_cache": KV_ALLOCATION,
    "initialize_kv_cache_tensors": KV_ALLOCATION,
    "compile_or_warm_up_model": phases.PROFILE,
    "capture_model": phases.CAPTURE,
}
"""Functions of vLLM's worker (0.20 to 0.33): in a traceback, the innermost of them says what it was doing."""

_GPU_OOM = (
    r"\bOutOfMemoryError\b",
    r"CUDA out of memory",
    r"CUDA (?:driver )?error: out of memory",
    r"CUDA_ERROR_OUT_OF_MEMORY",
    r"cudaErrorMemoryAllocation",
    r"CU\w+_STATUS_ALLOC_FAILED",
    r"[Cc]uda failure \d* ?'?out of memory",
)


_PROCESS_MISSED = (r"Engine core initialization failed", r"WorkerProc initialization failed")


def is_consequence(line: Line) -> bool:
    """Does the line only say that another process has failed."""
    return bool(_CONSEQUENCES.search(line.text))


def _died(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.expired is None


def _gave_up(kind: str) -> Sees:
    return lambda case, lines: case.expired is not None and case.expired.kind == kind


def _stalled(case: Case, lines: tuple[Line, ...]) -> bool:
    if case.expired is None:
        return False
    if case.expired.kind == deadline.NCCL_STALL:
        return True
    # ranks that wait for each other before any weight was read have not joined either
    waits = case.scanner.matches(RANK_WAITS)
    return case.phases.current == phases.START and bool(waits) and case.envelope.serve.tensor_parallel > 1


def _launcher_refused(case: Case, lines: tuple[Line, ...]) -> bool:
    return _died(case, lines) and bool(case.scanner.matches(MEND))


def _host_oom(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.state.oom_killed or bool(lines)


def _shot_with_137(case: Case, lines: tuple[Line, ...]) -> bool:
    return _died(case, lines) and case.state.exit_code == 137


def _stopped(case: Case, lines: tuple[Line, ...]) -> bool:
    return _died(case, lines) and case.state.exit_code in (0, 143, None) and bool(case.scanner.matches(STOPPED))


def _died_silently(case: Case, lines: tuple[Line, ...]) -> bool:
    # a worker that is killed leaves no line of its own, only those of the processes that miss it
    told = case.scanner.matches(ENGINE_ERROR)
    return bool(lines) and all(is_consequence(line) for line in told)


def _died_silently_of_memory(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.memory_ran_out and _died_silently(case, lines)


def _restarting(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.state.restart_count > 0


def _by_signal(case: Case, lines: tuple[Line, ...]) -> bool:
    return _died(case, lines) and (case.state.exit_code or 0) > 128


def _never_ran(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.state.kind == CREATED or (bool(case.state.error) and case.state.kind == EXITED)


KINDS: tuple[Kind, ...] = (
    # --- it never ran, or was refused before vLLM
    Kind(
        "container not started",
        "the engine could not start the container: {detail}",
        "mend what it names; docker inspect {name} has the rest",
        sees=_never_ran,
        could_not_run=True,
    ),
    Kind(
        "stopped from outside",
        "somebody stopped the server while it started, in phase {phase}",
        "start it again: invoke up --envelope {name}",
        sees=_stopped,
    ),
    Kind(
        "unknown argument",
        "vLLM does not take an argument it was given: {found}",
        "see that the image's vLLM is the pinned one (invoke build), and what the envelope's extra_args say",
        (
            r"error: unrecognized arguments",
            r"error: argument .*(?:invalid|expected)",
            r"error: the following arguments are required",
        ),
    ),
    Kind(
        "refused by the launcher", "{found}", "mend what it names", (r"^sm86: ",), _launcher_refused, could_not_run=True
    ),
    # --- the installation
    Kind(
        "wrong vLLM or broken import",
        "the engine's Python cannot import what it needs: {found}",
        "use the image of invoke build; with --engine local, the environment that has the pinned vLLM",
        (
            r"^(?:ModuleNotFoundError|ImportError): ",
            r"undefined symbol: ",
            r"cannot open shared object file",
            r"version `(?:GLIBC|CXXABI|GLIBCXX)_[\d.]+' not found",
            r"ModuleNotFoundError: No module named '(?:vllm|torch|flashinfer|sm86)",
        ),
    ),
    # --- the driver and the GPUs
    Kind(
        "driver and libraries differ",
        "the NVIDIA driver in the kernel and its libraries are of different versions",
        "reboot the machine (a driver update was installed), or reload the driver's modules",
        (r"[Dd]river/library version mismatch", r"NVMLError_LibRmVersionMismatch"),
    ),
    Kind(
        "driver not usable (803)",
        "CUDA refuses the combination of display driver and CUDA libraries (error 803)",
        "hand the GPUs over as devices, not by runtime nvidia; keep any other libcuda.so out of the library path",
        (r"Error 803", r"unsupported display driver ?/ ?cuda driver combination", r"cudaErrorSystemDriverMismatch"),
    ),
    Kind(
        "forward compatibility (804)",
        "CUDA's forward compatibility was tried on a GPU that does not have it (error 804)",
        "take the cuda compat folder out of the library path; GeForce GPUs need driver 580 or newer itself",
        (r"Error 804", r"forward compatibility was attempted on non supported HW"),
    ),
    Kind(
        "driver too old",
        "the NVIDIA driver is too old for the CUDA in the image",
        "install driver 580 or newer (580.126.09 is validated), then reboot",
        (
            r"NVIDIA driver on your system is too old",
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"unsatisfied condition: cuda\s*>=",
        ),
    ),
    Kind(
        "GPUs lost by the container",
        "NVML fails inside the container: Unknown Error",
        "start it again (invoke down, invoke up); it comes from a systemd daemon-reload: use cgroupfs, or CDI devices",
        (r"Failed to initialize NVML: Unknown Error", r"NVMLError_Unknown", r"NVMLError: Unknown Error"),
    ),
    Kind(
        "GPU off the bus",
        "a GPU has failed or dropped off its bus",
        "see dmesg for Xid lines, then power-cycle the machine; check risers and the power supply",
        (
            r"GPU is lost",
            r"GPU has fallen off the bus",
            r"NVRM: Xid",
            r"uncorrectable (?:ECC|NVLink) error",
            r"CUDA error: (?:unspecified launch failure|device not ready|unknown error)",
        ),
    ),
    Kind(
        "no GPU",
        "the engine sees no usable GPU",
        "run nvidia-smi on this machine and in a container (docker run --gpus all); see SM86_GPUS",
        (
            r"No CUDA GPUs are available",
            r"Found no NVIDIA driver on your system",
            r"no CUDA-capable device is detected",
            r"Failed to infer device type",
            r"NVMLError_(?:LibraryNotFound|DriverNotLoaded|NotFound)",
            r"CUDA error: invalid device ordinal",
            r"World size \(\d+\) is larger than the number of available GPUs",
            r"error: no GPU",
        ),
    ),
    Kind(
        "kernels of another GPU",
        "the image has no kernel for this GPU's architecture",
        "build the image on this source for SM 8.6: invoke build",
        (r"no kernel image is available for execution on the device", r"sm_\d+ is not compatible with the current"),
    ),
    # --- the model
    Kind(
        "model missing",
        "the engine finds no model where it was told to look: {found}",
        "see that SM86_MODELS_DIR holds the checkpoint's folder with config.json and all its shards",
        (
            r"Invalid repository ID or local directory specified",
            r"Cannot find any model weights with",
            r"Repo id must (?:be in the form|use alphanumeric)",
            r"is not a local folder and is not a valid model identifier",
            r"Can't load (?:the )?(?:configuration|config|tokenizer)",
            r"No such file or directory: '[^']*(?:config\.json|\.safetensors|tokenizer[^']*)'",
            r"does not appear to have a file named",
            r"[Oo]ffline mode is enabled",
        ),
    ),
    Kind(
        "model damaged",
        "the checkpoint's files are damaged or not complete: {found}",
        "compare their sizes and checksums with the repository's, and download those that differ again",
        (
            r"SafetensorError",
            r"incomplete metadata, file not fully covered",
            r"[Hh]eader ?(?:too large|TooLarge|too small|TooSmall)",
            r"[Ii]nvalid ?[Hh]eader ?[Dd]eserialization",
            r"Following weights were not initialized from checkpoint",
            r"JSONDecodeError",
        ),
    ),
    Kind(
        "wrong model",
        "the checkpoint is not the one the envelope is made for: {found}",
        "use the envelope's checkpoint (invoke envelopes --json names its repository), or its own envelope",
        (
            r"Model architectures .* (?:are not supported|failed to be inspected)",
            r"Quantization method specified in the model config",
            r"Unknown quantization method",
            r"User-specified max_model_len .* is greater than the derived max_model_len",
            r"size of tensor .* must match the size",
            r"There is no module or parameter named",
        ),
    ),
    # --- memory of the GPUs
    Kind(
        "GPU memory taken",
        "less GPU memory is free at the start than the envelope asks for: {found}",
        "end what holds it (nvidia-smi shows the processes; workers may outlive a killed container), then start again",
        (r"Free memory on device .* less than desired GPU memory utilization",),
    ),
    Kind(
        "KV pool too small",
        "the KV cache cannot hold one sequence of the envelope's context: {found}",
        "take the block count of the spec (no SM86_NUM_GPU_BLOCKS), free the GPUs, or use a smaller envelope",
        (
            r"with the models?'s max seq len",
            r"No available memory for the cache blocks",
            r"larger than the maximum number of tokens that can be stored in KV cache",
        ),
    ),
    Kind(
        "capture OOM",
        "GPU memory ran out while CUDA graphs were captured",
        "free GPU memory (nvidia-smi), then fewer KV blocks (--override SM86_NUM_GPU_BLOCKS=N) or a smaller envelope",
        _GPU_OOM,
        stage=(phases.CAPTURE,),
    ),
    Kind(
        "KV pool OOM",
        "GPU memory ran out while the KV pool was allocated",
        "the block count does not fit beside the weights: free the GPUs (nvidia-smi), or use a smaller envelope",
        _GPU_OOM,
        stage=(KV_ALLOCATION,),
    ),
    Kind(
        "profile OOM",
        "GPU memory ran out in the first forward pass, before the KV cache was sized",
        "free the GPUs (nvidia-smi), or fewer tokens a step: --override SM86_MAX_NUM_BATCHED_TOKENS=256",
        _GPU_OOM,
        stage=(phases.PROFILE,),
    ),
    Kind(
        "weights OOM",
        "GPU memory ran out while the weights were loaded",
        "free the GPUs (nvidia-smi); see that all of them are there and that the checkpoint is the 4-bit one",
        _GPU_OOM,
        stage=(phases.START, phases.LOAD),
    ),
    Kind(
        "serving OOM",
        "GPU memory ran out after the graphs were captured",
        "free the GPUs (nvidia-smi), then fewer KV blocks (--override SM86_NUM_GPU_BLOCKS=N) or a smaller envelope",
        _GPU_OOM,
    ),
    # --- memory of the machine
    Kind(
        "shared memory too small",
        "shared memory is too small for the ranks to talk through",
        "start it through the rendered Compose file (ipc: host); with another runner give --ipc=host or --shm-size 16g",
        (
            r"[Ee]rror while (?:creating|attaching to) shared memory segment",
            r"/dev/shm.*No space left on device|No space left on device.*/dev/shm",
            r"unable to (?:allocate|open) shared memory",
            r"insufficient shared memory",
            r"^(?:.* )?Bus error",
        ),
    ),
    Kind(
        "host memory taken",
        "less of the machine's memory is free than the envelope asks for: {found}",
        "close other programs, then start again",
        (r"Available memory on node .* is less than (?:desired CPU memory utilization|requested memory)",),
    ),
    Kind(
        "host OOM",
        "the machine's memory ran out and the kernel ended the server (exit code {code})",
        "close other programs or add swap, then start again: reading and repacking the weights needs it once",
        (
            r"\bMemoryError\b",
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
            r"not enough memory: you tried",
            r"[Cc]annot allocate memory",
            r"[Oo]ut of memory: Killed process",
            r"\boom-kill(?:er)?\b|\bOOMKilled\b",
            r"died unexpectedly \(exit code: -9\)",
            r"Failed core proc\(s\): \{[^}]*: -9\b",
        ),
        _host_oom,
    ),
    Kind(
        "host OOM",
        "the server was killed (exit code 137), as the kernel does when the machine's memory runs out",
        "see dmesg for an out-of-memory line; free memory or add swap, then start again",
        sees=_shot_with_137,
    ),
    # --- communication
    Kind(
        "NCCL init stall",
        "the GPUs do not find each other: nothing since NCCL was named, for {seconds} s",
        'try NCCL_P2P_DISABLE = "1" under [environment] of the envelope (and render); if that helps, see IOMMU, ACS',
        sees=_stalled,
    ),
    Kind(
        "NCCL error",
        "NCCL failed: {found}",
        'for its reason set NCCL_DEBUG = "INFO" under [environment] of the envelope, and render; see IOMMU, ACS, P2P',
        (
            r"NCCL (?:error|WARN .*(?:failed|failure))",
            r"nccl(?:System|Internal|Remote|UnhandledCuda|InvalidUsage|InvalidArgument)Error?\b",
            r"DistBackendError",
            r"Watchdog caught collective operation timeout",
            r"peer access is not supported between these two devices",
        ),
    ),
    # --- the machine's files and ports
    Kind(
        "port taken",
        "the port that the server listens on is taken: {found}",
        "stop what listens there (ss -ltnp), or choose another: --port N",
        (r"Errno 98\]", r"[Aa]ddress already in use"),
    ),
    Kind(
        "disk full",
        "a disk is full: {found}",
        "free some space on the disk it names (docker system df; df -h)",
        (r"Errno 28\]", r"No space left on device"),
    ),
    Kind(
        "no permission",
        "the server may not use a file or folder: {found}",
        "give its user the folder (docker volume rm the cache to have it made anew), or run as the folder's owner",
        (r"PermissionError: ", r"Errno 13\]", r"Errno 30\]", r"Permission denied: '"),
    ),
    # --- kernels compiled at the first boot
    Kind(
        "kernel compilation failed",
        "a kernel could not be compiled at the first boot: {found}",
        "use the image of invoke build, which has the compilers; for --engine local install CUDA 13.0 and g++",
        (
            r"nvcc fatal",
            r"nvcc: not found|[Cc]ould not find nvcc|No such file or directory: '[^']*nvcc'",
            r"ninja: build stopped|Command '\['ninja'",
            r"fatal error: \S+\.h: No such file",
            r"Failed to find C compiler",
            r"CompilationError|triton\.\S*Error|ptxas (?:fatal|error)",
            r"Error compiling|CppCompileError|InductorError",
        ),
    ),
    Kind(
        "engine ready timeout",
        "vLLM's own clock ran out before the engine was ready: {found}",
        "set VLLM_ENGINE_READY_TIMEOUT_S to the seconds that this disk needs, and see how fast it reads",
        (r"Timed out waiting for engine core processes to start",),
    ),
    # --- consequences: what is left when no cause was named
    Kind(
        "restart loop",
        "the server died and was started again {restarts} times (at most {cap})",
        "its own lines say why it dies; invoke logs --envelope {name} has all of them",
        sees=_restarting,
    ),
    Kind(
        "bad health",
        "the log says that the API is up, but it answers {health}",
        "see its last lines: invoke logs --envelope {name} --tail 100; then invoke down and invoke up",
        sees=_gave_up(deadline.UNREADY),
    ),
    Kind(
        "worker died",
        "a process of the engine died without saying why: {found}",
        "see dmesg for its number (Xid, segfault, out of memory); start again with VLLM_LOGGING_LEVEL=DEBUG",
        (
            r"[Ww]orker proc .* died unexpectedly",
            r"Engine core process .* died unexpectedly",
            r"Process .* died with exit code",
            r"Failed core proc\(s\): \{[^}]+: -\d+",
            r"!!!!!!! (?:Segfault|Aborted) encountered !!!!!!!",
            r"Segmentation fault",
        ),
    ),
    Kind(
        "host OOM",
        "a process of the engine died without a word while the machine's memory ran out",
        "close other programs or add swap, then start again: reading and repacking the weights needs it once",
        _PROCESS_MISSED,
        _died_silently_of_memory,
    ),
    Kind(
        "worker died",
        "a process of the engine died without a word",
        "see dmesg for its end (Xid, segfault, out of memory); start again with VLLM_LOGGING_LEVEL=DEBUG",
        _PROCESS_MISSED,
        _died_silently,
    ),
    Kind(
        "killed by a signal",
        "the server was ended by signal {signal} (exit code {code})",
        "if nobody stopped it, see dmesg and the last lines; then start it again",
        sees=_by_signal,
    ),
    Kind(
        ENGINE_ERROR,
        "the engine failed in phase {phase}: {found}",
        "the traceback above it in the log says where: invoke logs --envelope {name}",
        (r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)(?::|$)",),
        _died,
    ),
    Kind(
        "silent hang",
        "the server said nothing for {seconds} s in phase {phase}",
        "see nvidia-smi: GPUs busy at low power means that ranks wait for each other; then invoke down and invoke up",
        sees=_gave_up(deadline.SILENCE),
    ),
    Kind(
        "gave up",
        "the server was not ready after {seconds} s, in phase {phase}",
        "it may only be slow: see its last lines; raise limit_s under [boot] in the envelope's file if it still works",
        sees=_gave_up(deadline.LIMIT),
    ),
    Kind(
        "ended early",
        "the server ended by itself with exit code {code} in phase {phase}, and named no error",
        "see its last lines: invoke logs --envelope {name} --tail 100",
        sees=lambda case, lines: _died(case, lines) and case.state.kind != MISSING,
    ),
    Kind(
        "removed",
        "somebody removed the server while it started",
        "start it again: invoke up --envelope {name}",
        sees=lambda case, lines: case.state.kind == MISSING,
    ),
)
