"""Were decode batches replayed from graphs, and if not, why: the readout of CUDAGRAPH_DISPATCH_DEBUG. Pure.

The expected shape of a published envelope, in the roadmap's words: num_spec_tokens=0, uniform_decode_query_len=1, its
capture sizes, and cg_mode=FULL for steady decode; any skip or miss line is the next root cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sm86.probe.lines import EAGER, HIT, MISS, SKIP, Dispatch, Lines

PASS, FAIL, NOT_SEEN = "pass", "fail", "not seen"

REASONS: dict[str, tuple[str, str]] = {
    "captured": ("replayed from a captured graph", ""),
    "prefill": ("a prefill or mixed batch, which FULL_DECODE_ONLY never captures", ""),
    "eager_forced": (
        "the engine was told to run eagerly",
        "look for --enforce-eager in the manifest's argv, or for a feature that forces eager steps",
    ),
    "not_captured_yet": (
        "graphs were not captured when it came",
        "requests reached the engine during its start; wait until it serves",
    ),
    "graphs_off": (
        "no graphs are captured: the mode is NONE or there are no sizes",
        "compare --compilation-config in the manifest with the envelope's",
    ),
    "cascade_attention": (
        "cascade attention was chosen for a shared prefix, which has no full graph",
        "start with --disable-cascade-attn, or send prompts without a long common prefix",
    ),
    "beyond_largest_capture": (
        "it has more tokens than the largest captured size",
        "raise the capture sizes, or lower --max-num-seqs to the largest of them",
    ),
    "no_graph_for_descriptor": (
        "a graph of its size should exist and none fits its descriptor",
        "the capture sizes leave out this number of tokens, or the key differs (drafts): compare the line's fields",
    ),
}
"""Reason in the line -> (what it means, how to mend it)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Batches that were dispatched alike."""

    outcome: str
    mode: str
    tokens: int
    requests: int
    reason: str
    count: int
    first_line: int


@dataclass(frozen=True, slots=True)
class Readout:
    """state: pass, fail or not seen; text: the readout in words; mend: "" when there is nothing to mend.

    decode: how many uniform decode batches; counts by outcome over all batches; shape: what differs from the expected
    one, in words; evidence: the lines that it rests on.
    """

    state: str
    text: str
    mend: str = ""
    decode: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = ()
    shape: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What the envelope asks for: the graph mode, capture sizes, and sequences that decode together."""

    mode: str
    sizes: tuple[int, ...]
    sequences: int
    spec_tokens: int = 0

    @property
    def decode_mode(self) -> str:
        """cg_mode of a decode batch: the first part of a mode with two."""
        return {"FULL_DECODE_ONLY": "FULL", "FULL_AND_PIECEWISE": "FULL"}.get(self.mode, self.mode)


def read_out(lines: Lines, expected: Expected) -> Readout:
    """The readout of a boot that decoded something with the diagnostics on."""
    decode = [one for one in lines.dispatches if one.is_decode]
    shape = _shape(decode, expected)
    return replace(
        _judge(lines, decode, shape, expected),
        decode=len(decode),
        counts=dict(Counter(one.outcome for one in lines.dispatches)),
        kinds=_kinds(lines.dispatches),
        shape=shape,
    )


def _judge(lines: Lines, decode: Sequence[Dispatch], shape: Sequence[str], expected: Expected) -> Readout:
    if not lines.dispatches:
        cut = f" ({len(lines.unread)} lines begin like one and are not read)" if lines.unread else ""
        return Readout(
            NOT_SEEN,
            f"no dispatch line in the log{cut}: nothing is known about how batches were dispatched",
            "see in the manifest whether CUDAGRAPH_DISPATCH_DEBUG is effective: the sm86 plugin prints these lines",
            evidence=tuple(text for _, text in lines.unread[:3]),
        )
    if not decode:
        text = (
            f"{len(lines.dispatches)} batches, none a uniform decode: nothing that a graph should serve was dispatched"
        )
        return Readout(NOT_SEEN, text, "let it decode for longer", evidence=(lines.dispatches[-1].text,))
    lost = [one for one in decode if one.outcome in (MISS, SKIP)]
    if lost:
        return _lost(lost, decode)
    other = [one for one in decode if one.outcome == HIT and one.mode != expected.decode_mode]
    if other:
        modes = Counter(one.mode for one in other)
        said = ", ".join(f"{count} with cg_mode={mode}" for mode, count in modes.items())
        text = f"of {len(decode)} decode batches {said}, where cg_mode={expected.decode_mode} is expected"
        mend = "compare cudagraph_mode in the manifest with the envelope's"
        return Readout(FAIL, text, mend, evidence=(other[0].text,))
    if shape:
        text = f"all {len(decode)} decode batches hit, but not in the expected shape: {'; '.join(shape)}"
        return Readout(FAIL, text, "compare the manifest with the envelope", evidence=(decode[0].text,))
    first = decode[0]
    text = (
        f"all {len(decode)} decode batches were replayed: cg_mode={first.mode}, num_spec_tokens={first.spec_tokens}, "
        f"uniform_decode_query_len={first.uniform_query_len}, capture_sizes={list(first.capture_sizes)}; "
        "no skip, no miss"
    )
    return Readout(PASS, text, "", evidence=(first.text,))


def _lost(lost: Sequence[Dispatch], decode: Sequence[Dispatch]) -> Readout:
    reason, count = Counter(one.reason for one in lost).most_common(1)[0]
    first = next(one for one in lost if one.reason == reason)
    what, mend = REASONS.get(reason, (f"the reason {reason!r}, which this program does not know", ""))
    others = len(lost) - count
    more = f"; {others} more for other reasons" if others else ""
    text = (
        f"{len(lost)} of {len(decode)} decode batches ran without a graph; the next root cause, at line {first.line}: "
        f"{first.outcome} {reason}, {what}{more}"
    )
    return Readout(FAIL, text, mend or "see the line", evidence=(first.text,))


def _shape(decode: Sequence[Dispatch], expected: Expected) -> tuple[str, ...]:
    """What of the expected capture shape is otherwise, each once."""
    wanted = {
        "num_spec_tokens": expected.spec_tokens,
        "uniform_decode_query_len": expected.spec_tokens + 1,
        "capture_sizes": tuple(size * (expected.spec_tokens + 1) for size in expected.sizes),
    }
    found: dict[str, None] = {}
    for one in decode:
        seen = {
            "num_spec_tokens": one.spec_tokens,
            "uniform_decode_query_len": one.uniform_query_len,
            "capture_sizes": one.capture_sizes,
        }
        for name, value in seen.items():
            if value != wanted[name]:
                found.setdefault(f"{name}={_shown(value)}, not {_shown(wanted[name])}")
    if decode and max(one.requests for one in decode) < expected.sequences:
        found.setdefault(f"at most {max(one.requests for one in decode)} of {expected.sequences} sequences together")
    return tuple(found)


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _kinds(dispatches: Sequence[Dispatch]) -> tuple[Kind, ...]:
    """Batches by how they were dispatched: lost ones first, then by how many."""
    counts: Counter[tuple[str, str, int, int, str]] = Counter()
    first: dict[tuple[str, str, int, int, str], int] = {}
    for one in dispatches:
        # prefill batches are of any length; their number says more than each length
        tokens, requests = (0, 0) if one.outcome == EAGER else (one.tokens, one.requests)
        key = (one.outcome, one.mode, tokens, requests, one.reason)
        counts[key] += 1
        first.setdefault(key, one.line)
    order = {MISS: 0, SKIP: 1, HIT: 2, EAGER: 3}
    ranked = sorted(counts.items(), key=lambda item: (order[item[0][0]], -item[1], item[0]))
    return tuple(Kind(*key, count, first[key]) for key, count in ranked)
