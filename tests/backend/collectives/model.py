"""Every interleaving of a small group: the protocol as a machine with few states, searched to the end.

A rank runs `calls` calls. Each is two things side by side: the worker (store the message, see every peer's, read and
judge it) and the keeper (re-arm an old slot, fence). A store goes to the rank's own buffer and reaches memory at any
later moment, in any order but that of one slot's own stores; neither the worker's end nor the next call waits for it.
Messages are call numbers, so that old data are told from new. Found are: a message of another call taken for this
call's, and a state from which nothing goes on.

The faults are the ways this protocol could be built wrong; the search must find each.
"""

from __future__ import annotations

from dataclasses import dataclass

EMPTY = -1


@dataclass(frozen=True)
class Rules:
    """How the protocol is built. slots: of sentinels; rearm: which call's slot is re-armed, counted back (2; 0: never);
    fence: whether a call ends only when its re-arming is in memory."""

    slots: int = 4
    rearm: int = 2
    fence: bool = True


@dataclass(frozen=True)
class State:
    """memory[rank][slot]; buffers[rank]: pending (slot, value), oldest first; call, published, seen[peer], rearmed of
    each rank's present call."""

    memory: tuple[tuple[int, ...], ...]
    buffers: tuple[tuple[tuple[int, int], ...], ...]
    call: tuple[int, ...]
    published: tuple[bool, ...]
    seen: tuple[int, ...]
    rearmed: tuple[bool, ...]


def search(ranks: int, calls: int, rules: Rules) -> tuple[str | None, int]:
    """(the first fault found, None for none; states visited)."""
    start = State(
        ((EMPTY,) * rules.slots,) * ranks, ((),) * ranks, (0,) * ranks, (False,) * ranks, (0,) * ranks, (False,) * ranks
    )
    known = {start}
    stack = [start]
    while stack:
        state = stack.pop()
        following = []
        for rank in range(ranks):
            for after in _steps(state, rank, ranks, calls, rules):
                if isinstance(after, str):
                    return after, len(known)
                following.append(after)
        if not following and any(call < calls for call in state.call):
            return f"nothing goes on: ranks are in calls {state.call}", len(known)
        for after in following:
            if after not in known:
                known.add(after)
                stack.append(after)
    return None, len(known)


def _put(whole: tuple, index: int, value: object) -> tuple:
    return (*whole[:index], value, *whole[index + 1 :])


def _steps(state: State, rank: int, ranks: int, calls: int, rules: Rules) -> list[State | str]:
    found: list[State | str] = []
    buffer = state.buffers[rank]
    for at, (slot, value) in enumerate(buffer):
        if any(other == slot for other, _ in buffer[:at]):
            continue  # stores to one slot keep their order
        memory = _put(state.memory, rank, _put(state.memory[rank], slot, value))
        buffers = _put(state.buffers, rank, buffer[:at] + buffer[at + 1 :])
        found.append(State(memory, buffers, state.call, state.published, state.seen, state.rearmed))
    call = state.call[rank]
    if call == calls:
        return found
    everybody = (1 << ranks) - 1
    if not state.published[rank]:
        buffers = _put(state.buffers, rank, (*buffer, (call % rules.slots, call)))
        published = _put(state.published, rank, True)
        seen = _put(state.seen, rank, 1 << rank)
        found.append(State(state.memory, buffers, state.call, published, seen, state.rearmed))
    else:
        for peer in range(ranks):
            value = state.memory[peer][call % rules.slots]
            if state.seen[rank] >> peer & 1 or value == EMPTY:
                continue
            if value != call:
                found.append(f"rank {rank} took call {value}'s message of rank {peer} for call {call}'s")
                return found
            seen = _put(state.seen, rank, state.seen[rank] | 1 << peer)
            found.append(State(state.memory, state.buffers, state.call, state.published, seen, state.rearmed))
    old = call - rules.rearm
    due = rules.rearm > 0 and old >= 0
    if not state.rearmed[rank]:
        buffers = _put(state.buffers, rank, (*buffer, (old % rules.slots, EMPTY))) if due else state.buffers
        rearmed = _put(state.rearmed, rank, True)
        found.append(State(state.memory, buffers, state.call, state.published, state.seen, rearmed))
    waits = rules.fence and any(value == EMPTY for _, value in buffer)
    if state.published[rank] and state.seen[rank] == everybody and state.rearmed[rank] and not waits:
        found.append(
            State(
                state.memory,
                state.buffers,
                _put(state.call, rank, call + 1),
                _put(state.published, rank, False),
                _put(state.seen, rank, 0),
                _put(state.rearmed, rank, False),
            )
        )
    return found
