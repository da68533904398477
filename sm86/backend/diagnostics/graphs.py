"""The words of graph dispatch: was a decode batch replayed from a captured graph, and if not, why. Mostly pure.

    SM86 cudagraph hit|miss|skip|eager cg_mode=FULL num_tokens=1 num_reqs=1 padded_tokens=1 uniform=true
        num_spec_tokens=0 query_len=1 uniform_decode_query_len=1 capture_sizes=[1] reason=captured      (one line)

hit: replayed. miss: a graph should have fitted and none did. skip: graphs are off for this batch. eager: a prefill
or mixed batch, which FULL_DECODE_ONLY never captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "SM86 cudagraph"
DRAFT_PREFIX = "SM86 draft cudagraph"


@dataclass(frozen=True, slots=True)
class Batch:
    """A dispatched batch and what vLLM decided: tokens and requests before padding, the graph mode it chose."""

    tokens: int
    requests: int
    padded_tokens: int
    query_len: int
    uniform_query_len: int
    num_spec_tokens: int
    mode: str
    graphs_mode: str
    graphs_ready: bool
    capture_sizes: tuple[int, ...]
    forced_eager: bool = False
    cascade: bool = False

    @property
    def uniform(self) -> bool:
        """Every request brings exactly the tokens of one decode step."""
        return self.query_len == self.uniform_query_len and self.tokens == self.query_len * self.requests


def outcome(batch: Batch) -> tuple[str, str]:
    """(hit, miss, skip or eager; reason)."""
    if batch.mode != "NONE":
        return "hit", "captured"
    if not batch.uniform:
        return "eager", "prefill"
    if batch.forced_eager:
        return "skip", "eager_forced"
    if not batch.graphs_ready:
        return "skip", "not_captured_yet"
    if batch.graphs_mode == "NONE" or not batch.capture_sizes:
        return "skip", "graphs_off"
    if batch.cascade:
        return "skip", "cascade_attention"
    if batch.tokens > max(batch.capture_sizes):
        return "skip", "beyond_largest_capture"
    return "miss", "no_graph_for_descriptor"


def dispatch_line(batch: Batch) -> str:
    """The one line."""
    what, reason = outcome(batch)
    sizes = ",".join(map(str, batch.capture_sizes))
    return (
        f"{PREFIX} {what} cg_mode={batch.mode} num_tokens={batch.tokens} num_reqs={batch.requests} "
        f"padded_tokens={batch.padded_tokens} uniform={str(batch.uniform).lower()} "
        f"num_spec_tokens={batch.num_spec_tokens} query_len={batch.query_len} "
        f"uniform_decode_query_len={batch.uniform_query_len} capture_sizes=[{sizes}] reason={reason}"
    )


def batch_of(runner: Any, arguments: Mapping[str, Any], result: Any) -> Batch:
    """A Batch from vLLM's model runner, the keyword arguments of its dispatch and what that returned."""
    dispatcher = runner.cudagraph_dispatcher
    mode, descriptor = result[0], result[1]
    return Batch(
        tokens=int(arguments["num_tokens"]),
        requests=int(arguments["num_reqs"]),
        padded_tokens=int(descriptor.num_tokens),
        query_len=int(arguments["max_num_scheduled_tokens"]),
        uniform_query_len=int(runner.uniform_decode_query_len),
        num_spec_tokens=int(runner.uniform_decode_query_len) - 1,
        mode=mode.name,
        graphs_mode=dispatcher.cudagraph_mode.name,
        graphs_ready=bool(dispatcher.keys_initialized),
        capture_sizes=tuple(sorted(runner.compilation_config.cudagraph_capture_sizes or ())),
        forced_eager=bool(arguments.get("force_eager")),
        cascade=bool(arguments.get("use_cascade_attn")),
    )


class DraftCounter:
    """Names the draft steps of a proposal, prefill first, and stops after `limit` of each kind."""

    def __init__(self, limit: int) -> None:
        self._left = {"prefill": limit, "decode": limit}
        self._step: int | None = None

    def begin(self) -> None:
        """A proposal starts: its first dispatch is the prefill."""
        self._step = 0

    def end(self) -> None:
        """The proposal is over."""
        self._step = None

    def line(self, mode: str, tokens: int, padded: int) -> str | None:
        """The line for a dispatch, or None outside a proposal and when enough were printed."""
        if self._step is None:
            return None
        kind = "prefill" if self._step == 0 else "decode"
        self._step += 1
        if not self._left[kind]:
            return None
        self._left[kind] -= 1
        return f"{DRAFT_PREFIX} {kind} cg_mode={mode} num_tokens={tokens} padded_tokens={padded}"
