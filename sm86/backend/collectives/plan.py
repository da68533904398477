"""How one call is launched, what may be tried, and what is taken before anything was measured. Pure.

A plan never changes a result: all algorithms add in the same order and round once.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKETS, ONE_SHOT, TWO_SHOT = range(3)
NAMES = ("packets", "one-shot", "two-shot")

MIN_BYTES = 16
MAX_BYTES = 128 * 1024
MAX_PACKET_BYTES = 32 * 1024
"""Packets take twice the bytes; the prototype lost with them from 32 KiB on, so the segment holds no larger ones."""
RANKS = range(2, 9)


@dataclass(frozen=True, slots=True)
class Plan:
    """algorithm: PACKETS, ONE_SHOT or TWO_SHOT; threads: of a block, 128 to 512; pause: clock cycles before the first
    look at what takes time to come (the peers' message, or their sums in the two-shot)."""

    algorithm: int
    threads: int
    pause: int = 0

    @property
    def name(self) -> str:
        """As in tables: `packets/256`, `two-shot/128+600`."""
        return f"{NAMES[self.algorithm]}/{self.threads}" + (f"+{self.pause}" if self.pause else "")


def fits(plan: Plan, bytes_: int) -> bool:
    """Whether the library takes a message of so many bytes with this plan."""
    most = MAX_PACKET_BYTES if plan.algorithm == PACKETS else MAX_BYTES
    return MIN_BYTES <= bytes_ <= most and bytes_ % 16 == 0


def takes(bytes_: int, max_bytes: int = MAX_BYTES) -> bool:
    """Whether a message can go this way at all: 16 bytes to `max_bytes`, whole 16-byte vectors."""
    return MIN_BYTES <= bytes_ <= max_bytes and bytes_ % 16 == 0


def default(bytes_: int, world: int) -> Plan:
    """Unmeasured. The two-shot moves 2(N-1)/N messages where the one-shot moves N-1, and has one more trip over PCIe:
    with two ranks it has nothing to save, with eight it does from 16 KiB on (docs/collectives.md, the model)."""
    if world > 2 and bytes_ * (world - 1) >= 7 * 16 * 1024:
        return Plan(TWO_SHOT, 256, 600)
    return Plan(ONE_SHOT, 256)


def candidates(bytes_: int, world: int) -> tuple[Plan, ...]:
    """What a timing at start tries, the same on every rank and in this order. A block larger than the message is left
    out. The pauses are 0 and about a third and two thirds of a trip over PCIe at 1.7 GHz."""
    plans = []
    for threads in (128, 256, 512):
        if threads > 128 and bytes_ // 16 <= threads // 2:
            continue
        plans += [Plan(algorithm, threads, pause) for algorithm in (PACKETS, ONE_SHOT) for pause in (0, 500)]
        plans += [Plan(TWO_SHOT, threads, pause) for pause in (0, 1500)]
    return tuple(plan for plan in plans if fits(plan, bytes_) and (plan.algorithm != TWO_SHOT or world > 2))
