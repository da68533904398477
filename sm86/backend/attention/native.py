"""The CUDA kernel behind a torch-shaped call: finds or builds the library, checks what it is given, launches.

Nothing here waits for the GPU or allocates after the first call on a device, so it may run inside a graph capture.
"""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from sm86.backend.attention import build, plan
from sm86.backend.attention.reference import Source
from sm86.backend.layout import HEAD_DIMS, MAIN_RECORD_BYTES, MAIN_SCALE_BYTES
from sm86.backend.nvcc import build_once
from sm86.backend.refusal import Refused

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_float


class _Arguments(ctypes.Structure):
    """`SparseMlaArgs` of sparse_mla.cu, field by field."""

    _fields_ = (
        ("query", _POINTER),
        ("query_stride", _LONG),
        ("window_cache", _POINTER),
        ("window_block_stride", _LONG),
        ("window_index", _POINTER),
        ("window_index_stride", _LONG),
        ("window_length", _POINTER),
        ("extra_cache", _POINTER),
        ("extra_block_stride", _LONG),
        ("extra_index", _POINTER),
        ("extra_index_stride", _LONG),
        ("extra_length", _POINTER),
        ("sink", _POINTER),
        ("out", _POINTER),
        ("out_stride", _LONG),
        ("partial", _POINTER),
        ("partial_ml", _POINTER),
        ("counters", _POINTER),
        ("window_log2", _INT),
        ("window_width", _INT),
        ("extra_log2", _INT),
        ("extra_width", _INT),
        ("tokens", _INT),
        ("heads", _INT),
        ("splits", _INT),
        ("counter_rows", _INT),
        ("scale_log2", _FLOAT),
    )


def library_path() -> Path:
    """The library: SM86_NATIVE_LIBRARY, beside this module, or the cache (built there on demand where nvcc is)."""
    named = os.environ.get("SM86_NATIVE_LIBRARY")
    if named:
        return Path(named)
    beside = Path(__file__).with_name(build.LIBRARY.file)
    if beside.exists():
        return beside
    return build_once(build.LIBRARY.cache_path(), build.build)


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises Refused when it is missing, unloadable or built from another source."""
    path = library_path()
    mend = f"build it again: python -m {build.LIBRARY.module}"
    wanted = build.LIBRARY.source_hash()
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.sm86_source_hash.restype = ctypes.c_char_p
        built_from = loaded.sm86_source_hash().decode()
    except (OSError, AttributeError) as error:
        raise Refused(f"cannot load {path}: {error}", mend) from error
    if built_from != wanted:
        raise Refused(f"{path} was built from source {built_from}, this is {wanted}", mend)
    if loaded.sm86_sparse_mla_args_size() != ctypes.sizeof(_Arguments):
        raise Refused(f"{path} takes other arguments than this module gives", "build it again for this machine")
    loaded.sm86_cuda_error.restype = ctypes.c_char_p
    loaded.sm86_sparse_mla.argtypes = [ctypes.POINTER(_Arguments), _INT, _INT, _POINTER]
    return loaded


@dataclass(frozen=True, slots=True)
class Workspace:
    """Partial results and counters of one device, made once. The counters go back to zero after every launch.

    Launches that split keys must follow one another on one stream, as the layers of a step do.
    """

    multiprocessors: int
    partial: torch.Tensor
    partial_ml: torch.Tensor
    counters: torch.Tensor


@cache
def workspace(device: torch.device) -> Workspace:
    """About 2.7 MB on a 3090. Call it before a capture (the layer does when it is built)."""
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    slots = plan.resident_blocks(multiprocessors)
    return Workspace(
        multiprocessors,
        torch.empty(slots * plan.HEADS_PER_BLOCK * HEAD_DIMS, dtype=torch.float32, device=device),
        torch.empty(slots * plan.HEADS_PER_BLOCK * 2, dtype=torch.float32, device=device),
        torch.zeros(2 * slots, dtype=torch.int32, device=device),
    )


def check_source(source: Source, tokens: int) -> None:
    """Raise ValueError for a source that the kernel would misread."""
    cache_, index = source.cache, source.index
    entries = cache_.shape[1]
    if cache_.dtype != torch.uint8 or cache_.shape[2] != MAIN_RECORD_BYTES + MAIN_SCALE_BYTES:
        raise ValueError(f"not a cache of main pages: {cache_.dtype} {tuple(cache_.shape)}")
    if entries & (entries - 1):
        raise ValueError(f"{entries} entries per page are not a power of two")
    if cache_.stride(0) % 16 or cache_.data_ptr() % 16:
        raise ValueError("pages must start at multiples of 16 bytes")
    if index.dtype != torch.int32 or index.dim() != 2 or index.shape[0] != tokens or index.stride(1) != 1:
        raise ValueError(f"index must be int32 [{tokens}, width] with contiguous rows, got {tuple(index.shape)}")
    if source.length.dtype != torch.int32 or source.length.shape[0] < tokens or source.length.stride(0) != 1:
        raise ValueError(f"lengths must be int32 [{tokens}]")


def attend(
    query: torch.Tensor,
    window: Source,
    extra: Source | None,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    cut: plan.Cut | None = None,
) -> None:
    """Attention of query bf16 [tokens, heads, 512] over one or two sources, into `out` (same shape); heads % 8 == 0.

    sink: fp32 [heads], -inf for none; cut: another way to split than `plan.choose` (tests).
    Raises ValueError for layouts the kernel does not take, RuntimeError when the launch fails.
    """
    tokens, heads, dims = query.shape
    if not tokens:
        return
    for name, tensor in (("query", query), ("out", out)):
        if tensor.dtype != torch.bfloat16 or tensor.shape != query.shape or dims != HEAD_DIMS:
            raise ValueError(f"{name} must be bf16 [tokens, heads, 512], got {tensor.dtype} {tuple(tensor.shape)}")
        if tensor.stride(1) != HEAD_DIMS or tensor.stride(2) != 1 or tensor.data_ptr() % 8 or tensor.stride(0) % 4:
            raise ValueError(f"{name}'s heads must be contiguous and 8-byte aligned, strides {tensor.stride()}")
    if heads % plan.HEADS_PER_BLOCK or sink.dtype != torch.float32 or sink.shape[0] < heads:
        raise ValueError(f"{heads} heads and a sink of {tuple(sink.shape)}: heads come in groups of eight")
    check_source(window, tokens)
    space = workspace(query.device)
    width = window.index.shape[1] + (extra.index.shape[1] if extra is not None else 0)
    cut = cut or plan.choose(tokens, heads, width, space.multiprocessors)
    rows = tokens * heads // plan.HEADS_PER_BLOCK
    if cut.splits > 1 and rows * cut.splits > plan.resident_blocks(space.multiprocessors):
        raise ValueError(f"{rows} rows in {cut.splits} splits do not fit the workspace")
    arguments = _Arguments(
        query=query.data_ptr(),
        query_stride=query.stride(0),
        window_cache=window.cache.data_ptr(),
        window_block_stride=window.cache.stride(0),
        window_index=window.index.data_ptr(),
        window_index_stride=window.index.stride(0),
        window_length=window.length.data_ptr(),
        sink=sink.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        partial=space.partial.data_ptr(),
        partial_ml=space.partial_ml.data_ptr(),
        counters=space.counters.data_ptr(),
        window_log2=window.cache.shape[1].bit_length() - 1,
        window_width=window.index.shape[1],
        tokens=tokens,
        heads=heads,
        splits=cut.splits,
        counter_rows=space.counters.shape[0] // 2,
        scale_log2=scale * math.log2(math.e),
    )
    if extra is not None:
        check_source(extra, tokens)
        arguments.extra_cache = extra.cache.data_ptr()
        arguments.extra_block_stride = extra.cache.stride(0)
        arguments.extra_index = extra.index.data_ptr()
        arguments.extra_index_stride = extra.index.stride(0)
        arguments.extra_length = extra.length.data_ptr()
        arguments.extra_log2 = extra.cache.shape[1].bit_length() - 1
        arguments.extra_width = extra.index.shape[1]
    stream = torch.cuda.current_stream(query.device).cuda_stream
    code = library().sm86_sparse_mla(ctypes.byref(arguments), cut.tile_keys, cut.combine, stream)
    if code:
        words = library().sm86_cuda_error(code).decode() if code > 0 else f"arguments refused ({code})"
        raise RuntimeError(f"sparse MLA launch failed: {words} ({tokens} tokens, {heads} heads, {cut})")
