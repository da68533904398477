"""A server's start: set up, check values, time both ways, choose, and say so. Every rank takes the same branch.

Lines: `[sm86] collectives key=value`, from rank 0; a failure while serving is told by every rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sm86.backend.collectives import trial
from sm86.backend.collectives.communicator import HostAllReduce
from sm86.backend.collectives.decision import HOST, NCCL, Choice, choose, declined, untimed
from sm86.backend.collectives.exchange import Exchange
from sm86.backend.collectives.failure import STOPPED_WORDS as STOPPED
from sm86.backend.collectives.failure import CollectiveFailed, SetupFailed
from sm86.backend.collectives.plan import MAX_BYTES, MIN_BYTES
from sm86.manifest import Value, format_entry

if TYPE_CHECKING:
    import torch

SECTION = "collectives"
GRACE_S = 5.0
"""Time for the step that met the failure to report it itself, before the worker ends."""
EXIT_CODE = 70


def say(key: str, value: Value) -> None:
    """One line now, where vLLM's own log goes."""
    print(format_entry(key, value, SECTION), flush=True)


class GroupReduce:
    """A tensor-parallel group's choice: `takes` and `all_reduce` for what goes by host memory; NCCL has the rest."""

    def __init__(self, choice: Choice, reduce: HostAllReduce | None) -> None:
        self.choice = choice
        self._reduce = reduce
        self._plans: dict[int, Any] = {}

    def takes(self, tensor: torch.Tensor) -> bool:
        """By type, size and layout alone: the same on all ranks."""
        if self._reduce is None or not self._reduce.takes(tensor):
            return False
        size = tensor.numel() * tensor.element_size()
        if size not in self._plans:
            self._plans[size] = self.choice.plan_for(size)
        return self._plans[size] is not None

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of a tensor that `takes` accepts. Raises CollectiveFailed once a peer did not come."""
        assert self._reduce is not None
        return self._reduce.all_reduce(tensor, plan=self._plans[tensor.numel() * tensor.element_size()])

    def close(self) -> None:
        """Give the segment back; NCCL does everything from here on."""
        reduce, self._reduce = self._reduce, None
        if reduce is not None:
            reduce.close()


def end_worker(failure: CollectiveFailed, end: Callable[[int], Any] = os._exit, grace_s: float = GRACE_S) -> None:
    """Say what failed, and end this worker: its stream goes on with NaN, or it waits in another collective for the
    same dead peer. The engine notices the end and stops."""
    say("failed", str(failure))
    time.sleep(grace_s)
    end(EXIT_CODE)


def has_peer_access(device: int, environment: Mapping[str, str]) -> bool:
    """Whether another visible GPU can be reached directly and nobody told NCCL to leave that alone."""
    import torch

    if environment.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        return False
    others = [other for other in range(torch.cuda.device_count()) if other != device]
    return any(torch.cuda.can_device_access_peer(device, other) for other in others)


def start(
    mode: str,
    exchange: Exchange,
    device: int,
    sizes: Sequence[int],
    nccl: trial.Reduce | None,
    ubatches: bool = False,
    environment: Mapping[str, str] = os.environ,
    make: Callable[..., HostAllReduce] = HostAllReduce,
    on_failure: Callable[[CollectiveFailed], None] = end_worker,
) -> GroupReduce:
    """The group's way of reducing. Collective; never raises for what one rank lacks: NCCL takes over on all.

    sizes: bytes of the envelope's decode messages (may be empty: nothing is timed, nothing chosen in auto).
    nccl: the other way, to be timed; None: there is none, and nothing is timed (ranks that take turns on one GPU).
    """
    speaks = exchange.rank == 0
    facts = exchange.gather(
        {"peer_access": mode != "0" and has_peer_access(device, environment), "ubatches": ubatches, "mode": mode}
    )
    reduce: HostAllReduce | None = None
    choice = _decide_without_gpu(mode, facts)
    if choice is None:
        try:
            reduce = make(exchange, device)
            choice = _try_out(mode, exchange, reduce, sizes, nccl)
        except SetupFailed as failed:
            choice = Choice(mode, NCCL, f"set-up failed: {failed}")
        except RuntimeError as failed:
            # raised on all ranks or none (`times_of`)
            choice = Choice(mode, NCCL, f"it could not be timed: {failed}")
    if speaks:
        _report(choice, facts, reduce)
    if choice.way == NCCL and reduce is not None:
        reduce.close()
        reduce = None
    if reduce is not None:
        # not before: what fails while trying out leaves the work to NCCL and ends nobody
        reduce.on_failure = on_failure
    return GroupReduce(choice, reduce)


def _decide_without_gpu(mode: str, facts: Sequence[Mapping[str, Any]]) -> Choice | None:
    modes = sorted({fact["mode"] for fact in facts})
    if len(modes) > 1:
        return Choice(mode, NCCL, f"the ranks were told different things: SM86_HOST_ALLREDUCE={', '.join(modes)}")
    reason = declined(mode, facts)
    return Choice(mode, NCCL, reason) if reason else None


def _try_out(
    mode: str, exchange: Exchange, reduce: HostAllReduce, sizes: Sequence[int], nccl: trial.Reduce | None
) -> Choice:
    wrong, broken = None, None
    begin = time.monotonic()
    try:
        wrong = trial.check_values(reduce, sorted({1024, *sizes, MAX_BYTES}))
    except RuntimeError as failed:
        # a peer that did not come, no memory, a launch that CUDA refused: the others need not wait for this rank
        broken = str(failed)
        reduce.abort()
    found = exchange.gather([wrong, broken])
    causes = [one[1] for one in found if one[1]]
    if causes:
        # who only saw the others give up says nothing of the cause
        cause = next((text for text in causes if not text.startswith(STOPPED)), causes[0])
        return Choice(mode, NCCL, f"it could not be tried out: {cause}")
    for text in (one[0] for one in found if one[0]):
        return Choice(mode, NCCL, f"the value check failed: {text}")
    if not sizes:
        return Choice(mode, NCCL, f"no decode message lies between {MIN_BYTES} and {MAX_BYTES} bytes")
    if nccl is None:
        if exchange.rank == 0:
            say("value_check_s", round(time.monotonic() - begin, 1))
        return untimed(mode, exchange.world, sizes)
    table = trial.best_plans(reduce, sizes, {NCCL: nccl})
    # a rank's own clock made no choice: the times are the slowest rank's, shared by all
    return choose(mode, exchange.world, table)


def _report(choice: Choice, facts: Sequence[Mapping[str, Any]], reduce: HostAllReduce | None) -> None:
    say("mode", choice.mode)
    say("ranks", len(facts))
    say("peer_access", any(fact["peer_access"] for fact in facts))
    if reduce is not None:
        if choice.table or choice.way == HOST or "value check" in choice.reason:
            say("values", "not equal" if "value check" in choice.reason else "equal to the last bit")
        say("timeout_s", reduce.timeout_s)
    for row in choice.table:
        say("measured", row.entry())
    if choice.way == HOST:
        say("sizes", {str(size): plan.name for size, plan in sorted(choice.plans.items())})
    say("reason", choice.reason)
    say("choice", choice.way)
