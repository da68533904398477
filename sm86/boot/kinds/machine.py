"""Communication between the GPUs; ports, disks and rights; kernels compiled at the first boot."""

from __future__ import annotations

from sm86.boot import deadline, phases
from sm86.boot.kinds.case import RANK_WAITS, Case, Kind
from sm86.boot.scan import Line


def _stalled(case: Case, lines: tuple[Line, ...]) -> bool:
    if case.expired is None:
        return False
    if case.expired.kind == deadline.NCCL_STALL:
        return True
    # ranks that wait for each other before any weight was read have not joined either
    waits = case.scanner.matches(RANK_WAITS)
    return case.phases.current == phases.START and bool(waits) and case.envelope.serve.tensor_parallel > 1


KINDS: tuple[Kind, ...] = (
    Kind(
        "NCCL init stall",
        "the GPUs do not find each other: nothing since NCCL was named, for {seconds} s",
        "try --override NCCL_P2P_DISABLE=1; if that helps, see IOMMU, ACS",
        sees=_stalled,
    ),
    Kind(
        "NCCL error",
        "NCCL failed: {found}",
        "for its reason start once with --override NCCL_DEBUG=INFO; see IOMMU, ACS, P2P",
        (
            r"NCCL (?:error|WARN .*(?:failed|failure))",
            r"nccl(?:System|Internal|Remote|UnhandledCuda|InvalidUsage|InvalidArgument)Error?\b",
            r"DistBackendError",
            r"Watchdog caught collective operation timeout",
            r"peer access is not supported between these two devices",
        ),
    ),
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
        'set VLLM_ENGINE_READY_TIMEOUT_S = "3600" under [environment] of the envelope, and see how fast the disk reads',
        (r"Timed out waiting for engine core processes to start",),
    ),
)
