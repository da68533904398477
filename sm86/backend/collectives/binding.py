"""The library behind ctypes: found or built, its source checked, its errors in words. Needs neither torch nor a GPU to
be imported."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from sm86.backend.collectives import build
from sm86.backend.collectives.failure import Verdict, ranks_of
from sm86.backend.collectives.plan import NAMES
from sm86.backend.nvcc import build_once
from sm86.backend.refusal import Refused

_POINTER, _LONG, _INT, _WORD = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32

BF16, F32 = 0, 1

REFUSALS = {
    -1: "the message's size is not a multiple of 16 bytes, or above what the segment holds",
    -2: "the plan does not fit the message",
    -3: "the tensors are not 16-byte aligned",
    -4: "the segment is not this version's, or the ranks are out of range",
    -5: "the GPU cannot hold all blocks of the largest call at once, and they wait for each other",
}


class Open(ctypes.Structure):
    """`Sm86ArOpen` of host_api.h."""

    _fields_ = (
        ("base", _POINTER),
        ("max_bytes", _LONG),
        ("timeout_ns", _LONG),
        ("device", _INT),
        ("world", _INT),
        ("first_rank", _INT),
        ("local_ranks", _INT),
    )


class Launch(ctypes.Structure):
    """`Sm86ArLaunch` of host_api.h."""

    _fields_ = (
        ("in_", _POINTER),
        ("out", _POINTER),
        ("bytes", _LONG),
        ("algorithm", _INT),
        ("type", _INT),
        ("threads", _INT),
        ("pause", _INT),
        ("readers", _INT),
    )


class Status(ctypes.Structure):
    """`Sm86ArStatus` of host_api.h."""

    _fields_ = tuple((name, _WORD) for name in ("stopped", "code", "rank", "call", "missing", "algorithm", "vectors"))

    def verdict(self) -> Verdict | None:
        """The group's verdict; None while there is none."""
        if not self.code:
            return None
        named = NAMES[self.algorithm] if self.vectors and self.algorithm < len(NAMES) else None
        return Verdict(self.code, self.rank, self.call, ranks_of(self.missing), named, self.vectors * 16)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Argument and result types of the C interface."""
    library.sm86_ar_source_hash.restype = ctypes.c_char_p
    library.sm86_ar_segment_bytes.argtypes = [_INT, _LONG]
    library.sm86_ar_segment_bytes.restype = _LONG
    library.sm86_ar_prepare.argtypes = [_POINTER, _INT, _LONG, _INT, _INT]
    library.sm86_ar_known.argtypes = [_POINTER, _INT, _LONG]
    library.sm86_ar_open.argtypes = [ctypes.POINTER(Open), ctypes.POINTER(_INT)]
    library.sm86_ar_open.restype = _POINTER
    library.sm86_ar_launch.argtypes = [_POINTER, ctypes.POINTER(Launch), _POINTER]
    library.sm86_ar_close.argtypes = [_POINTER, _POINTER]
    library.sm86_ar_status.argtypes = [_POINTER, ctypes.POINTER(Status)]
    library.sm86_ar_status.restype = None
    library.sm86_ar_stop.argtypes = [_POINTER, _INT, _INT, _WORD]
    library.sm86_ar_stop.restype = None
    library.sm86_ar_entered.argtypes = [_POINTER, _INT]
    library.sm86_ar_entered.restype = _WORD
    library.sm86_ar_mark_closed.argtypes = [_POINTER, _INT]
    library.sm86_ar_mark_closed.restype = None
    library.sm86_ar_is_closed.argtypes = [_POINTER, _INT]
    library.sm86_ar_read_ns.argtypes = [_POINTER, _INT]
    library.sm86_ar_read_ns.restype = ctypes.c_double
    library.sm86_ar_bus.argtypes = [_INT, ctypes.c_char_p, _INT]
    library.sm86_ar_error.restype = ctypes.c_char_p
    return library


def library_path() -> Path:
    """SM86_COLLECTIVES_LIBRARY, the file beside this module, or the cache (built there on demand where nvcc is)."""
    named = os.environ.get("SM86_COLLECTIVES_LIBRARY")
    if named:
        return Path(named)
    beside = Path(__file__).with_name(build.LIBRARY.file)
    if beside.exists():
        return beside
    return build_once(build.LIBRARY.cache_path(), build.build)


def load(path: Path) -> ctypes.CDLL:
    """The library at `path`. Raises Refused when it is missing, unloadable or built from other sources."""
    mend = f"build it again: python -m {build.LIBRARY.module}"
    wanted = build.LIBRARY.source_hash()
    try:
        library = declare(ctypes.CDLL(str(path)))
        built_from = library.sm86_ar_source_hash().decode()
    except (OSError, AttributeError) as error:
        raise Refused(f"cannot load {path}: {error}", mend) from error
    if built_from != wanted:
        raise Refused(f"{path} was built from source {built_from}, this is {wanted}", mend)
    sizes = ctypes.sizeof(Open) * 65536 + ctypes.sizeof(Launch) * 256 + ctypes.sizeof(Status)
    if library.sm86_ar_sizes() != sizes:
        raise Refused(f"{path} takes other arguments than this module gives", mend)
    return library


@cache
def library() -> ctypes.CDLL:
    """The process's library, loaded once."""
    return load(library_path())


def words_of(loaded: ctypes.CDLL, code: int) -> str:
    """What a code that is not 0 means."""
    return loaded.sm86_ar_error(code).decode() if code > 0 else REFUSALS.get(code, f"refused ({code})")
