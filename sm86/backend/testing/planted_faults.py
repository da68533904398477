"""The table of planted faults: mistakes that somebody could make in the CUDA sources, none of which the CPU's tests can
see. A fault belongs here only if it gives a definite wrong result: races that may stay invisible do not. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sm86.errors import CouldNotRun


@dataclass(frozen=True, slots=True)
class Subject:
    """A library whose source is changed. source: path from the repository's root; module: what `python -m` builds it;
    variable: names the library to load; tests: what must find every fault, all of which run on a GPU."""

    name: str
    source: str
    module: str
    variable: str
    tests: tuple[str, ...]


_KERNEL = "tests/backend/test_attention_reference.py::test_kernel"
_GROUP = "tests/backend/collectives/test_one_process.py::test"
ATTENTION = Subject(
    "attention",
    "sm86/backend/attention/sparse_mla.cu",
    "sm86.backend.attention.build",
    "SM86_NATIVE_LIBRARY",
    (
        f"{_KERNEL}_against_float64",
        f"{_KERNEL}_decodes_every_code_exactly",
        f"{_KERNEL}_in_a_graph_follows_the_lengths",
        f"{_KERNEL}_reads_what_lies_far_and_apart",
    ),
)
COLLECTIVES = Subject(
    "collectives",
    "sm86/backend/collectives/host_allreduce.cu",
    "sm86.backend.collectives.build",
    "SM86_COLLECTIVES_LIBRARY",
    (f"{_GROUP}_every_kernel_gives_the_ordered_sum", f"{_GROUP}_calls_of_all_kinds_in_any_order"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake. old: text that occurs exactly once in the subject's source; new: what stands there instead."""

    name: str
    subject: Subject
    old: str
    new: str

    def planted(self, source: str) -> str:
        """The source with this mistake. Raises CouldNotRun where the table was not written for this source."""
        found = source.count(self.old)
        if found != 1:
            raise CouldNotRun(
                f"planted fault {self.name}: its text occurs {found} times in {self.subject.source}, not once",
                "mend the table in sm86/backend/testing/planted_faults.py: it is for another source",
            )
        return source.replace(self.old, self.new)


def _attention(name: str, old: str, new: str) -> Fault:
    return Fault(name, ATTENTION, old, new)


def _collectives(name: str, old: str, new: str) -> Fault:
    return Fault(name, COLLECTIVES, old, new)


_FETCH = "auto fetch = [&](int t, int index) {\n    if (t >= end) return;\n    const bool extra = t >"

FAULTS = (
    # how the records lie in shared memory, and their decode
    _attention(
        "swizzle-of-odd-pairs",
        "odd_pair = lane_row + ((2 + (lane >> 4)) ^ ((lane & 7) >> 1)) * 16",
        "odd_pair = lane_row + ((2 + (lane >> 4)) ^ (lane & 3)) * 16",
    ),
    _attention("swizzle-of-the-copy", "(part ^ ((row >> 1) & 3)) * 16", "(part ^ (row & 3)) * 16"),
    _attention("query-permutation", "__byte_perm(f.x, f.y, 0x7632)", "__byte_perm(f.x, f.y, 0x7610)"),
    _attention("scale-of-the-first-group", "scales_at + i + 8 * kScales)", "scales_at + 8 * kScales)"),
    _attention(
        "scale-of-the-next-group",
        "scale_base + (i * 16 + 2 * t4) * kScales + warp;",
        "scale_base + (i * 16 + 2 * t4) * kScales + warp + 1;",
    ),
    _attention("scale-constant", "two_bytes * 128u + 0x3c003c00u", "two_bytes * 128u + 0x3c803c80u"),
    _attention("sign-of-upper-code", "| (codes & 0x80008000u), by)", "| (codes & 0x00008000u), by)"),
    _attention("lowest-mantissa-bit", "(codes << 4) & 0x07f007f0u", "(codes << 4) & 0x07e007e0u"),
    _attention(
        "rope-dims-of-the-query",
        "*reinterpret_cast<const uint32_t*>(at + 16), *reinterpret_cast<const uint32_t*>(at + 24)",
        "*reinterpret_cast<const uint32_t*>(at + 24), *reinterpret_cast<const uint32_t*>(at + 16)",
    ),
    _attention("rope-dims-of-the-key", "load_matrix(even_at + 512, r)", "load_matrix(even_at + 480, r)"),
    _attention(
        "rope-registers-of-the-value",
        "multiply(acc[j], r[0], r[2], r[1], r[3],",
        "multiply(acc[j], r[0], r[1], r[2], r[3],",
    ),
    # which keys count, and where they lie
    _attention("no-mask", "mask[row] = index >= 0 ? 0.f : -INFINITY", "mask[row] = 0.f"),
    _attention("mask-of-the-first-half", "mask + i * 16 + h * 8 + 2 * t4", "mask + i * 16 + 2 * t4"),
    _attention(
        "length-of-a-later-tile",
        "return k < (extra ? share.extra : share.window) ?",
        "return k < (extra ? p.extra_width : p.window_width) ?",
    ),
    _attention(
        "length-of-the-guessed-tile",
        "index = k < (extra ? share.extra : share.window) ? guessed : -1;",
        "index = guessed;",
    ),
    _attention(
        "guess-of-a-shorter-window",
        "(share.window_tiles == full_window_tiles || (tile < share.window_tiles && tile < full_window_tiles))",
        "share.window_tiles <= full_window_tiles",
    ),
    _attention("length-not-clamped", "min(max(p.window_length[token], 0), p.window_width)", "p.window_length[token]"),
    _attention("first-extra-tile", _FETCH + "= share.window_tiles;", _FETCH + " share.window_tiles;"),
    _attention(
        "stride-of-the-other-cache",
        "(extra ? p.extra_block_stride : p.window_block_stride)",
        "p.window_block_stride",
    ),
    _attention(
        "offset-of-32-bits",
        "(long long)(safe >> log2) * (extra ? p.extra_block_stride : p.window_block_stride)",
        "(int)((uint32_t)(safe >> log2) * (uint32_t)(extra ? p.extra_block_stride : p.window_block_stride))",
    ),
    _attention(
        "stride-of-the-index",
        "p.window_index + (long long)token * p.window_index_stride",
        "p.window_index + (long long)token * p.window_width",
    ),
    # softmax
    _attention("dim-shares-of-one-tile-size", "for (int d = 1; d < DS; d++) {", "for (int d = 1; d < 2; d++) {"),
    _attention("rescale-flag", "peak != top && top != kNoKey", "peak != top && top == kNoKey"),
    _attention("rescale-of-another-head", "__shfl_sync(~0u, keep, 8 * t4),", "__shfl_sync(~0u, keep, 4 * t4),"),
    _attention("total-not-rescaled", "total *= keep;", ""),
    _attention("total-of-half-the-lanes", "total += __shfl_xor_sync(~0u, total, 2);", ""),
    _attention("top-without-a-key", "kNoKey = -1e30f;", "kNoKey = -INFINITY;"),
    _attention("sink-of-base-e", "__ldg(p.sink + head + 1) * kLog2e", "__ldg(p.sink + head + 1)"),
    _attention(
        "no-sink-in-the-combine",
        "total, 2 * t4 + 1) + exp2_fast(sink1 - __shfl_sync(~0u, top, 2 * t4 + 1)))",
        "total, 2 * t4 + 1))",
    ),
    _attention(
        "denominator-of-another-head",
        "acc[i].y * inverse1, acc[i].z * inverse0, acc[i].w * inverse1",
        "acc[i].y * inverse1, acc[i].z * inverse0, acc[i].w * inverse0",
    ),
    # splits and their combine
    _attention("share-rounded-down", "((float)(s.tiles + p.splits - 1) + 0.5f)", "((float)s.tiles + 0.5f)"),
    _attention(
        "last-split-left-out",
        "x[q][j] = 4 * k + q < share.active ?",
        "x[q][j] = 4 * k + q < share.active - 1 ?",
    ),
    _attention(
        "last-split-left-out-shared", "y[r] = first + r < share.active ?", "y[r] = first + r < share.active - 1 ?"
    ),
    _attention("top-of-half-the-splits", "top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));", ""),
    _attention("counter-not-reset", "if (is_last) p.counters[place] = 0;", ""),
    _attention("second-counter-not-reset", "p.counters[p.counter_rows + place] = 0;", ""),
    _attention("helpers-of-the-grid", "helpers = min(4, share.active)", "helpers = min(4, p.splits)"),
    _attention(
        "partials-of-another-group",
        "(p.partial) + place * p.splits * 1024",
        "(p.partial) + (long long)token * p.splits * 1024",
    ),
    # where the result goes
    _attention("head-pair", "(head0 + d) = pack(c.x, c.z)", "(head0 + d) = pack(c.y, c.w)"),
    _attention("stride-of-the-output", "(long long)token * p.out_stride", "(long long)token * p.heads * 512"),
    # the all-reduce: what a call leaves behind for the next, and how it is launched
    _collectives("a-warp-is-not-counted-on", "uint32_t w = worker_warps + t;", "uint32_t w = worker_warps + t + 1;"),
    _collectives(
        "first-warps-alone-count", "if (threadIdx.x % 32 == 0) store_word(", "if (threadIdx.x == 0) store_word("
    ),
    _collectives("keeper-does-not-count", "store_word(&own->keeper_call, j.call + 1);", ""),
    _collectives(
        "entered-late", "store_word(&h->entered[rank].value, j.call + 1)", "store_word(&h->entered[rank].value, j.call)"
    ),
    _collectives("slot-of-another-call", "old = (j.call + 2) & (kSlots - 1)", "old = (j.call + 1) & (kSlots - 1)"),
    _collectives(
        "one-vector-not-armed", "ALGORITHM == kPackets ? 0u : c.vectors", "ALGORITHM == kPackets ? 0u : c.vectors - 1"
    ),
    _collectives("sums-not-armed", "share_of(c.vectors, N, (uint32_t)rank).count : 0u", "0u : 0u"),
    _collectives("a-block-below-the-keeper", "a->threads < kKeeperThreads ? kKeeperThreads : a->threads", "a->threads"),
    _collectives("fp32-as-bf16", "return start<N, kTwoShot, kF32>(", "return start<N, kTwoShot, kBf16>("),
    _collectives("seven-as-six-ranks", "case 7: return start<7>(c, a->", "case 7: return start<6>(c, a->"),
    _collectives("last-vector-left-out", "works = thread < c.vectors;", "works = thread < c.vectors - 1;"),
    _collectives("a-rank-does-not-receive", "a->readers : h->local_ranks", "a->readers : h->local_ranks - 1"),
)


def chosen(only: str | None) -> tuple[Fault, ...]:
    """The faults whose name is `only`, or all. Raises CouldNotRun for a name that none has."""
    found = tuple(fault for fault in FAULTS if only in (None, fault.name))
    if not found:
        raise CouldNotRun(f"there is no planted fault {only}", f"one of: {', '.join(fault.name for fault in FAULTS)}")
    return found
