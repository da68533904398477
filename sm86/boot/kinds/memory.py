"""Memory of the GPUs and of the machine."""

from __future__ import annotations

from sm86.boot import phases
from sm86.boot.kinds.case import KV_ALLOCATION, Case, Kind, died
from sm86.boot.scan import Line

_GPU_OOM = (
    r"\bOutOfMemoryError\b",
    r"CUDA out of memory",
    r"CUDA (?:driver )?error: out of memory",
    r"CUDA_ERROR_OUT_OF_MEMORY",
    r"cudaErrorMemoryAllocation",
    r"CU\w+_STATUS_ALLOC_FAILED",
    r"[Cc]uda failure \d* ?'?out of memory",
)


def _oom_killed(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.state.oom_killed


def _shot_with_137(case: Case, lines: tuple[Line, ...]) -> bool:
    return died(case, lines) and case.state.exit_code == 137


KINDS: tuple[Kind, ...] = (
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
        sees=_oom_killed,
    ),
    Kind(
        "host OOM",
        "the machine's memory ran out: {found}",
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
    ),
    Kind(
        "host OOM",
        "the server was killed (exit code 137), as the kernel does when the machine's memory runs out",
        "see dmesg for an out-of-memory line; free memory or add swap, then start again",
        sees=_shot_with_137,
    ),
)
